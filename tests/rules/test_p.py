"""Rules P: which price entry is in force, and how a node was bought."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from clusters import BOX, START, as_yaml, exclusive, prices, run

from chargeback.errors import ConfigError

HALF_PAST = START + timedelta(minutes=30)


def test_p1_an_entry_is_in_force_from_its_beginning_up_to_not_including_its_end(tmp_path: Path) -> None:
    # One ends and one begins at 10:30: half an hour of 6.00 and one of 12.00, and no window twice or not at all.
    book = prices(
        prices=[
            {"instance_type": BOX, "per_hour": "6.00", "to": HALF_PAST},
            {"instance_type": BOX, "per_hour": "12.00", "from": HALF_PAST},
        ]
    )
    result = run(tmp_path, exclusive(), book)
    assert result.node_cost == Decimal("9.00")
    assert {row["price"].split(" ")[0]: row["cost"] for row in result.rows if row["kind"] == "idle"} == {
        "prices.yaml#1": Decimal("2.25"),
        "prices.yaml#2": Decimal("4.50"),
    }


@pytest.mark.parametrize(
    "second",
    [
        {},
        {"from": HALF_PAST},
        {"to": START},
        {"from": START - timedelta(days=400), "to": HALF_PAST},
    ],
)
def test_p1_two_entries_of_a_book_in_force_at_once_for_one_key_are_an_error(
    tmp_path: Path, second: dict[str, Any]
) -> None:
    entries = [{"instance_type": BOX, "per_hour": price} for price in ("6.00", "12.00")]
    with pytest.raises(ConfigError, match=r"prices\.yaml.*P1"):
        run(tmp_path, exclusive(), prices(prices=[entries[0], entries[1] | second]))


def test_p1_entries_of_different_keys_do_not_collide(tmp_path: Path) -> None:
    entries = [
        {"instance_type": BOX, "per_hour": "6.00"},
        {"instance_type": BOX, "purchase_option": "spot", "per_hour": "3.00"},
        {"instance_type": BOX, "region": "east", "per_hour": "7.00"},
        {"node": BOX, "per_hour": "8.00"},
    ]
    assert run(tmp_path, exclusive(), prices(prices=entries)).node_cost == 6


def test_p1_a_later_book_replaces_an_earlier_ones_entries_for_the_same_key(tmp_path: Path) -> None:
    # The second book's price for a box on demand is in force from 10:30 only: before that there is none of this key
    # any more, and the first book's entry without an option holds.
    first = prices(
        prices=[
            {"instance_type": BOX, "per_hour": "6.00"},
            {"instance_type": BOX, "purchase_option": "on-demand", "per_hour": "600.00"},
        ]
    )
    second = prices(
        prices=[{"instance_type": BOX, "purchase_option": "on-demand", "per_hour": "12.00", "from": HALF_PAST}]
    )
    (tmp_path / "second.yaml").write_text(as_yaml(second))
    result = run(tmp_path, exclusive(), first, pricing={"books": ["prices.yaml", "second.yaml"]})
    assert result.node_cost == Decimal("9.00")


def test_p1_an_entry_that_ends_before_it_begins_is_an_error(tmp_path: Path) -> None:
    book = prices(prices=[{"instance_type": BOX, "per_hour": "6.00", "from": HALF_PAST, "to": START}])
    with pytest.raises(ConfigError, match=r"to is not after from"):
        run(tmp_path, exclusive(), book)


BY_OPTION = prices(
    prices=[
        {"instance_type": BOX, "purchase_option": option, "per_hour": price}
        for option, price in (("on-demand", "12.00"), ("spot", "24.00"), ("reserved", "36.00"), ("owned", "48.00"))
    ]
)


@pytest.mark.parametrize(
    ("labels", "cost"),
    [
        ({}, 12),
        ({"label_karpenter_sh_capacity_type": "spot"}, 24),
        ({"label_karpenter_sh_capacity_type": "on-demand"}, 12),
        ({"label_karpenter_sh_capacity_type": "reserved"}, 36),
        ({"label_eks_amazonaws_com_capacity_type": "SPOT"}, 24),
        ({"label_eks_amazonaws_com_capacity_type": "ON_DEMAND"}, 12),
        ({"label_eks_amazonaws_com_capacity_type": "CAPACITY_BLOCK"}, 36),
        ({"label_cloud_google_com_gke_spot": "true"}, 24),
        ({"label_cloud_google_com_gke_spot": "false"}, 12),
        ({"label_cloud_google_com_gke_preemptible": "true"}, 24),
        ({"label_kubernetes_azure_com_scalesetpriority": "spot"}, 24),
        ({"label_kubernetes_azure_com_scalesetpriority": "regular"}, 12),
    ],
)
def test_p2_a_nodes_purchase_option_comes_from_its_labels(tmp_path: Path, labels: dict[str, str], cost: int) -> None:
    c = exclusive()
    c.hole("kube_node_labels", (0, 60))
    c.node("n1", labels=labels)
    assert run(tmp_path, c, BY_OPTION).node_cost == cost


def test_p2_an_override_comes_before_labels(tmp_path: Path) -> None:
    c = exclusive()
    c.hole("kube_node_labels", (0, 60))
    c.node("n1", labels={"label_karpenter_sh_capacity_type": "spot"})
    nodes = [{"match": "n*", "purchase_option": "owned"}, {"match": "n1", "purchase_option": "reserved"}]
    result = run(tmp_path, c, BY_OPTION, nodes=nodes)
    assert result.node_cost == 48  # the first match wins
    assert {row["purchase_option"] for row in result.rows} == {"owned"}


def test_p2_without_labels_the_configured_default_holds(tmp_path: Path) -> None:
    pricing = {"books": ["prices.yaml"], "default_purchase_option": "reserved"}
    assert run(tmp_path, exclusive(), BY_OPTION, pricing=pricing).node_cost == 36


def test_p2_a_node_of_no_known_type_can_be_given_one(tmp_path: Path) -> None:
    c = exclusive()
    c.hole("kube_node", (0, 60))
    nodes = [{"match": "n1", "instance_type": BOX, "region": "dc1", "purchase_option": "owned"}]
    result = run(tmp_path, c, BY_OPTION, nodes=nodes)
    assert result.node_cost == 48
    assert {(row["instance_type"], row["region"]) for row in result.rows} == {(BOX, "dc1")}


def test_p2_an_unknown_option_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"purchase_option"):
        run(tmp_path, exclusive(), prices(prices=[{"instance_type": BOX, "purchase_option": "lease", "per_hour": "1"}]))
