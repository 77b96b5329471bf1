"""docs/metrics.md says what the code does: every metric, every label, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from semel.service.metrics import (
    ANSWERS,
    DELIVERIES,
    FAMILIES,
    INBOX_DEPTH,
    LABELS_MAX,
    LEDGER_BREAKER_MOVES,
    LEDGER_FAILURES,
    NOTIFICATIONS,
    OUTBOX_DEPTH,
    SOURCE_DELIVERIES,
)

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text("utf-8")
SUFFIXES = ("", "_bucket", "_count", "_sum")


def rows(heading: str) -> list[list[str]]:
    """The table under a heading, without its first two lines."""
    _, _, rest = PAGE.partition(f"| {heading} |")
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_lists_every_metric_as_it_is() -> None:
    expected = [
        [f"`{family.name}`", family.kind, ", ".join(f"`{label}`" for label in family.labels) or "–", family.help]
        for family in FAMILIES
    ]
    assert rows("metric") == expected


def test_the_page_mentions_no_metric_that_does_not_exist() -> None:
    known = {family.name + suffix for family in FAMILIES for suffix in SUFFIXES if not suffix or family.bounds}
    assert set(re.findall(r"\bsemel_\w+", PAGE)) - known == set()


def test_every_label_is_explained_with_all_its_values() -> None:
    explained = {name: cell for names, cell in rows("label") for name in re.findall(r"`(\w+)`", names)}
    assert set(explained) == {label for family in FAMILIES for label in family.labels} - {"version", "python"}
    of_events = (DELIVERIES, ANSWERS, LEDGER_FAILURES, LEDGER_BREAKER_MOVES, INBOX_DEPTH, SOURCE_DELIVERIES)
    for family in (*of_events, NOTIFICATIONS, OUTBOX_DEPTH):
        assert re.findall(r"`([^`]+)`", explained[family.labels[-1]]) == list(family.among)


def test_the_limit_in_the_page_is_the_one_of_the_code() -> None:
    assert re.search(rf"\b{LABELS_MAX}\s+handlers, endpoints and destinations", PAGE)
