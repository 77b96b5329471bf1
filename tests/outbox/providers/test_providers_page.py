"""docs/providers.md names every kind and every option, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from semel.adapters.providers.kinds import HTTP, KINDS

PAGE = (Path(__file__).parents[3] / "docs" / "providers.md").read_text("utf-8")
SECTIONS = {
    found[1]: section
    for section in PAGE.split("\n## ")
    if (found := re.search(r'^`kind = "([a-z-]+)"`', section, re.MULTILINE)) is not None
}


def options(section: str) -> list[tuple[str, bool]]:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", section, re.MULTILINE)
    return [(name, "(**needed**)" in says) for name, says in rows]


def test_the_table_of_kinds_names_all_of_them() -> None:
    assert re.findall(r"^\| \[`([a-z-]+)`\]", PAGE, re.MULTILINE) == list(KINDS) == list(SECTIONS)


def test_what_all_of_them_have_is_told_once() -> None:
    _, _, rest = PAGE.partition("\n## What all of them have")
    assert [name for name, _ in options(rest.partition("\n## ")[0])] == list(HTTP)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_tells_its_own_options(kind: str) -> None:
    own = [(name, option.needed) for name, option in KINDS[kind].options.items() if name not in HTTP]
    assert options(SECTIONS[kind]) == own


@pytest.mark.parametrize("kind", KINDS)
def test_channels_are_those_of_the_contract(kind: str) -> None:
    row = re.search(rf"^\| \[`{kind}`\]\([^)]*\) \| ([^|]*) \|", PAGE, re.MULTILINE)
    assert row is not None
    assert tuple(row[1].split(", ")) == KINDS[kind].contract.channels
