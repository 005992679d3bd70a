"""Rules T: whose pod it is, and who pays for what nobody used."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from clusters import START, Charges, Cluster, Result, exclusive, money, prices, run, sliced

from chargeback.errors import ConfigError

POD = {"namespace": "apps", "pod": "train", "uid": "uid-of-apps-train"}


def owned(
    folder: Path, *, pod: str = "", namespace: str = "", labels: dict[str, str] | None = None, **settings: Any
) -> Result:
    """An idle card of 6.00 that apps/train holds, with a team on the pod and on its namespace."""
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", team=pod, node="n1", labels=labels)
    if namespace:
        c.namespace("apps", team=namespace)
    c.gpu("n1", pods=["apps/train"])
    return run(folder, c, **settings)


def payers(result: Result) -> dict[str, Decimal]:
    """What each team was charged."""
    sums: dict[str, Decimal] = {}
    for (team, _), cost in result.charges.items():
        sums[team] = sums.get(team, Decimal(0)) + cost
    return sums


RULE = {"match": {"namespace": "ap*"}, "team": "by-rule"}


@pytest.mark.parametrize(
    ("pod", "namespace", "ownership", "team"),
    [
        ("by-pod", "by-namespace", {"rules": [RULE]}, "by-rule"),
        ("by-pod", "by-namespace", {}, "by-pod"),
        ("", "by-namespace", {}, "by-namespace"),
        ("", "", {}, "unowned"),
        ("", "", {"default": "nobody"}, "nobody"),
        ("by-pod", "by-namespace", {"rules": [RULE], "order": ["namespace", "pod", "rules"]}, "by-namespace"),
        ("by-pod", "", {"rules": [RULE], "order": ["namespace", "pod", "rules"]}, "by-pod"),
        ("by-pod", "by-namespace", {"order": ["rules", "namespace"]}, "by-namespace"),
        ("by-pod", "", {"order": ["rules", "namespace"]}, "unowned"),
        ("by-pod", "", {"rules": [{"match": {"namespace": "other"}, "team": "by-rule"}]}, "by-pod"),
    ],
)
def test_t1_a_team_is_found_by_rule_then_pod_label_then_namespace_label(
    tmp_path: Path, pod: str, namespace: str, ownership: dict[str, Any], team: str
) -> None:
    result = owned(tmp_path, pod=pod, namespace=namespace, ownership=ownership)
    assert payers(result) == {team: 6}
    assert ("unowned" in result.problems) == (team in ("unowned", "nobody"))


@pytest.mark.parametrize(("tier", "team"), [("gold", "rich"), ("silver", "poor"), ("", "poor")])
def test_t1_the_first_rule_that_matches_namespace_and_labels_wins(tmp_path: Path, tier: str, team: str) -> None:
    rules = [
        {"match": {"namespace": "apps", "labels": {"tier": "gold"}}, "team": "rich"},
        {"match": {"namespace": "apps"}, "team": "poor"},
        {"match": {}, "team": "anyone"},
    ]
    result = owned(tmp_path, labels={"label_tier": tier}, ownership={"rules": rules})
    assert payers(result) == {team: 6}


def test_t1_a_rule_counts_from_the_first_window_that_starts_while_it_is_in_force(tmp_path: Path) -> None:
    # In force from 10:12 to 10:42: the windows from 10:15 up to the one from 10:40, 6 of 0.50.
    at = [START + timedelta(minutes=minute) for minute in (12, 42)]
    rules = [{"match": {"namespace": "apps"}, "team": "by-rule", "from": at[0], "to": at[1]}]
    assert payers(owned(tmp_path, pod="red", ownership={"rules": rules})) == {"by-rule": 3, "red": 3}


def test_t1_the_label_last_seen_up_to_the_windows_end_counts(tmp_path: Path) -> None:
    # red until 10:32, then blue: the window from 10:30 is blue's already. 6 and 6 windows.
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", node="n1")
    c.gpu("n1", pods=["apps/train"])
    c.hole("kube_pod_labels", (0, 60))
    c.series("kube_pod_labels", 1, {**POD, "label_team": "red"}, (0, 32))
    c.series("kube_pod_labels", 1, {**POD, "label_team": "blue"}, (32, 60))
    assert payers(run(tmp_path, c)) == {"red": 3, "blue": 3}


def test_t1_a_label_stands_while_nothing_is_seen(tmp_path: Path) -> None:
    c = exclusive(0)
    c.hole("kube_pod_labels", (20, 60))
    assert payers(run(tmp_path, c)) == {"red": 6}


def test_t1_a_namespaces_label_may_change_too(tmp_path: Path) -> None:
    # red's until 10:30
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", node="n1")
    c.namespace("apps", (0, 30), team="red")
    c.namespace("apps", (30, 60), team="blue")
    c.gpu("n1", pods=["apps/train"])
    assert payers(run(tmp_path, c)) == {"red": 3, "blue": 3}


def test_t1_a_label_cannot_bill_a_team_that_is_not_listed(tmp_path: Path) -> None:
    result = owned(tmp_path, pod="stranger", teams={"red": {}, "blue": {}})
    assert payers(result) == {"unowned": 6}
    assert "apps/train" in result.subjects("unknown-team")


def test_t1_a_label_may_name_a_listed_team_and_a_rule_any(tmp_path: Path) -> None:
    teams = {"red": {"cost_center": "4711"}}
    assert payers(owned(tmp_path / "label", pod="red", teams=teams)) == {"red": 6}
    assert payers(owned(tmp_path / "rule", pod="red", teams=teams, ownership={"rules": [RULE]})) == {"by-rule": 6}


def test_t1_the_team_label_may_have_another_name(tmp_path: Path) -> None:
    result = owned(
        tmp_path, pod="red", labels={"label_example_org_cost_owner": "blue"},
        ownership={"team_label": "example.org/cost-owner"},
    )  # fmt: skip
    assert payers(result) == {"blue": 6}


def test_t2_names_are_trimmed(tmp_path: Path) -> None:
    result = run(tmp_path, sliced({" red": 1, "red ": 1}, {}, replicas=2))
    assert payers(result) == {"red": 6}


def test_t2_names_that_differ_only_in_case_are_two_teams_and_reported(tmp_path: Path) -> None:
    result = run(tmp_path, sliced({"red": 1, "Red": 1}, {}, replicas=2))
    assert payers(result) == {"red": 3, "Red": 3}
    assert result.subjects("team-names-alike") == {"Red, red": 1}
    folders = [invoice["folder"] for invoice in result.manifest["invoices"].values()]
    assert len({folder.lower() for folder in folders}) == 2


@pytest.mark.parametrize(
    ("split", "parts"),
    [
        ({"search": 60, "ads": 40}, {"search": "3.60", "ads": "2.40"}),
        ({"search": 12.5, "ads": 87.5}, {"search": "0.75", "ads": "5.25"}),
        ({"search": 100}, {"search": "6.00"}),
    ],
)
def test_t2_a_rule_may_split_by_percentages(tmp_path: Path, split: dict[str, float], parts: dict[str, str]) -> None:
    rules = [{"match": {"namespace": "apps"}, "split": split}]
    assert payers(owned(tmp_path, ownership={"rules": rules})) == {t: Decimal(a) for t, a in parts.items()}


def test_t2_a_split_in_thirds_loses_nothing(tmp_path: Path) -> None:
    # 33.3, 33.3 and 33.4 % of 12.34 in windows of 1.028333333: all of it, each within a nano-unit a window.
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", node="n1")
    c.gpu("n1", pods=["apps/train"])
    rules = [{"match": {"namespace": "apps"}, "split": {"a": 33.3, "b": 33.3, "c": 33.4}}]
    result = run(tmp_path, c, prices("12.34"), ownership={"rules": rules})
    paid = payers(result)
    assert sum(paid.values()) == result.node_cost == Decimal("12.339999996")
    for team, percent in (("a", "33.3"), ("b", "33.3"), ("c", "33.4")):
        assert abs(paid[team] - result.node_cost * Decimal(percent) / 100) < Decimal("1e-8")


@pytest.mark.parametrize("split", [{"a": 60, "b": 30}, {"a": 60, "b": 50}, {"a": 110, "b": -10}, {}])
def test_t2_percentages_that_do_not_add_up_to_100_are_refused(tmp_path: Path, split: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"ownership\.rules\.0"):
        owned(tmp_path, ownership={"rules": [{"match": {}, "split": split}]})


def test_t3_what_nobody_used_is_the_platforms(tmp_path: Path) -> None:
    # Four cards of 6.00, 2.00 for each eighth of one: one is silent, one is nobody's, one has a MIG instance of half
    # of it, and red's has 8 of 80 GiB in use by no pod.
    c = exclusive(8)
    c.hole("gpu_process", (0, 60))
    c.process("n1", "", 8)
    c.gpu("n1", "GPU-1")
    c.gpu("n1", "GPU-2", instance="1", profile="3g.40gb", size=40)
    result = run(tmp_path, c, prices("24.00", gpus=4), ownership={"platform": "ops"})
    assert result.charges == money(
        {
            ("ops", "unobserved"): "6.00",
            ("ops", "unallocated"): "9.00",  # a card, and the instance
            ("ops", "unpartitioned"): "3.00",
            ("ops", "used"): "0.60",
            ("red", "idle"): "5.40",
        }
    )


def eight_cards(*teams: str) -> Cluster:
    """A node with eight cards of 1.50 each: red holds three, blue one, the others nobody."""
    c = Cluster()
    c.node("n1")
    for i in range(8):
        c.gpu("n1", f"GPU-{i}", pods=[f"apps/{teams[i]}"] if i < len(teams) else [])
    for team in sorted(set(teams)):
        c.pod(f"apps/{team}", team=team, node="n1", request=0)
    return c


EIGHT = prices("12.00", gpus=8)


def amounts(result: Result) -> Charges:
    """finance.csv by (team, kind)."""
    sums: Charges = {}
    for line in result.lines:
        key = (line["team"], line["kind"])
        sums[key] = sums.get(key, Decimal(0)) + Decimal(line["amount"])
    return sums


HELD = {("red", "idle"): "4.50", ("blue", "idle"): "1.50", ("platform", "unallocated"): "6.00"}


@pytest.mark.parametrize(
    ("shared", "lines", "invoices"),
    [
        ("platform", {}, {"red": "4.50", "blue": "1.50", "platform": "6.00"}),
        # 6.00 in proportion to 4.50 and 1.50
        (
            "proportional",
            {("red", "shared"): "4.50", ("blue", "shared"): "1.50", ("platform", "shared"): "-6.00"},
            {"red": "9.00", "blue": "3.00", "platform": "0.00"},
        ),
        (
            "even",
            {("red", "shared"): "3.00", ("blue", "shared"): "3.00", ("platform", "shared"): "-6.00"},
            {"red": "7.50", "blue": "4.50", "platform": "0.00"},
        ),
    ],
)
def test_t3_what_the_platform_has_is_handed_on(
    tmp_path: Path, shared: str, lines: dict[tuple[str, str], str], invoices: dict[str, str]
) -> None:
    result = run(tmp_path, eight_cards("red", "red", "red", "blue"), EIGHT, allocation={"shared": shared})
    assert amounts(result) == money(HELD | lines)
    assert result.invoices == {team: Decimal(amount) for team, amount in invoices.items()}
    assert result.manifest["billed"] == "12.00"


def test_t3_shares_that_do_not_come_out_even_add_up_to_the_cent(tmp_path: Path) -> None:
    # 7.50 in three: 2.50 each. In proportion: 2/4.5 and so on of 7.50: all of 12.00 is billed.
    c = eight_cards("red", "green", "blue")
    even = run(tmp_path / "even", c, EIGHT, allocation={"shared": "even"})
    assert even.invoices == {"red": 4, "green": 4, "blue": 4, "platform": 0}
    c = eight_cards("red", "red", "red", "green", "green", "blue", "blue")
    part = run(tmp_path / "part", c, EIGHT, allocation={"shared": "proportional"})
    # 1.50 as 3, 2 and 2 of 7: 0.643, 0.429, 0.429
    assert part.invoices == {team: Decimal(a) for team, a in
                             {"red": "5.14", "green": "3.43", "blue": "3.43", "platform": "0.00"}.items()}  # fmt: skip
    assert sum(part.invoices.values()) == 12


@pytest.mark.parametrize("shared", ["proportional", "even"])
def test_t3_where_there_is_no_one_to_hand_it_to_it_stays(tmp_path: Path, shared: str) -> None:
    result = run(tmp_path, eight_cards(), EIGHT, allocation={"shared": shared})
    assert amounts(result) == money({("platform", "unallocated"): "12.00"})


@pytest.mark.parametrize("shared", ["proportional", "even"])
def test_t3_what_the_platforms_own_pods_used_stays_the_platforms(tmp_path: Path, shared: str) -> None:
    # The platform team holds two cards itself, 3.00; the 6.00 of the four free ones go to red, who holds two.
    c = eight_cards("platform", "platform", "red", "red")
    result = run(tmp_path, c, EIGHT, allocation={"shared": shared})
    assert result.invoices == {"platform": 3, "red": 9}


def test_t3_idle_that_is_the_platforms_is_handed_on_too(tmp_path: Path) -> None:
    # 1.50 of 6.00 is used by red; 4.50 idle are the platform's by choice, and handed on by choice.
    result = run(tmp_path, exclusive(20), allocation={"idle": "platform", "shared": "even"})
    assert result.invoices == {"red": 6, "platform": 0}
