"""What must hold for any input: divisions lose nothing, windows are plain sums, charges add up to what a node cost."""

import math
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from clusters import Cluster, prices, run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from chargeback.allocate.gaps import CARRIED, MEASURED, SILENT, place
from chargeback.allocate.shares import divide_devices
from chargeback.config import Allocation
from chargeback.money import divide, largest_remainder, minor_digits, parse_price, round_half_even, scaled, share
from chargeback.sources import Samples
from chargeback.sources.memory import aggregate

Ints = NDArray[np.int64]
UNITS_OF_A_CARD = 1024 * 1024 * 2**30 // 4
"""A card of 256 GiB in 1/1024 bytes, the unit in which memory is divided."""
DEAR = 10**18
"""The dearest price an hour, 1,000,000,000.00, in nano-units: no window costs more."""


STEADY = settings(deadline=None)
"""No example fails for being slow on a busy machine."""


def ints(values: list[int]) -> Ints:
    """A column."""
    return np.array(values, np.int64)


# Money


@STEADY
@given(st.integers(0, DEAR), st.integers(1, 2**52 - 1), st.data())
@example(DEAR, 2**52 - 1, None)
def test_share_is_the_exact_quotient_rounded_down(amount: int, whole: int, data: st.DataObject | None) -> None:
    part = data.draw(st.integers(0, whole)) if data else whole - 1
    assert share(ints([amount]), ints([part]), ints([whole])).tolist() == [amount * part // whole]


@STEADY
@given(st.integers(-DEAR, -1), st.integers(1, 2**52 - 1), st.data())
def test_share_of_a_credit_is_rounded_down_too(amount: int, whole: int, data: st.DataObject) -> None:
    part = data.draw(st.integers(0, whole))
    assert share(ints([amount]), ints([part]), ints([whole])).tolist() == [amount * part // whole]


@STEADY
@given(st.integers(0, DEAR), st.integers(0, 3_600_000))
@example(6, 300_000)
@example(18, 300_000)
@example(30, 300_000)
def test_a_windows_cost_is_rounded_half_even(price: int, ms: int) -> None:
    exact = Fraction(price * ms, 3_600_000)
    assert scaled(ints([price]), ints([ms]), ints([3_600_000])).tolist() == [
        round(exact)
    ]  # Python rounds halves to even


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[int], list[list[int]], list[int]]:
    """Amounts, the weights among which each is divided, and wholes of at least their sums."""
    weights = draw(st.lists(st.lists(st.integers(0, 2**40), min_size=1, max_size=6), min_size=1, max_size=5))
    amounts = draw(st.lists(st.integers(0, DEAR), min_size=len(weights), max_size=len(weights)))
    more = draw(st.lists(st.integers(0, 2**40), min_size=len(weights), max_size=len(weights)))
    return amounts, weights, [max(sum(w) + m, 1) for w, m in zip(weights, more, strict=True)]


def divided(amounts: list[int], weights: list[list[int]], wholes: list[int]) -> tuple[list[list[int]], list[int]]:
    """The parts by group, and what is left of each."""
    sizes = [len(w) for w in weights]
    starts = np.cumsum([0, *sizes[:-1]])
    parts, left = divide(ints(amounts), ints([x for w in weights for x in w]), starts, ints(wholes))
    return [p.tolist() for p in np.split(parts, starts[1:])], left.tolist()


@STEADY
@given(groups())
def test_a_whole_is_divided_without_loss_and_each_part_within_a_unit(
    given_: tuple[list[int], list[list[int]], list[int]],
) -> None:
    amounts, weights, wholes = given_
    parts, left = divided(*given_)
    for amount, of, mine, rest, whole in zip(amounts, weights, parts, left, wholes, strict=True):
        assert sum(mine) + rest == amount
        assert rest >= 0
        for weight, part in zip(of, mine, strict=True):
            assert abs(part - Fraction(amount * weight, whole)) < 1
            assert part >= 0
            assert weight or not part
        assert abs(rest - Fraction(amount * (whole - sum(of)), whole)) < 1


@STEADY
@given(groups(), st.randoms(use_true_random=False))
def test_the_order_of_groups_changes_no_part(given_: tuple[list[int], list[list[int]], list[int]], rnd: object) -> None:
    amounts, weights, wholes = given_
    order = list(range(len(amounts)))
    rnd.shuffle(order)  # type: ignore[attr-defined]
    parts, left = divided(*given_)
    other, rest = divided([amounts[i] for i in order], [weights[i] for i in order], [wholes[i] for i in order])
    assert [parts[i] for i in order] == other
    assert [left[i] for i in order] == rest


def test_nothing_is_divided_among_nobody() -> None:
    parts, left = divide(ints([5]), ints([]), ints([]), ints([1]))
    assert parts.tolist() == []
    assert left.tolist() == [5]


AMOUNTS = st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=12)


