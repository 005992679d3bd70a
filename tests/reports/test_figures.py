"""Figures for people are exact, and say no more than is so."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargeback.period import parse_period
from chargeback.reports.figures import Figures, exact, period_text, shares, span, spread, visible

F = Figures("USD", 2)
NOW = 1_800_000_000_000


@given(st.lists(st.floats(-1e9, 1e9), max_size=40), st.integers(0, 3))
def test_rounded_parts_add_up_to_the_rounded_whole(values: list[float], digits: int) -> None:
    parts = spread(values, digits)
    step = Decimal(1).scaleb(-digits)
    assert all(abs(p - Decimal(v)) <= step for p, v in zip(parts, values, strict=True))
    assert abs(sum(parts, Decimal(0)) - sum(map(Decimal, values), Decimal(0))) <= step / 2 + Decimal("1e-7")


@given(st.lists(st.integers(0, 10**15), min_size=1).filter(any))
def test_shares_add_up_to_100(cents: list[int]) -> None:
    assert sum(s for s in shares([Decimal(c) / 100 for c in cents]) if s is not None) == 100


def test_shares_of_nothing_are_not_shown() -> None:
    assert shares([Decimal(0), Decimal(0)]) == [None, None]
    assert F.share(None) == "–"


def test_money_that_was_not_rounded_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 2 digits"):
        F.money(Decimal("1.005"))
    assert str(exact(Decimal("-0.000"), 2)) == "0.00"  # R4


def test_nearly_all_is_not_all() -> None:
    assert [F.part(x) for x in (0.0, 0.0001, 0.1234, 0.99999, 1.0, None)] == [
        *("0%", "under 0.1%", "12.3%", "over 99.9%", "100%", "–")
    ]


def test_what_cannot_be_seen_is_made_visible() -> None:
    assert visible("a\nb\tc\x00d\x7f\x9b\u2028") == "a↵b⇥c\ufffdd\ufffd\ufffd\ufffd"
    assert visible("\u202eabc\u2069\ud800") == "\ufffdabc\ufffd\ufffd"
    assert visible("عربي 👩‍🚀") == "عربي 👩‍🚀"


def test_lengths_of_time() -> None:
    assert [span(ms) for ms in (300_000, 3_600_000, 7_200_000, 86_400_000, 15_000, 250)] == [
        *("5 minutes", "1 hour", "2 hours", "1 day", "15 seconds", "250 milliseconds")
    ]


@pytest.mark.parametrize(
    ("text", "title", "hours"),
    [
        ("2026-11", "November 2026", "720"),
        ("2026-10", "October 2026", "745"),  # W2: Berlin puts its clocks back
        ("2026-11-03", "November 3, 2026", "24"),
        ("2026-11-03T06:00Z/2026-11-03T18:30Z", "3 Nov 2026, 07:00 – 3 Nov 2026, 19:30", "12.50"),
    ],
)
def test_periods_are_named_in_their_time_zone(text: str, title: str, hours: str) -> None:
    said = period_text(parse_period(text, "Europe/Berlin", 300_000, NOW), F)
    assert (said.title, said.hours, said.timezone) == (title, hours, "Europe/Berlin")


def test_bounds_are_said_exactly() -> None:
    said = period_text(parse_period("2026-11", "Europe/Berlin", 300_000, NOW), F)
    assert said.edges == "2026-11-01T00:00+01:00 up to, not including, 2026-12-01T00:00+01:00"
