"""What came of resolving and cancelling, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from semel.cli.notifying.judging import PAST, Report
from semel.cli.notifying.meaning import RESOLVE, short_id
from semel.cli.operating.deciding_view import SHOWN, tally
from semel.cli.operating.words import plain, short

NOTES = {
    "accepted": "it counts as sent, by your word",
    "pending": "to be sent by the relay that runs, or by the next `semel relay --once`",
    "failed": "nothing more is sent",
    "cancelled": "nothing is sent",
    "expired": "its time was over, and nothing is sent; `semel notify resend` makes a new one",
}
IN_DOUBT = "uncertain now: an attempt of theirs may have left, so resolve them"


def as_json(report: Report) -> dict[str, Any]:
    otherwise = f"would be {PAST[report.says]}" if report.dry_run else "not tried"
    notifications = [
        {"id": id, "state": report.decided.get(id, state), "outcome": _outcome(report, id) or otherwise}
        for id, state in report.chosen.items()
    ]
    return {
        "decision": report.says,
        "dry_run": report.dry_run,
        "chosen": len(report.chosen),
        "decided": len(report.decided),
        "already_decided": len(report.already),
        "refused": len(report.refused),
        "failed": len(report.failed),
        "not_tried": report.not_tried,
        "problems": dict(list(report.failed.items())[:SHOWN]),
        "notifications": notifications,
    }


def _outcome(report: Report, id: str) -> str:
    outcomes: tuple[tuple[str, Mapping[str, str]], ...] = (
        (PAST[report.says], report.decided),
        ("already decided", report.already),
        ("refused", report.refused),
        ("failed", report.failed),
    )
    return next((outcome for outcome, ids in outcomes if id in ids), "")


def as_tables(report: Report) -> RenderableType:
    if not report.chosen:
        return Text("Nothing matches: nothing to decide about.")
    if report.dry_run:
        told = f"{len(report.waiting):,} would be {PAST[report.says]}. Nothing was changed."
        return Group(Text(told), *_left_alone(report))
    if len(report.chosen) == 1 and not report.failed:
        return Group(*_decided(report), *_left_alone(report))
    in_doubt = [id for id, state in report.decided.items() if state == "uncertain"]
    firmly = {id: state for id, state in report.decided.items() if state != "uncertain"}
    rows = [
        (PAST[report.says], len(firmly), _note(next(iter(firmly.values()), ""))),
        ("decided already", len(report.already), "left alone" if report.already else ""),
        ("refused", len(report.refused), "left alone" if report.refused else ""),
        ("failed", len(report.failed), ""),
    ]
    if in_doubt:
        rows.insert(1, ("in doubt", len(in_doubt), IN_DOUBT))
    if report.not_tried:
        rows.append(("not tried", report.not_tried, "the outbox failed too often; try again later"))
    failed = [Text(plain(f"{id}: {why}")) for id, why in list(report.failed.items())[:SHOWN]]
    return Group(tally(rows), *_left_alone(report), *failed)


def _decided(report: Report) -> Iterator[Text]:
    for id, state in report.decided.items():
        if state == "uncertain":
            told = f"uncertain now: an attempt of it may have left. {RESOLVE.format(short_id(id))}"
        else:
            told = _note(state)
        yield Text(f"{short(id)} is {told}")


def _note(state: str) -> str:
    return f"{state} now: {NOTES[state]}" if state in NOTES else state


def _left_alone(report: Report) -> list[Text]:
    told = [f"{short(id)} is {state} already" for id, state in list(report.already.items())[:SHOWN]]
    told += [
        f"{short(id)} is {state}: {_why_not(report.says, state, id)}"
        for id, state in list(report.refused.items())[:SHOWN]
    ]
    return [Text(line) for line in told]


def _why_not(says: str, state: str, id: str) -> str:
    match says, state:
        case _, "sending":
            return "it is leaving at this moment: wait for what comes of it"
        case "cancelled" | "given_up", "pending":
            return "a relay has it in its hands at this moment: try again"
        case _, "pending":
            return f"a relay is about to send it; to stop that: semel notify cancel {short_id(id)} --reason TEXT"
        case _, "uncertain":
            return f"it may have been sent: {RESOLVE.format(short_id(id))}"
    return "it is over, and nobody has to decide about it"
