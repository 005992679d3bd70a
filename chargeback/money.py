"""Money: whole nano-units (10^-9 of the currency) in int64 within a window, exact whole numbers for sums.

No float ever holds money. What divides it is a whole number too, so each division is exact up to one nano-unit
and depends on neither row order nor platform (R1).
"""

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation

import numpy as np
from babel.core import get_global
from numpy.typing import NDArray

NANO = 10**9
Ints = NDArray[np.int64]
_EXACT = Context(prec=60)
_MAX_PRICE = Decimal(10) ** 9


def parse_price(value: object) -> int:
    """A price in nano-units from a whole number or a decimal string; ValueError for anything else.

    Floats are refused: `21.957642` without quotes has been rounded to binary before it is read here.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f'{value!r} must be a decimal in quotes, such as "21.957642" (a float is not exact)')
    text = str(value)
    if not text.isascii() or any(c not in "0123456789.-" for c in text):
        raise ValueError(f'{value!r} is not a plain decimal such as "21.957642"')
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise ValueError(f'{value!r} is not a plain decimal such as "21.957642"') from None
    if amount < 0 or amount > _MAX_PRICE:
        raise ValueError(f"{value!r} must be from 0 to {_MAX_PRICE:,}")
    nano = amount.scaleb(9, _EXACT)
    if nano != nano.to_integral_value():
        raise ValueError(f"{value!r} has more than 9 decimals")
    return int(nano)


def to_decimal(nano: int) -> Decimal:
    """Nano-units as an amount with 9 digits."""
    return Decimal(int(nano)).scaleb(-9, _EXACT)


def scaled(price: Ints, numerator: Ints, denominator: Ints) -> Ints:
    """Price * numerator / denominator, rounded half-even (C3), without overflow.

    All int64, none negative, numerator and denominator below 2^32 (ms of a month).
    """
    whole, rest = np.divmod(price, denominator)
    part, left = np.divmod(rest * numerator, denominator)
    floor = whole * numerator + part
    twice = 2 * left
    up = (twice > denominator) | ((twice == denominator) & (floor % 2 == 1))
    return np.asarray(floor + up, np.int64)


def share(amount: Ints, part: Ints, whole: Ints) -> Ints:
    """floor(amount * part / whole) to the unit, for int64 with 0 <= part <= whole, 0 < whole < 2^52, |amount| < 2^52.

    The product may pass 2^63: a float estimate is within one of the quotient, and the remainder, exact modulo
    2^64, tells which way it is off.
    """
    guess = np.floor(amount * (part / whole)).astype(np.int64)
    with np.errstate(over="ignore"):
        rest = amount * part - guess * whole
    guess = guess + np.where(rest >= whole, rest // whole, 0)
    return guess + np.where(rest < 0, -((-rest + whole - 1) // whole), 0)


def divide(amount: Ints, weight: Ints, starts: Ints, whole: Ints) -> tuple[Ints, Ints]:
    """Divides `amount[g]` in proportion to the weights of group g's rows, exactly (R1).

    `weight`: n rows, grouped; `starts`: first row of each of the g groups, none empty; `amount`, `whole`: by group,
    whole >= the sum of its weights. Returns the n parts and, by group, what is left over for whole - sum. A part is
    the difference of two cumulated shares, so it is within one nano-unit of its exact value and all add up.
    """
    if not weight.size:
        return weight.astype(np.int64), amount.copy()
    sizes = np.diff(np.append(starts, weight.size))
    running = np.cumsum(weight)
    before = running[starts] - weight[starts]
    upto = running - np.repeat(before, sizes)
    cut = share(np.repeat(amount, sizes), upto, np.repeat(whole, sizes))
    parts = cut.copy()
    parts[1:] -= cut[:-1]
    parts[starts] = cut[starts]
    ends = starts + sizes - 1
    return parts, amount - cut[ends]


def minor_digits(currency: str) -> int:
    """Digits behind the point of an ISO 4217 currency (JPY 0, USD 2, KWD 3)."""
    fractions = get_global("currency_fractions")
    return int(fractions.get(currency, fractions["DEFAULT"])[0])


def round_half_even(nano: int, digits: int) -> Decimal:
    """An exact sum in the currency's minor unit (R2)."""
    amount = to_decimal(nano).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN, _EXACT)
    return amount + 0  # no -0.00 (R4)


def largest_remainder(total: Decimal, exact: Sequence[int], names: Sequence[object], digits: int) -> list[Decimal]:
    """Hands `total` (in minor units) to parts of these exact nano amounts: floors first, then one minor unit each to
    the largest remainders, ties by name (R2). The parts add up to `total`.
    """
    unit = 10 ** (9 - digits)
    floors = [e // unit for e in exact]
    missing = int(total.scaleb(digits, _EXACT)) - sum(floors)
    order = sorted(range(len(exact)), key=lambda i: (-(exact[i] % unit), names[i]))
    if exact:
        each, extra = divmod(missing, len(exact))
        for place, i in enumerate(order):
            floors[i] += each + (place < extra)
    return [Decimal(f).scaleb(-digits, _EXACT) + 0 for f in floors]
