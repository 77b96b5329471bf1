"""What came of sending many once more, for people and for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from semel.cli.notifying import judging_view
from semel.cli.notifying.repeating import Repeated
from semel.cli.operating.deciding_view import SHOWN, tally
from semel.cli.operating.words import plain, short

PENDING = "pending: sent by the relay that runs, or by the next `semel relay --once`"


def as_json(report: Repeated) -> dict[str, Any]:
    """As of a decision; each notification with its new generation, if it has one."""
    members = judging_view.as_json(report)
    for one in members["notifications"]:
        if one["id"] in report.made:
            one["made"] = report.made[one["id"]]
        if one["id"] in report.refused:
            one["why"] = report.refused[one["id"]]
    return members


def as_tables(report: Repeated) -> RenderableType:
    if not report.chosen:
        return Text("Nothing matches: nothing to send.")
    if report.dry_run:
        return Group(Text(f"{len(report.waiting):,} would be sent again. Nothing was changed."), *_left_alone(report))
    rows = [
        ("sent again", len(report.decided), PENDING if report.decided else ""),
        ("left alone", len(report.already), "sent again before, or not by a filter" if report.already else ""),
        ("refused", len(report.refused), "left alone" if report.refused else ""),
        ("failed", len(report.failed), ""),
    ]
    if report.not_tried:
        rows.append(("not tried", report.not_tried, "the outbox failed too often; try again later"))
    failed = [Text(plain(f"{id}: {why}")) for id, why in list(report.failed.items())[:SHOWN]]
    return Group(tally(rows), *_left_alone(report), *failed)


def _left_alone(report: Repeated) -> list[Text]:
    told = [f"{short(id)} is {why}" for id, why in list(report.already.items())[:SHOWN]]
    told += [f"{short(id)}: {why}" for id, why in list(report.refused.items())[:SHOWN]]
    return [Text(plain(line)) for line in told]