@STEADY
@given(AMOUNTS, st.integers(0, 4))
def test_minor_units_go_by_largest_remainder(exact: list[int], digits: int) -> None:
    total = round_half_even(sum(exact), digits)
    names = [f"t{i:02}" for i in range(len(exact))]
    parts = largest_remainder(total, exact, names, digits)
    unit = Decimal(1).scaleb(-digits)
    assert sum(parts) == total
    assert abs(Fraction(total) - Fraction(sum(exact), 10**9)) <= Fraction(unit) / 2
    for amount, part in zip(exact, parts, strict=True):
        assert abs(Fraction(part) - Fraction(amount, 10**9)) < Fraction(unit)
        assert part % unit == 0
        assert part or not part.is_signed()  # no -0.00
    # who is given a unit has no smaller a remainder than who is not; at equal ones it is the first by name
    rest = {n: Fraction(a, 10**9) % Fraction(unit) for n, a in zip(names, exact, strict=True)}
    got = {n: Fraction(p) > Fraction(a, 10**9) - rest[n] for n, a, p in zip(names, exact, parts, strict=True)}
    for one in names:
        for other in names:
            if got[one] and not got[other]:
                assert (-rest[one], one) < (-rest[other], other)


@STEADY
@given(AMOUNTS, st.randoms(use_true_random=False))
def test_the_order_of_teams_changes_no_invoice(exact: list[int], rnd: object) -> None:
    names = [f"t{i:02}" for i in range(len(exact))]
    total = round_half_even(sum(exact), 2)
    one = dict(zip(names, largest_remainder(total, exact, names, 2), strict=True))
    order = list(range(len(exact)))
    rnd.shuffle(order)  # type: ignore[attr-defined]
    shuffled = [names[i] for i in order]
    other = dict(zip(shuffled, largest_remainder(total, [exact[i] for i in order], shuffled, 2), strict=True))
    assert one == other


@STEADY
@given(st.integers(-(10**30), 10**30), st.sampled_from(["USD", "JPY", "KWD", "CLF", "XXX"]))
def test_a_total_is_rounded_half_even_however_large(nano: int, currency: str) -> None:
    digits = minor_digits(currency)
    rounded = round_half_even(nano, digits)
    assert Fraction(rounded) == Fraction(round(Fraction(nano, 10 ** (9 - digits))), 10**digits)
    assert not (rounded == 0 and rounded.is_signed())


@STEADY
@given(st.integers(0, 10**18 - 1))
def test_a_price_is_read_as_it_is_written(nano: int) -> None:
    assert parse_price(f"{nano // 10**9}.{nano % 10**9:09}") == nano


# Windows

TIMES = st.lists(st.integers(0, 40 * 60_000), min_size=1, max_size=60, unique=True)


