"""What came of replaying and discarding, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import to_builtins
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from semel.cli.operating import ledger_tables
from semel.cli.operating.breakers import OpenBreaker
from semel.cli.operating.deciding import INBOX, NEXT_DELIVERY, PAST, Report
from semel.cli.operating.words import counted, moment, plain

SHOWN = 20  # keys and problems that are told one by one

TO_INBOX = "in the inbox: the service that runs takes it, or the next `semel run`"
TO_NOBODY = "its event is not kept here: the next delivery of it is acted on, so have it sent again"
PERHAPS_INBOX = "in the inbox, where a running service takes them, or free to be claimed again"
NO_INBOX = "free to be claimed again: have them sent once more (`semel dead show KEY --raw`): there is no inbox here"


def as_json(report: Report, breakers: Sequence[OpenBreaker] = ()) -> str:
    outcomes = {
        **dict.fromkeys(report.decided, PAST[report.what]),
        **dict.fromkeys(report.already, "already decided"),
        **dict.fromkeys(report.succeeded, "refused: done"),
        **dict.fromkeys(report.not_dead, "not dead"),
        **dict.fromkeys(report.failed, "failed"),
    }
    otherwise = f"would be {PAST[report.what]}" if report.dry_run else "not tried"
    events = [
        {"key": one.key, "state": one.state, "outcome": outcomes.get(one.key, otherwise)}
        | ({"goes_to": report.goes[one.key]} if one.key in report.goes else {})
        for one in report.chosen
    ]
    return ledger_tables.as_json(
        {
            **({"breakers": [to_builtins(one) for one in breakers]} if breakers else {}),
            "decision": report.what,
            "dry_run": report.dry_run,
            "chosen": len(report.chosen),
            PAST[report.what]: len(report.decided),
            "already_decided": len(report.already),
            "refused": len(report.succeeded),
            "not_dead": len(report.not_dead),
            "failed": len(report.failed),
            "not_tried": report.not_tried,
            "problems": dict(list(report.failed.items())[:SHOWN]),
            "events": events,
        }
    )


def as_tables(report: Report) -> RenderableType:
    if not report.chosen:
        return Text("Nothing matches: nothing to decide about.")
    if report.dry_run:
        return Group(
            Text(f"{len(report.waiting):,} would be {PAST[report.what]}. Nothing was changed."), *_left_alone(report)
        )
    return _closing(report)


def _closing(report: Report) -> RenderableType:
    rows = [
        (PAST[report.what], len(report.decided), _note(report) if report.decided else ""),
        ("decided already", len(report.already), "not dead any more; left alone" if report.already else ""),
        ("failed", len(report.failed), ""),
    ]
    if report.not_dead:
        rows.insert(2, ("not dead", len(report.not_dead), "left alone"))
    if report.succeeded:
        rows.insert(2, ("refused", len(report.succeeded), "they have succeeded; left alone"))
    if report.not_tried:
        rows.append(("not tried", report.not_tried, "the ledger failed too often; try again later"))
    table = tally(rows)
    gone = report.decided[:SHOWN] if report.what == "discard" else []  # from the lists: here is how to find them
    told = [Text(f"{key}: discarded, known by this whole key") for key in gone]
    told += _left_alone(report)
    told += [Text(plain(f"{key}: {why}")) for key, why in list(report.failed.items())[:SHOWN]]
    return Group(table, *told)


def tally(rows: Sequence[tuple[str, int, str]]) -> Table:
    """How many of each, and what is to be known about them."""
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    noted = any(note for _, _, note in rows)
    for name, count, note in rows:
        table.add_row(name, f"{count:,}", *([note] if noted else []))
    return table


def _note(report: Report) -> str:
    """Where the replayed ones are taken from."""
    if report.what == "discard":
        return ""
    if not report.to_inbox:
        return NO_INBOX
    where = list(report.goes.values())
    if len(where) == len(report.decided) == 1:
        return TO_INBOX if where[0] == INBOX else TO_NOBODY
    if len(where) == len(report.decided):
        kept, elsewhere = where.count(INBOX), where.count(NEXT_DELIVERY)
        told = [f"{kept:,} in the inbox: the service that runs takes them, or the next `semel run`"] if kept else []
        if elsewhere:
            told.append(f"{counted(elsewhere, 'event')} not kept here: the next delivery is acted on")
        return "; ".join(told)
    return PERHAPS_INBOX


def _left_alone(report: Report) -> list[Text]:
    told = [f"{key}: decided already" for key in report.already[:SHOWN]]
    told += [
        f"{key}: it succeeded on {moment(at_ms)}; --force runs it again: its effect will happen twice"
        for key, at_ms in list(report.succeeded.items())[:SHOWN]
    ]
    told += [f"{key}: it is {state}, not dead" for key, state in list(report.not_dead.items())[:SHOWN]]
    return [Text(line) for line in told]
