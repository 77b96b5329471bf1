"""Resolves, cancels and resends notifications, and erases customer data. `bulk_decision` has the flow of decisions.

A callback may arrive, a relay may continue, or another operator may decide between choosing and deciding. The outbox
accepts each decision only in a state that allows it, so an interrupted command can be repeated.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field, to_builtins
from rich.console import Group, RenderableType
from rich.text import Text

from semel.cli import bulk_decision, notification_tables
from semel.cli.bulk_decision import SHOWN, BulkDecision, BulkReport, BulkRequest
from semel.cli.describe import MEANING, RESOLVE, Mask, counted, plain, short, short_id
from semel.cli.find import chosen_notifications, every_notification, now_ms, outbox_at, without_content
from semel.cli.ledger_place import Place
from semel.core.resend import Resent, foreseen, resend
from semel.ports import StoredOutbox
from semel.values.delivery_state import LIVE, Resolution, State
from semel.values.errors import ConfigError
from semel.values.outbox import Decision, NotificationQuery, NotificationView
from semel.values.redaction import masked_recipient

DecisionName: TypeAlias = Resolution | Literal["resent"]

PAST: dict[DecisionName, str] = {
    "sent": "resolved",
    "not_sent": "resolved",
    "given_up": "given up",
    "cancelled": "cancelled",
    "resent": "sent again",
}
QUESTIONS = {
    "sent": "Record that {} were sent?",
    "not_sent": "Send {} again?",
    "given_up": "Give up {}?",
    "cancelled": "Cancel {}?",
}
DECIDABLE: dict[Resolution, tuple[State, ...]] = {
    "sent": ("uncertain",),
    "not_sent": ("uncertain",),
    "given_up": ("uncertain", "pending"),
    "cancelled": ("pending",),
}
AGREES: dict[Resolution, tuple[State, ...]] = {  # states that already match the decision
    "sent": ("accepted", "delivered", "undelivered"),
    "not_sent": ("pending", "sending"),
    "given_up": ("failed",),
    "cancelled": ("cancelled",),
}
NOTES = {
    "accepted": "it counts as sent, by your decision",
    "pending": "the running relay sends it, or the next `semel relay --once`",
    "failed": "nothing more is sent",
    "cancelled": "nothing is sent",
    "expired": "its time was over, and nothing is sent; `semel notify resend` makes a new one",
}
IN_DOUBT = "uncertain now: an attempt of theirs may have left, so resolve them"
RESENT_NOTE = "pending: the running relay sends it, or the next `semel relay --once`"

TAKEN: tuple[State, ...] = ("accepted", "delivered")  # the customer has it, or will
UNSENT: tuple[State, ...] = ("failed", "expired", "cancelled")  # of a suppressed one the customer has another


class OutboxDecisionRequest(BulkRequest, frozen=True, kw_only=True):
    """The options of `resolve`, `cancel` and `resend`."""

    decision: DecisionName
    query: NotificationQuery  # its state is the state to decide about
    matching: str = ""  # text in the notification's reason

    @property
    def filtered(self) -> bool:
        return self.every or bool(self.matching) or self.query != NotificationQuery(state=self.query.state)


class OutboxDecisionReport(BulkReport, kw_only=True):
    made: dict[str, str] = field(default_factory=dict)  # new id by the id of a resent notification


class OutboxDecision(BulkDecision[StoredOutbox, NotificationView]):
    """The common part of `semel notify resolve`, `cancel` and `resend`."""

    named, list_command = "ids", "semel notify list"

    def __init__(self, where: Place, request: OutboxDecisionRequest) -> None:
        self.where = where
        self.request: OutboxDecisionRequest = request
        self.report: OutboxDecisionReport = OutboxDecisionReport(request.dry_run)
        self.past = PAST[request.decision]

    def open(self, *, reads: bool) -> AbstractAsyncContextManager[StoredOutbox]:
        return outbox_at(self.where, reads=reads)

    async def choose(self, outbox: StoredOutbox) -> AsyncIterator[NotificationView]:
        request = self.request
        async for view in chosen_notifications(outbox, request.names, request.query, request.matching):
            self.report.chosen[view.id] = view.state
            if await self._needs_decision(outbox, view):
                yield view

    async def _needs_decision(self, outbox: StoredOutbox, view: NotificationView) -> bool:
        """Record why a notification needs no decision, if it needs none."""
        raise NotImplementedError

    def without_content(self, view: NotificationView) -> NotificationView:
        return without_content(view, reveal=False)

    def listing(self, views: Sequence[NotificationView]) -> RenderableType:
        return notification_tables.listing(views, now_ms(), wide=False, reveal=False)

    def members(self) -> dict[str, Any]:
        report = self.report
        return {
            **bulk_decision.summary_members(report, self.request.decision),
            "notifications": [
                {"id": id, "state": report.decided.get(id, state), "outcome": report.outcome(id, self.past)}
                for id, state in report.chosen.items()
            ],
        }

    def _table(self, rows: Sequence[tuple[str, int, str]], left_alone: Sequence[str]) -> RenderableType:
        """The summary of a decision, or of its dry run, and the notifications that it leaves alone."""
        report, lines = self.report, [Text(plain(line)) for line in left_alone]
        if report.dry_run:
            return Group(Text(f"{len(report.waiting):,} would be {self.past}. Nothing was changed."), *lines)
        refused = ("refused", len(report.refused), "left alone" if report.refused else "")
        table = bulk_decision.summary_table(report, [*rows, refused, ("failed", len(report.failed), "")], "outbox")
        return Group(table, *lines, *bulk_decision.problems(report))


class StateDecision(OutboxDecision):
    """`semel notify resolve` and `semel notify cancel`."""

    @property
    def _resolution(self) -> Resolution:
        assert self.request.decision != "resent"
        return self.request.decision

    def check(self) -> None:
        state, allowed = self.request.query.state, DECIDABLE[self._resolution]
        if state not in allowed:
            raise ConfigError(f"--state {state}: this decision needs the state {' or '.join(allowed)}")

    async def _needs_decision(self, outbox: StoredOutbox, view: NotificationView) -> bool:
        allowed = DECIDABLE[self._resolution]
        # Its relay disappeared while sending: it is in doubt, even if no other relay runs to record that.
        abandoned = view.state == "sending" and view.due_ms <= time.time() * 1000 and "uncertain" in allowed
        if not self.request.names or view.state in allowed or abandoned:
            return True
        self._leave_alone(view.id, view.state)
        return False

    def _leave_alone(self, id: str, state: State) -> None:
        """Skip one that a filter chose and that has moved on. Refuse a named one in another state."""
        moved_on = not self.request.names and state not in DECIDABLE[self._resolution]
        agrees = state in AGREES[self._resolution]
        (self.report.already if moved_on or agrees else self.report.refused)[id] = state

    def warnings(self) -> list[str]:
        sends = self._resolution == "not_sent" and self.report.waiting and not self.request.dry_run
        return ["A customer who received it after all gets it twice."] if sends else []

    def question(self) -> str:
        if len(self.request.names) == 1:
            return ""
        return QUESTIONS[self._resolution].format(counted(len(self.report.waiting), "notification"))

    async def decide(self, outbox: StoredOutbox, id: str) -> tuple[bool, State | None]:
        """Whether the decision was accepted, and the state after it. None: the notification is purged meanwhile."""
        digest, request = bytes.fromhex(id), self.request
        state = await outbox.decide(Decision(digest, self._resolution, request.reason, request.by))
        if state is not None:
            return True, state
        view = await outbox.show(digest)
        return False, None if view is None else view.state

    def record(self, id: str, answer: tuple[bool, State | None]) -> None:
        accepted, state = answer
        if accepted:
            self.report.decided[id] = str(state)
        elif state is None:
            self.report.already[id] = "forgotten"
        else:
            self._leave_alone(id, state)

    def text(self) -> RenderableType:
        report = self.report
        if not report.chosen:
            return Text("Nothing matches: nothing to decide about.")
        lines = [f"{short(id)} is {state} already" for id, state in list(report.already.items())[:SHOWN]]
        lines += [
            f"{short(id)} is {state}: {_refusal(self._resolution, state, id)}"
            for id, state in list(report.refused.items())[:SHOWN]
        ]
        if len(report.chosen) == 1 and not report.failed and not report.dry_run:
            decided = [f"{short(id)} is {_single_note(id, state)}" for id, state in report.decided.items()]
            return Group(*(Text(line) for line in [*decided, *lines]))
        in_doubt = [id for id, state in report.decided.items() if state == "uncertain"]
        settled = [state for state in report.decided.values() if state != "uncertain"]
        rows = [
            (self.past, len(settled), _state_note(settled[0]) if settled else ""),
            *([("in doubt", len(in_doubt), IN_DOUBT)] if in_doubt else []),
            ("decided already", len(report.already), "left alone" if report.already else ""),
        ]
        return self._table(rows, lines)


def _single_note(id: str, state: str) -> str:
    if state == "uncertain":
        return f"uncertain now: an attempt of it may have left. {RESOLVE.format(short_id(id))}"
    return _state_note(state)


def _state_note(state: str) -> str:
    return f"{state} now: {NOTES[state]}" if state in NOTES else state


def _refusal(decision: str, state: str, id: str) -> str:
    match decision, state:
        case _, "sending":
            return "a relay is sending it now: wait for the result"
        case "cancelled" | "given_up", "pending":
            return "a relay has taken it and is about to send it: try again"
        case _, "pending":
            return f"a relay is about to send it; to stop that: semel notify cancel {short_id(id)} --reason TEXT"
        case _, "uncertain":
            return f"it may have been sent: {RESOLVE.format(short_id(id))}"
    return "it is over and needs no decision"


class ResendDecision(OutboxDecision):
    """`semel notify resend`: adds the next generation of each notification.

    Each generation exists once, however often it is requested. So a repeated command finds the generations that it has
    added, and adds no third message. For the same reason a filter selects neither resent messages that a provider has
    accepted, nor messages that were given up in doubt: these must be named.

    A single named notification is confirmed and reported by its kind and state, not by a count.
    """

    def __init__(self, where: Place, request: OutboxDecisionRequest) -> None:
        super().__init__(where, request)
        self.single = len(request.names) == 1 and not request.dry_run
        self._view: NotificationView | None = None  # the single one
        self._resent: Resent | None = None

    def check(self) -> None:
        state = self.request.query.state
        if state == "uncertain":
            raise ConfigError(
                "--state uncertain: they may have been sent. Resolve them: `semel notify resolve --not-sent` sends them"
            )
        if state in LIVE:
            raise ConfigError(f"--state {state}: they are still being sent. Only finished ones can be resent")

    async def _needs_decision(self, outbox: StoredOutbox, view: NotificationView) -> bool:
        """A filter selects only messages that no customer has. A named one is always resent. A dry run previews it."""
        report, self._view = self.report, view
        if self.request.names:
            pass
        elif view.erased:
            report.already[view.id] = "erased: its content is gone"
        elif view.state in TAKEN and view.notification.generation > 1:
            generation = view.notification.generation
            report.already[view.id] = f"generation {generation} of its message: name it, to repeat that"
        elif view.state == "failed" and await _may_have_left(outbox, view):
            report.already[view.id] = "given up in doubt: the customer may have it. Name it, to send it nevertheless"
        if self.request.dry_run and view.id not in report.already:
            preview = await foreseen(outbox, view)
            if preview.status != "added":
                self.record(view.id, preview)
        return view.id not in report.already and view.id not in report.refused

    def warnings(self) -> list[str]:
        request = self.request
        may_repeat = request.names or request.query.state not in UNSENT
        if self.single or request.dry_run or not may_repeat or not self.report.waiting:
            return []
        return ["A customer who has it already, or received it after all, gets it twice."]

    def question(self) -> str:
        if not self.single or self._view is None:
            return f"Send {counted(len(self.report.waiting), 'notification')} once more?"
        view, notification = self._view, self._view.notification
        if view.erased or view.state in LIVE:
            return ""  # the outbox refuses it
        state = f"{plain(notification.kind)} to {Mask(notification).recipient} is {view.state}: {MEANING[view.state]}."
        return f"{state} Send it once more?"

    async def decide(self, outbox: StoredOutbox, id: str) -> Resent | State:
        """Resend, unless a filter chose it and its state has changed since: then the answer is its state."""
        digest, request = bytes.fromhex(id), self.request
        view = None if request.names else await outbox.show(digest)
        if view is not None and view.state != self.report.chosen[id]:
            return view.state
        return await resend(outbox, digest, request.reason, request.by)

    def record(self, id: str, answer: Resent | State) -> None:
        report = self.report
        self._resent = answer if isinstance(answer, Resent) else None
        match answer:
            case str():
                report.already[id] = f"{answer} by now"
            case Resent(status="added"):
                report.decided[id] = answer.state
                report.made[id] = answer.id
            case Resent(status="known"):
                report.already[id] = f"sent again already: generation {answer.generation} is {answer.state}"
                report.made[id] = answer.id
            case Resent(status="missing") if not self.single:
                report.already[id] = "forgotten: its retention was over"
            case Resent():
                report.refused[id] = answer.reason

    def members(self) -> dict[str, Any]:
        if self.single and self._resent is not None:
            return to_builtins(self._resent)  # type: ignore[no-any-return]
        members, report = super().members(), self.report
        for row in members["notifications"]:
            if row["id"] in report.made:
                row["made"] = report.made[row["id"]]
            if row["id"] in report.refused:
                row["why"] = report.refused[row["id"]]
        return members

    def text(self) -> RenderableType:
        report = self.report
        if self.single and self._resent is not None:
            return notification_tables.resent_text(self._resent)
        if not report.chosen:
            return Text("Nothing matches: nothing to send.")
        lines = [f"{short(id)} is {reason}" for id, reason in list(report.already.items())[:SHOWN]]
        lines += [f"{short(id)}: {reason}" for id, reason in list(report.refused.items())[:SHOWN]]
        rows = [
            ("sent again", len(report.decided), RESENT_NOTE if report.decided else ""),
            ("left alone", len(report.already), "sent again before, or not by a filter" if report.already else ""),
        ]
        return self._table(rows, lines)


async def _may_have_left(outbox: StoredOutbox, view: NotificationView) -> bool:
    """Whether it was given up, by an operator or by its policy, while it was uncertain."""
    shown = await outbox.show(bytes.fromhex(view.id))
    return bool(view.possible_duplicates) or (
        shown is not None
        and any(
            attempt.outcome == "policy" or (attempt.outcome == "given_up" and attempt.crossed_ms)
            for attempt in shown.attempts
        )
    )


def decision_for(where: Place, request: OutboxDecisionRequest) -> OutboxDecision:
    return (ResendDecision if request.decision == "resent" else StateDecision)(where, request)


# -------------------------------------------------------------------------------------------------------- erasing


class Erased(Struct, frozen=True):
    """The notifications that were erased, or would be."""

    erased: int
    cancelled: int  # of these, before they were sent
    staying: Sequence[tuple[str, str]]  # ids and states of unfinished ones, which are not erased


async def preview_erasure(where: Place, tenant: str, recipient: str) -> Erased:
    """Count what would be erased. A relay may take one meanwhile."""
    async with outbox_at(where) as outbox:
        found = await _not_erased(outbox, tenant, recipient)
    staying = [(view.id, view.state) for view in found if view.state in ("sending", "uncertain")]
    return Erased(len(found) - len(staying), sum(view.state == "pending" for view in found), staying)


async def erase(where: Place, tenant: str, recipient: str, reason: str, by: str) -> Erased:
    async with outbox_at(where) as outbox:
        waiting = {view.id for view in await _not_erased(outbox, tenant, recipient) if view.state == "pending"}
        count = await outbox.erase(tenant, recipient, reason, by)
        staying = [(view.id, view.state) for view in await _not_erased(outbox, tenant, recipient)]
    return Erased(count, len(waiting.difference(id for id, _ in staying)), staying)


async def _not_erased(outbox: StoredOutbox, tenant: str, recipient: str) -> list[NotificationView]:
    return [
        view
        async for view in every_notification(outbox, NotificationQuery(tenant=tenant, recipient=recipient))
        if not view.erased
    ]


def customer(tenant: str, recipient: str) -> str:
    return f"{plain(masked_recipient(recipient))} of {f'tenant {plain(tenant)}' if tenant else 'no tenant'}"


def erasure_question(found: Erased) -> str:
    first = f" ({found.cancelled:,} of them are cancelled, as they are not sent yet)" if found.cancelled else ""
    return f"Erase {counted(found.erased, 'notification')} for good{first}?"


def erasure_as_json(report: Erased, dry_run: bool) -> dict[str, Any]:
    return {
        "erased": report.erased,
        "cancelled": report.cancelled,
        "dry_run": dry_run,
        "staying": [{"id": id, "state": state} for id, state in report.staying],
    }


def erasure_as_text(report: Erased, whose: str, dry_run: bool) -> RenderableType:
    if not report.erased and not report.staying:
        return Text(f"Nothing is kept of {whose}.")
    would = "would be erased" if dry_run else "erased"
    first = f", {report.cancelled:,} of them cancelled before they were sent" if report.cancelled else ""
    end = "Nothing was changed." if dry_run else "The same calls are still known, and send nothing."
    lines = [Text(f"{counted(report.erased, 'notification')} of {whose} {would}{first}. {end}")]
    if report.staying:
        lines.append(Text(f"{len(report.staying):,} not over yet; erase again when they are:", style="yellow"))
    lines += [Text(f"  {id}  {state}: {MEANING[state]}") for id, state in report.staying[:SHOWN]]
    return Group(*lines)