@STEADY
@given(st.lists(TIMES, min_size=1, max_size=4), st.sampled_from([60_000, 300_000, 3_600_000]), st.data())
def test_windows_are_the_plain_sums_of_their_samples(by_series: list[list[int]], w: int, data: st.DataObject) -> None:
    rows = []
    for series, times in enumerate(by_series):
        values = data.draw(st.lists(st.integers(-100, 2**40), min_size=len(times), max_size=len(times)))
        rows += [(series, t, v) for t, v in sorted(zip(times, values, strict=True))]
    labels = [{"series": str(i)} for i in range(len(by_series))]
    columns = [ints([row[i] for row in rows]) for i in range(3)]
    found = aggregate(Samples(labels, columns[0], columns[1], columns[2].astype(np.float64)), w)

    total: defaultdict[tuple[int, int], float] = defaultdict(float)
    count: defaultdict[tuple[int, int], int] = defaultdict(int)
    for series, time, value in rows:
        total[series, time // w] += value
        count[series, time // w] += 1
    keys = list(zip(found.series.tolist(), found.window.tolist(), strict=True))
    assert keys == sorted(count)
    assert found.total.tolist() == [total[k] for k in keys]
    assert found.count.tolist() == [count[k] for k in keys]
    for series in range(len(by_series)):
        mine = [float(v) for s, _, v in rows if s == series]
        assert (found.low[series], found.high[series]) == (min(mine), max(mine))


# Allocation

POLICIES = st.builds(
    Allocation,
    basis=st.sampled_from(["memory", "request", "max"]),
    idle=st.sampled_from(["holders", "consumers", "platform"]),
)


@st.composite
def devices(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[list[tuple[int, int]]]]:
    """By device: cost, capacity, slots, and (memory, slots held) of each that is on it."""
    n = draw(st.integers(1, 4))
    memory = st.one_of(st.just(0), st.integers(0, UNITS_OF_A_CARD))
    entry = st.tuples(memory, st.integers(0, 4).map(lambda slots: slots * 720_720))
    return (
        draw(st.lists(st.integers(0, DEAR), min_size=n, max_size=n)),
        draw(st.lists(st.integers(0, UNITS_OF_A_CARD), min_size=n, max_size=n)),
        draw(st.lists(st.integers(1, 8).map(lambda slots: slots * 720_720), min_size=n, max_size=n)),
        draw(st.lists(st.lists(entry, min_size=1, max_size=5), min_size=n, max_size=n)),
    )


@given(devices(), POLICIES)
@settings(STEADY, max_examples=300)
def test_a_devices_charges_add_up_to_its_cost(
    given_: tuple[list[int], list[int], list[int], list[list[tuple[int, int]]]], policy: Allocation
) -> None:
    cost, capacity, slots, entries = given_
    sizes = [len(e) for e in entries]
    starts = np.cumsum([0, *sizes[:-1]])
    flat = [e for of in entries for e in of]
    shares = divide_devices(
        ints(cost), ints(capacity), ints(slots), starts, ints([m for m, _ in flat]), ints([h for _, h in flat]), policy
    )
    used, idle = (np.split(a, starts[1:]) for a in (shares.used, shares.idle))
    for i, of in enumerate(entries):
        mine = [*used[i].tolist(), *idle[i].tolist(), int(shares.unallocated[i]), int(shares.platform_idle[i])]
        assert sum(mine) == cost[i]
        assert min(mine) >= 0
        for (memory, held), u, d in zip(of, used[i].tolist(), idle[i].tolist(), strict=True):
            assert memory or held or not u + d
            assert held or policy.basis != "request" or not u
        if policy.basis == "memory":
            whole = max(capacity[i], sum(m for m, _ in of), 1)
            assert all(
                abs(u - Fraction(cost[i] * m, whole)) < 1 for (m, _), u in zip(of, used[i].tolist(), strict=True)
            )


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[list[bool]], list[int], list[int], list[int], int]:
    """Which of a node's GPUs were reported, by column; its cost there, how many it has, when its life began; reach."""
    width, gpus = draw(st.integers(2, 12)), draw(st.integers(1, 4))
    reported = draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=gpus, max_size=gpus))
    cost = draw(st.lists(st.one_of(st.just(-1), st.integers(0, DEAR)), min_size=width - 1, max_size=width - 1))
    wanted = draw(st.integers(1, 5))
    began = draw(st.integers(0, width - 1))
    return reported, [-1, *cost], [wanted] * width, [began] * width, draw(st.integers(1, 5))


