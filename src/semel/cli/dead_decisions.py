"""Replays and discards dead and uncertain events (`bulk_decision` has the common part)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.text import Text

from semel.cli import bulk_decision, tables
from semel.cli.breakers import OpenBreaker
from semel.cli.bulk_decision import PREVIEW_BATCH, SHOWN, BulkReport, Confirm
from semel.cli.describe import counted, moment
from semel.cli.find import DEAD_STATES, Filters, every_entry, find_key
from semel.cli.ledger_place import Place, opened
from semel.core.dead_letter_store import inbox_of
from semel.ports import Catalog, DeadLetters, Entry
from semel.values.errors import ConfigError, SemelError

FOLLOWED_MAX = 20  # replayed events whose destination is looked up: one read each

Action: TypeAlias = Literal["replay", "discard"]
Preview: TypeAlias = Callable[[Sequence[Entry]], None]

PAST = {"replay": "replayed", "discard": "discarded"}
INBOX, NEXT_DELIVERY = "inbox", "next delivery"  # where a replayed event is taken from

TO_INBOX = "in the inbox: the running service takes it, or the next `semel run`"
TO_NEXT_DELIVERY = "its event is not stored here: the next delivery of it is processed, so have it sent again"
TO_EITHER = "in the inbox, where a running service takes them, or free to be claimed again"
NO_INBOX = "free to be claimed again: have them sent once more (`semel dead show KEY --raw`): there is no inbox here"


class DeadLetterRequest(Struct, frozen=True, kw_only=True):
    """The options of one command."""

    action: Action
    keys: list[str]
    every: bool
    state: str | None
    wanted: Filters
    reason: str
    by: str
    rate: float | None = None
    dry_run: bool = False
    force: bool = False

    @property
    def filtered(self) -> bool:
        return bool(self.every or self.wanted.any or self.state)


class DeadLetterReport(BulkReport, kw_only=True):
    """The result. `refused` has the time at which a named event succeeded."""

    action: Action
    to_inbox: bool = True  # False: the ledger has no inbox, so the source must deliver the event again
    taken_from: dict[str, str] = field(default_factory=dict)  # of replayed events, as far as looked up
    not_dead: dict[str, str] = field(default_factory=dict)  # named, but in this state: needs no decision

    @property
    def left_alone(self) -> tuple[dict[str, str], ...]:
        return self.already, self.refused, self.not_dead

    def outcome(self, name: str, past: str) -> str:
        if name in self.not_dead:
            return "not dead"
        outcome = super().outcome(name, past)
        return "refused: done" if outcome == "refused" else outcome


def run(
    where: Place,
    request: DeadLetterRequest,
    console: Console,
    confirm: Confirm | None,
    preview: Preview | None = None,
) -> DeadLetterReport:
    """Choose, confirm and decide. `preview` gets the chosen events in batches.

    Raises ConfigError, before any decision, for a request that cannot work.
    """
    _check(request)
    report = asyncio.run(_choose(where, request, preview))
    waiting = report.waiting
    repeats = _warn_of_repeats(report, request, console)
    if request.dry_run or not waiting:
        return report
    unambiguous = len(request.keys) == 1 and not repeats
    question = "" if unambiguous else f"{request.action.capitalize()} {counted(len(waiting), 'event')}?"

    async def decide(advance: Callable[[], None]) -> None:
        await _decide(where, request, report, waiting, advance)

    bulk_decision.decide_all(report, PAST[request.action], question, decide, console, confirm)
    return report


def _check(request: DeadLetterRequest) -> None:
    if request.keys and request.filtered:
        raise ConfigError("pass keys, or --all or filters: not both")
    if request.force and not request.keys:
        raise ConfigError("--force needs keys: it repeats events that succeeded, and a filter would repeat hundreds")
    if not (request.keys or request.filtered):
        raise ConfigError(f"which ones? Pass keys, or --all or filters (semel dead {request.action} --help)")
    bulk_decision.check_reason(request.reason, request.by, request.dry_run)


def _warn_of_repeats(report: DeadLetterReport, request: DeadLetterRequest, console: Console) -> bool:
    """True when a replay may repeat an effect: such a replay always needs a confirmation."""
    if request.action != "replay":
        return False
    states = [report.chosen[key] for key in report.waiting]
    uncertain, done = states.count("uncertain"), states.count("done")
    if uncertain:
        console.print(
            f"{uncertain:,} uncertain: the effect may have happened, and a replay would repeat it.", style="yellow"
        )
    if done:
        console.print(f"{done:,} done: the effect has happened, and will happen twice.", style="yellow")
    return bool(uncertain or done)


# ------------------------------------------------------------------------------------------------------- choosing


async def _choose(where: Place, request: DeadLetterRequest, preview: Preview | None) -> DeadLetterReport:
    async with opened(where, reads=True) as ledger:
        if not isinstance(ledger, DeadLetters):
            raise ConfigError(f"ledger {where}: this kind of ledger stores no dead letters; set dead_letters")
        report = DeadLetterReport(request.dry_run, action=request.action, to_inbox=inbox_of(ledger) is not None)
        if request.keys:
            await _choose_named(ledger, request, report, preview)
        else:
            await _choose_by_filter(ledger, request, report, preview)
    return report


async def _choose_by_filter(
    catalog: Catalog, request: DeadLetterRequest, report: DeadLetterReport, preview: Preview | None
) -> None:
    """Keeps keys and states only: the events themselves are in memory one page at a time."""
    batch: list[Entry] = []
    async for entry in every_entry(catalog, request.state or "dead", request.wanted):
        report.chosen[entry.key] = entry.state
        if preview is not None:
            batch.append(replace(entry, event=None, result=None))
            if len(batch) == PREVIEW_BATCH:
                preview(batch)
                batch = []
    if preview is not None and batch:
        preview(batch)


async def _choose_named(
    catalog: Catalog, request: DeadLetterRequest, report: DeadLetterReport, preview: Preview | None
) -> None:
    keys = {await find_key(catalog, text, DEAD_STATES): None for text in request.keys}
    found: list[Entry] = []
    for key in keys:
        history = await catalog.history(key)
        if not history:
            raise ConfigError(f"there is no event with the key {key}, or its retention has ended; nothing was done")
        found.append(history[0])
        report.chosen[history[0].key] = history[0].state
        _sort_out(history, request, report)
    waiting = set(report.waiting)
    if preview is not None and waiting:
        preview([entry for entry in found if entry.key in waiting])


def _sort_out(history: Sequence[Entry], request: DeadLetterRequest, report: DeadLetterReport) -> None:
    """Record why a named event needs no decision, if it needs none.

    A dead letter may remain although its key is done, if the ledger had lost the key. It can be discarded, but not
    replayed.
    """
    present = history[0]
    if present.state in DEAD_STATES:
        return
    if request.action == "replay" and present.state == "done":
        if not request.force:
            report.refused[present.key] = moment(present.at_ms)
    elif request.action == "discard" and any(entry.state in DEAD_STATES for entry in history):
        return
    elif any(entry.decision for entry in history):
        report.already[present.key] = present.state
    else:
        report.not_dead[present.key] = present.state


# ------------------------------------------------------------------------------------------------------- deciding


async def _decide(
    where: Place,
    request: DeadLetterRequest,
    report: DeadLetterReport,
    waiting: Sequence[str],
    advance: Callable[[], None],
) -> None:
    async with opened(where) as ledger:
        store = ledger
        assert isinstance(store, DeadLetters)

        async def decide(key: str) -> bool:
            if request.action == "discard":
                return await store.discard(key, request.reason, request.by)
            return await store.replay(key, request.reason, request.by, force=request.force)

        def record(key: str, taken: bool) -> None:
            (report.decided if taken else report.already)[key] = ""

        complete = await bulk_decision.decide_each(report, waiting, decide, record, advance, request.rate)
        if complete and request.action == "replay" and len(report.decided) <= FOLLOWED_MAX:
            await _look_up_destinations(ledger, report)


async def _look_up_destinations(catalog: Catalog, report: DeadLetterReport) -> None:
    """Find where the replayed events are taken from. The replay holds also when this look-up fails."""
    if not report.to_inbox:
        report.taken_from = dict.fromkeys(report.decided, NEXT_DELIVERY)
        return
    try:
        for key in report.decided:
            history = await catalog.history(key)
            state = history[0].state if history else ""
            report.taken_from[key] = INBOX if state in ("accepted", "leased", "waiting", "done") else NEXT_DELIVERY
    except SemelError:
        return


# ------------------------------------------------------------------------------------------------------ reporting


def to_json(report: DeadLetterReport, breakers: Sequence[OpenBreaker] = ()) -> str:
    past = PAST[report.action]
    members: dict[str, Any] = {"breakers": [to_builtins(breaker) for breaker in breakers]} if breakers else {}
    members |= bulk_decision.summary_members(report, report.action, decided=past)
    members["not_dead"] = len(report.not_dead)
    members["events"] = [
        {"key": key, "state": state, "outcome": report.outcome(key, past)}
        | ({"goes_to": report.taken_from[key]} if key in report.taken_from else {})
        for key, state in report.chosen.items()
    ]
    return tables.as_json(members)


def as_tables(report: DeadLetterReport) -> RenderableType:
    if not report.chosen:
        return Text("Nothing matches: nothing to decide about.")
    past = PAST[report.action]
    if report.dry_run:
        return Group(Text(f"{len(report.waiting):,} would be {past}. Nothing was changed."), *_left_alone(report))
    rows = [
        (past, len(report.decided), _destination_note(report) if report.decided else ""),
        ("decided already", len(report.already), "not dead any more; left alone" if report.already else ""),
        *([("refused", len(report.refused), "they have succeeded; left alone")] if report.refused else []),
        *([("not dead", len(report.not_dead), "left alone")] if report.not_dead else []),
        ("failed", len(report.failed), ""),
    ]
    # Discarded events are in no list any more: the whole key is the only way to find them.
    discarded = list(report.decided)[:SHOWN] if report.action == "discard" else []
    return Group(
        bulk_decision.summary_table(report, rows, "ledger"),
        *(Text(f"{key}: discarded, known by this whole key") for key in discarded),
        *_left_alone(report),
        *bulk_decision.problems(report),
    )


def _destination_note(report: DeadLetterReport) -> str:
    """Where the replayed events are taken from."""
    if report.action == "discard":
        return ""
    if not report.to_inbox:
        return NO_INBOX
    destinations = list(report.taken_from.values())
    if len(destinations) != len(report.decided):
        return TO_EITHER
    if len(destinations) == 1:
        return TO_INBOX if destinations[0] == INBOX else TO_NEXT_DELIVERY
    in_inbox, elsewhere = destinations.count(INBOX), destinations.count(NEXT_DELIVERY)
    notes = [f"{in_inbox:,} in the inbox: the running service takes them, or the next `semel run`"] if in_inbox else []
    if elsewhere:
        notes.append(f"{counted(elsewhere, 'event')} not stored here: the next delivery is processed")
    return "; ".join(notes)


def _left_alone(report: DeadLetterReport) -> list[Text]:
    lines = [f"{key}: decided already" for key in list(report.already)[:SHOWN]]
    lines += [
        f"{key}: it succeeded on {when}; --force runs it again: its effect will happen twice"
        for key, when in list(report.refused.items())[:SHOWN]
    ]
    lines += [f"{key}: it is {state}, not dead" for key, state in list(report.not_dead.items())[:SHOWN]]
    return [Text(line) for line in lines]
