"""A team's folder is one plain name, its own on every disk."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargeback.reports.folders import team_folders


def test_a_plain_name_is_its_own_folder() -> None:
    names = ["research", "team-7", "a", "x" * 60]
    assert team_folders(names) == {n: n for n in names}


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Research", "research"),
        ("ML / Ops", "ml-ops"),
        ("../../etc/passwd", "etc-passwd"),
        ("..", "team"),
        ("", "team"),
        ("研究", "team"),
        ("Zürich", "zurich"),
        ("a--b", "a-b"),
        ("-a", "a"),
        ("con", "con"),
        ("lpt1", "lpt1"),
        ("x" * 61, "x" * 51),
        ("a\0b\nc", "a-b-c"),
    ],
)
def test_any_other_has_a_digest_behind_its_slug(name: str, slug: str) -> None:
    assert re.fullmatch(re.escape(slug) + "-[0-9a-f]{8}", team_folders([name])[name])


def test_names_that_differ_in_case_do_not_share_a_folder() -> None:
    folders = team_folders(["research", "Research", "RESEARCH"])
    assert folders["research"] == "research"
    assert len(set(folders.values())) == 3


def test_a_name_that_looks_like_the_folder_of_another_does_not_take_it() -> None:
    taken = team_folders(["Research"])["Research"]
    folders = team_folders(["Research", taken])
    assert len(set(folders.values())) == 2


@given(st.sets(st.one_of(st.text(), st.sampled_from(["Team", "team", "TEAM", "nul", "", "team/", "\ud800"]))))
def test_folders_are_plain_and_differ_and_order_does_not_matter(names: set[str]) -> None:
    folders = team_folders(names)
    assert folders.keys() == names
    assert len({f.casefold() for f in folders.values()}) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", f) and len(f) <= 60 for f in folders.values())
    assert team_folders(sorted(names, reverse=True)) == folders