@given(nodes())
@settings(STEADY, max_examples=300)
def test_a_nodes_cost_is_all_of_it_its_gpus(
    given_: tuple[list[list[bool]], list[int], list[int], list[int], int],
) -> None:
    reported, cost, wanted, began, reach = given_
    seen = np.array(reported, bool)
    placed, unknown = place(seen, ints(cost), ints(wanted), ints(began), reach)
    sums: dict[int, int] = defaultdict(int)
    for column, part in zip(placed.column.tolist(), placed.cost.tolist(), strict=True):
        assert part >= 0
        sums[column] += part
    for column, part, gpus in zip(unknown.column.tolist(), unknown.cost.tolist(), unknown.gpus.tolist(), strict=True):
        assert part >= 0
        assert gpus > 0
        sums[column] += part
    billed = {column: c for column, c in enumerate(cost) if c >= 0}
    assert {column: c for column, c in sums.items() if c} == {column: c for column, c in billed.items() if c}

    count: defaultdict[int, int] = defaultdict(int)
    rows = zip(
        *(a.tolist() for a in (placed.gpu, placed.column, placed.source, placed.state, placed.cost)), strict=True
    )
    for gpu, column, source, state, part in rows:
        count[column] += 1
        room = max(wanted[column], int(seen[:, column].sum()))
        assert abs(part - Fraction(cost[column], room)) < 1  # an equal part
        assert seen[gpu, source]
        assert began[column] <= source <= column
        assert not seen[gpu, source + 1 : column + 1].any()  # the last report there is
        assert (state == MEASURED) == (source == column)
        assert state != CARRIED or column - source <= reach
        assert state != SILENT or source == 0 or column - source > reach
    for column in billed:
        at_once = int(seen[:, column].sum()) if column >= began[column] else 0
        assert count[column] <= max(wanted[column], at_once)
        for gpu in np.flatnonzero(seen[:, column]).tolist():  # a GPU that reports is always there
            if column >= began[column]:
                assert any(
                    (g, c) == (gpu, column) for g, c in zip(placed.gpu.tolist(), placed.column.tolist(), strict=True)
                )


# The whole way

CLUSTERS = st.fixed_dictionaries(
    {
        "price": st.integers(1, 10**13).map(lambda nano: f"{nano // 10**9}.{nano % 10**9:09}"),
        "gpus": st.integers(1, 3),
        "seen": st.integers(1, 3),
        "replicas": st.integers(1, 4),
        "pods": st.lists(
            st.tuples(st.integers(0, 3), st.floats(0, 100), st.booleans(), st.floats(0, 59), st.floats(1, 60)),
            max_size=4,
        ),
        "used": st.floats(0, 80),
        "hole": st.tuples(st.floats(0, 60), st.floats(0, 60)),
        "alive": st.tuples(st.floats(0, 20), st.floats(40, 60)),
        "allocation": POLICIES,
        "split": st.integers(1, 99),
    }
)


@given(CLUSTERS)
@settings(STEADY, max_examples=25)
def test_whatever_happens_charges_add_up_to_node_cost_and_invoices_to_the_bill(made: dict[str, object]) -> None:
    m: dict = made  # type: ignore[type-arg]
    c = Cluster(every=60)
    c.node("n1", at=m["alive"], labels={"label_nvidia_com_gpu_replicas": str(m["replicas"])})
    names = []
    for i, (device, gib, labelled, first, length) in enumerate(m["pods"]):
        name = f"ns{i % 2}/p{i}"
        at = (first, min(60.0, first + length))
        c.pod(name, team=("red", "", "Red")[i % 3], node="n1", at=at)
        c.process("n1", name, gib, f"GPU-{device}", at=at)
        names += [name] if labelled else []
    for gpu in range(m["seen"]):
        c.gpu("n1", f"GPU-{gpu}", used=m["used"], pods={n: [str(i)] for i, n in enumerate(names)} if gpu == 0 else ())
    c.hole("DCGM", tuple(sorted(m["hole"])))
    rules = [{"match": {"namespace": "ns1"}, "split": {"blue": m["split"], "red": 100 - m["split"]}}]
    with TemporaryDirectory() as folder:
        result = run(
            Path(folder), c, prices(m["price"], gpus=m["gpus"]), max_gap="15m", ownership={"rules": rules},
            allocation=m["allocation"].model_dump(),
        )  # fmt: skip
    assert sum(row["cost"] for row in result.rows) == result.node_cost
    assert sum(result.invoices.values()) == Decimal(result.manifest["billed"])
    assert result.manifest["billed"] == str(round_half_even(int(result.node_cost.scaleb(9)), 2))
    assert sum(Decimal(line["amount"]) for line in result.lines) == Decimal(result.manifest["billed"])
    assert all(row["cost"] >= 0 for row in result.rows)
    hours = (m["alive"][1] - m["alive"][0]) / 60 + 1
    assert math.fsum(row["gpu_hours"] for row in result.rows) <= max(m["gpus"], 4) * hours + 1e-6
