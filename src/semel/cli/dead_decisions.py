"""Replays and discards dead and uncertain events. `bulk_decision` has the flow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, TypeAlias

from msgspec import field, to_builtins
from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.text import Text

from semel.cli import bulk_decision, tables
from semel.cli.breakers import OpenBreaker
from semel.cli.bulk_decision import SHOWN, BulkDecision, BulkReport, BulkRequest
from semel.cli.describe import counted, moment
from semel.cli.find import DEAD_STATES, Filters, every_entry, find_key, now_ms
from semel.cli.ledger_place import Place, opened
from semel.core.dead_letter_store import inbox_of
from semel.ports import DeadLetters, Entry
from semel.values.errors import ConfigError, SemelError
from semel.wiring import StoredLedger

FOLLOWED_MAX = 20  # replayed events whose destination is looked up: one read each

Action: TypeAlias = Literal["replay", "discard"]

PAST = {"replay": "replayed", "discard": "discarded"}
INBOX, NEXT_DELIVERY = "inbox", "next delivery"  # where a replayed event is taken from

TO_INBOX = "in the inbox: the running service takes it, or the next `semel run`"
TO_NEXT_DELIVERY = "its event is not stored here: the next delivery of it is processed, so have it sent again"
TO_EITHER = "in the inbox, where a running service takes them, or free to be claimed again"
NO_INBOX = "free to be claimed again: have them sent once more (`semel dead show KEY --raw`): there is no inbox here"


class DeadLetterRequest(BulkRequest, frozen=True, kw_only=True):
    """The options of `replay` and `discard`."""

    action: Action
    state: str | None
    wanted: Filters
    force: bool = False

    @property
    def filtered(self) -> bool:
        return bool(self.every or self.wanted.any or self.state)


class DeadLetterReport(BulkReport, kw_only=True):
    """The result. `refused` has the time at which a named event succeeded."""

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


class EventDecision(BulkDecision[StoredLedger, Entry]):
    """`semel dead replay` and `semel dead discard`."""

    named, list_command = "keys", "semel dead list"

    def __init__(self, where: Place, request: DeadLetterRequest) -> None:
        self.where = where
        self.request: DeadLetterRequest = request
        self.report: DeadLetterReport = DeadLetterReport(request.dry_run)
        self.past = PAST[request.action]
        self.breakers: Sequence[OpenBreaker] = ()  # that replayed events wait for

    def open(self, *, reads: bool) -> AbstractAsyncContextManager[StoredLedger]:
        return opened(self.where, reads=reads)

    def check(self) -> None:
        if self.request.force and not self.request.names:
            raise ConfigError(
                "--force needs keys: it repeats events that succeeded, and a filter would repeat hundreds"
            )

    async def choose(self, ledger: StoredLedger) -> AsyncIterator[Entry]:
        if not isinstance(ledger, DeadLetters):
            raise ConfigError(f"ledger {self.where}: this kind of ledger stores no dead letters; set dead_letters")
        request, report = self.request, self.report
        report.to_inbox = inbox_of(ledger) is not None
        if not request.names:
            async for entry in every_entry(ledger, request.state or "dead", request.wanted):
                report.chosen[entry.key] = entry.state
                yield entry
            return
        for key in {await find_key(ledger, text, DEAD_STATES): None for text in request.names}:
            history = await ledger.history(key)
            if not history:
                raise ConfigError(f"there is no event with the key {key}, or its retention has ended; nothing was done")
            report.chosen[key] = history[0].state
            if self._needs_decision(history):
                yield history[0]

    def _needs_decision(self, history: Sequence[Entry]) -> bool:
        """Record why a named event needs no decision, if it needs none.

        A dead letter may remain although its key is done, if the ledger had lost the key. It can be discarded, but not
        replayed.
        """
        present, report, action = history[0], self.report, self.request.action
        if present.state in DEAD_STATES:
            return True
        if action == "replay" and present.state == "done":
            if self.request.force:
                return True
            report.refused[present.key] = moment(present.at_ms)
        elif action == "discard" and any(entry.state in DEAD_STATES for entry in history):
            return True
        elif any(entry.decision for entry in history):
            report.already[present.key] = present.state
        else:
            report.not_dead[present.key] = present.state
        return False

    def without_content(self, entry: Entry) -> Entry:
        return replace(entry, event=None, result=None)

    def warnings(self) -> list[str]:
        if self.request.action != "replay":
            return []
        states = [self.report.chosen[key] for key in self.report.waiting]
        uncertain, done = states.count("uncertain"), states.count("done")
        lines = []
        if uncertain:
            lines.append(f"{uncertain:,} uncertain: the effect may have happened, and a replay would repeat it.")
        if done:
            lines.append(f"{done:,} done: the effect has happened, and will happen twice.")
        return lines

    def question(self) -> str:
        """A replay that may repeat an effect always needs a confirmation; a single named event otherwise does not."""
        if len(self.request.names) == 1 and not self.warnings():
            return ""
        return f"{self.request.action.capitalize()} {counted(len(self.report.waiting), 'event')}?"

    async def decide(self, ledger: StoredLedger, key: str) -> bool:
        assert isinstance(ledger, DeadLetters)
        request = self.request
        if request.action == "discard":
            return await ledger.discard(key, request.reason, request.by)
        return await ledger.replay(key, request.reason, request.by, force=request.force)

    def record(self, key: str, answer: bool) -> None:
        (self.report.decided if answer else self.report.already)[key] = ""

    async def finish(self, ledger: StoredLedger) -> None:
        """Find where the replayed events are taken from. The replay holds also when this look-up fails."""
        report = self.report
        if self.request.action != "replay" or len(report.decided) > FOLLOWED_MAX:
            return
        if not report.to_inbox:
            report.taken_from = dict.fromkeys(report.decided, NEXT_DELIVERY)
            return
        try:
            for key in report.decided:
                history = await ledger.history(key)
                state = history[0].state if history else ""
                report.taken_from[key] = INBOX if state in ("accepted", "leased", "waiting", "done") else NEXT_DELIVERY
        except SemelError:
            return

    # ----------------------------------------------------------------------------------------------------- reporting

    def listing(self, entries: Sequence[Entry]) -> RenderableType:
        return tables.listing(entries, now_ms(), wide=False)

    def members(self) -> dict[str, Any]:
        report = self.report
        members: dict[str, Any] = {"breakers": to_builtins(list(self.breakers))} if self.breakers else {}
        members |= bulk_decision.summary_members(report, self.request.action, decided=self.past)
        members["not_dead"] = len(report.not_dead)
        members["events"] = [
            {"key": key, "state": state, "outcome": report.outcome(key, self.past)}
            | ({"goes_to": report.taken_from[key]} if key in report.taken_from else {})
            for key, state in report.chosen.items()
        ]
        return members

    def text(self) -> RenderableType:
        report, past = self.report, self.past
        if not report.chosen:
            return Text("Nothing matches: nothing to decide about.")
        lines = [f"{key}: decided already" for key in list(report.already)[:SHOWN]]
        lines += [
            f"{key}: it succeeded on {when}; --force runs it again: its effect will happen twice"
            for key, when in list(report.refused.items())[:SHOWN]
        ]
        lines += [f"{key}: it is {state}, not dead" for key, state in list(report.not_dead.items())[:SHOWN]]
        left_alone = [Text(line) for line in lines]
        if report.dry_run:
            return Group(Text(f"{len(report.waiting):,} would be {past}. Nothing was changed."), *left_alone)
        rows = [
            (past, len(report.decided), self._destination_note() if report.decided else ""),
            ("decided already", len(report.already), "not dead any more; left alone" if report.already else ""),
            *([("refused", len(report.refused), "they have succeeded; left alone")] if report.refused else []),
            *([("not dead", len(report.not_dead), "left alone")] if report.not_dead else []),
            ("failed", len(report.failed), ""),
        ]
        # Discarded events are in no list any more: the whole key is the only way to find them.
        discarded = list(report.decided)[:SHOWN] if self.request.action == "discard" else []
        return Group(
            bulk_decision.summary_table(report, rows, "ledger"),
            *(Text(f"{key}: discarded, known by this whole key") for key in discarded),
            *left_alone,
            *bulk_decision.problems(report),
            *(Text(f"{breaker}: replayed events wait for it", style="bold red") for breaker in self.breakers),
        )

    def _destination_note(self) -> str:
        """Where the replayed events are taken from."""
        report = self.report
        if self.request.action == "discard":
            return ""
        if not report.to_inbox:
            return NO_INBOX
        destinations = list(report.taken_from.values())
        if len(destinations) != len(report.decided):
            return TO_EITHER
        if len(destinations) == 1:
            return TO_INBOX if destinations[0] == INBOX else TO_NEXT_DELIVERY
        in_inbox, elsewhere = destinations.count(INBOX), destinations.count(NEXT_DELIVERY)
        notes = []
        if in_inbox:
            notes.append(f"{in_inbox:,} in the inbox: the running service takes them, or the next `semel run`")
        if elsewhere:
            notes.append(f"{counted(elsewhere, 'event')} not stored here: the next delivery is processed")
        return "; ".join(notes)
