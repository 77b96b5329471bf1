"""Resolves, cancels, resends and erases notifications (`bulk_decision` has the common part).

Between choosing and deciding a callback may arrive, a relay may continue, or another operator may decide. The outbox
accepts each decision only in a state that allows it, so an interrupted command can simply be repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field
from rich.console import Console, Group, RenderableType
from rich.text import Text

from semel.cli import bulk_decision
from semel.cli.bulk_decision import PREVIEW_BATCH, SHOWN, BulkReport, Confirm
from semel.cli.describe import MEANING, RESOLVE, Mask, counted, plain, short, short_id
from semel.cli.find import chosen_notifications, every_notification, notification_by_id, outbox_at, without_content
from semel.cli.ledger_place import Place
from semel.core.resend import Resent, foreseen, resend
from semel.ports import StoredOutbox
from semel.values.delivery_state import LIVE, Resolution, State
from semel.values.errors import ConfigError
from semel.values.outbox import Decision, NotificationQuery, NotificationView
from semel.values.redaction import masked_recipient

PAST: dict[Resolution | Literal["resent"], str] = {
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
UNSENT: tuple[State, ...] = (
    "failed",
    "expired",
    "cancelled",
)  # no customer has it; of a suppressed one they have another

Preview: TypeAlias = Callable[[Sequence[NotificationView]], None]
Judge: TypeAlias = Callable[[StoredOutbox, NotificationView], Awaitable[bool]]


class NotificationChoice(Struct, frozen=True, kw_only=True):
    """The notifications to decide about, and the reason of the decision."""

    ids: list[str]
    every: bool
    query: NotificationQuery  # its state is the state to decide about
    reason: str
    by: str
    matching: str = ""  # text in the notification's reason
    rate: float | None = None
    dry_run: bool = False

    @property
    def filtered(self) -> bool:
        return self.every or bool(self.matching) or self.query != NotificationQuery(state=self.query.state)


class DecisionRequest(NotificationChoice, frozen=True, kw_only=True):
    """The options of `resolve` and `cancel`."""

    resolution: Resolution


class DecisionReport(BulkReport, kw_only=True):
    """The result of `resolve`, `cancel` or `resend`."""

    decision: Resolution | Literal["resent"]

    @property
    def past(self) -> str:
        return PAST[self.decision]


class ResendReport(DecisionReport, kw_only=True):
    """The result of `resend`, with the new generations."""

    made: dict[str, str] = field(default_factory=dict)  # new id by the id of the repeated notification


def check_choice(choice: NotificationChoice) -> None:
    if choice.ids and choice.filtered:
        raise ConfigError("pass ids, or --all or filters: not both")
    if not (choice.ids or choice.filtered):
        raise ConfigError("which ones? Pass ids, or --all or filters; `semel notify list` lists them")


async def choose(
    where: Place, choice: NotificationChoice, report: DecisionReport, judge: Judge, preview: Preview | None
) -> None:
    """Read the chosen notifications into the report, page by page.

    `judge` returns whether this one is to be decided; otherwise it records why not. `preview` gets those that are.
    """
    batch: list[NotificationView] = []
    async with outbox_at(where) as outbox:
        async for view in chosen_notifications(outbox, choice.ids, choice.query, choice.matching):
            report.chosen[view.id] = view.state
            if await judge(outbox, view) and preview is not None:
                batch.append(without_content(view, reveal=False))
            if preview is not None and len(batch) == PREVIEW_BATCH:
                preview(batch)
                batch = []
    if preview is not None and batch:
        preview(batch)


# ------------------------------------------------------------------------------------------- resolving, cancelling


def decide_all(
    where: Place, request: DecisionRequest, console: Console, confirm: Confirm | None, preview: Preview | None
) -> DecisionReport:
    """Raises ConfigError, before any decision, for a request that cannot work."""
    check_choice(request)
    allowed = DECIDABLE[request.resolution]
    if request.query.state not in allowed:
        raise ConfigError(f"--state {request.query.state}: this decision needs the state {' or '.join(allowed)}")
    bulk_decision.check_reason(request.reason, request.by, request.dry_run)
    report = DecisionReport(request.dry_run, decision=request.resolution)
    asyncio.run(choose(where, request, report, lambda _, view: _is_decidable(report, request, view), preview))
    waiting = report.waiting
    if request.dry_run or not waiting:
        return report
    if request.resolution == "not_sent":
        console.print("A customer who received it after all gets it twice.", style="yellow")
    question = QUESTIONS[request.resolution].format(counted(len(waiting), "notification"))

    async def decide(advance: Callable[[], None]) -> None:
        async with outbox_at(where) as outbox:
            await bulk_decision.decide_each(
                report,
                waiting,
                lambda id: _decide_one(outbox, request, id),
                lambda id, answer: _record_decision(report, request, id, *answer),
                advance,
                request.rate,
            )

    unambiguous = len(request.ids) == 1
    bulk_decision.decide_all(report, report.past, "" if unambiguous else question, decide, console, confirm)
    return report


async def _is_decidable(report: DecisionReport, request: DecisionRequest, view: NotificationView) -> bool:
    allowed = DECIDABLE[request.resolution]
    # Its relay disappeared while it was leaving: it is in doubt, also where no other relay runs that would record it.
    abandoned = view.state == "sending" and view.due_ms <= time.time() * 1000 and "uncertain" in allowed
    if not request.ids or view.state in allowed or abandoned:
        return True
    _leave_alone(report, request, view.id, view.state)
    return False


def _leave_alone(report: DecisionReport, request: DecisionRequest, id: str, state: State) -> None:
    """A filter means only undecided ones: one that moved on is no error. A named one in another state is refused."""
    moved_on = not request.ids and state not in DECIDABLE[request.resolution]
    (report.already if moved_on or state in AGREES[request.resolution] else report.refused)[id] = state


async def _decide_one(outbox: StoredOutbox, request: DecisionRequest, id: str) -> tuple[bool, State | None]:
    """Whether the decision was accepted, and the state after it. None: the notification is purged meanwhile."""
    digest = bytes.fromhex(id)
    state = await outbox.decide(Decision(digest, request.resolution, request.reason, request.by))
    if state is not None:
        return True, state
    view = await outbox.show(digest)
    return False, None if view is None else view.state


def _record_decision(
    report: DecisionReport, request: DecisionRequest, id: str, accepted: bool, state: State | None
) -> None:
    if accepted:
        report.decided[id] = str(state)
    elif state is None:
        report.already[id] = "forgotten"
    else:
        _leave_alone(report, request, id, state)


def decision_as_json(report: DecisionReport) -> dict[str, Any]:
    return {
        **bulk_decision.summary_members(report, report.decision),
        "notifications": [
            {"id": id, "state": report.decided.get(id, state), "outcome": report.outcome(id, report.past)}
            for id, state in report.chosen.items()
        ],
    }


def decision_as_tables(report: DecisionReport) -> RenderableType:
    if not report.chosen:
        return Text("Nothing matches: nothing to decide about.")
    left_alone = _decisions_left_alone(report)
    if report.dry_run:
        return Group(Text(f"{len(report.waiting):,} would be {report.past}. Nothing was changed."), *left_alone)
    if len(report.chosen) == 1 and not report.failed:
        return Group(*_single_decision(report), *left_alone)
    in_doubt = [id for id, state in report.decided.items() if state == "uncertain"]
    settled = {id: state for id, state in report.decided.items() if state != "uncertain"}
    rows = [
        (report.past, len(settled), _state_note(next(iter(settled.values()), ""))),
        *([("in doubt", len(in_doubt), IN_DOUBT)] if in_doubt else []),
        ("decided already", len(report.already), "left alone" if report.already else ""),
        ("refused", len(report.refused), "left alone" if report.refused else ""),
        ("failed", len(report.failed), ""),
    ]
    return Group(bulk_decision.summary_table(report, rows, "outbox"), *left_alone, *bulk_decision.problems(report))


def _single_decision(report: DecisionReport) -> Iterator[Text]:
    for id, state in report.decided.items():
        if state == "uncertain":
            note = f"uncertain now: an attempt of it may have left. {RESOLVE.format(short_id(id))}"
        else:
            note = _state_note(state)
        yield Text(f"{short(id)} is {note}")


def _state_note(state: str) -> str:
    return f"{state} now: {NOTES[state]}" if state in NOTES else state


def _decisions_left_alone(report: DecisionReport) -> list[Text]:
    lines = [f"{short(id)} is {state} already" for id, state in list(report.already.items())[:SHOWN]]
    lines += [
        f"{short(id)} is {state}: {_refusal(report.decision, state, id)}"
        for id, state in list(report.refused.items())[:SHOWN]
    ]
    return [Text(line) for line in lines]


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


# ------------------------------------------------------------------------------------------------------ resending
#
# A resend adds the next generation of a notification. Each generation exists once, however often it is requested, so
# an interrupted command is simply repeated: it finds the generations that it has added, and adds no third message. For
# the same reason a filter selects neither resent messages that a provider has accepted, nor messages that were given
# up in doubt: these must be named.


async def look_up(where: Place, id: str) -> NotificationView:
    async with outbox_at(where) as outbox:
        return await notification_by_id(outbox, id)


def needs_confirmation(view: NotificationView) -> bool:
    """False where the outbox refuses the resend anyway."""
    return not view.erased and view.state not in LIVE


def resend_question(view: NotificationView) -> str:
    notification = view.notification
    state = f"{plain(notification.kind)} to {Mask(notification).recipient} is {view.state}: {MEANING[view.state]}."
    return f"{state} Send it once more?"


async def resend_one(where: Place, view: NotificationView, reason: str, by: str) -> Resent:
    async with outbox_at(where) as outbox:
        return await resend(outbox, bytes.fromhex(view.id), reason, by)


def resend_all(
    where: Place, choice: NotificationChoice, console: Console, confirm: Confirm | None, preview: Preview | None
) -> ResendReport:
    """Raises ConfigError, before anything is sent, for a choice that cannot work."""
    check_choice(choice)
    if choice.query.state == "uncertain":
        raise ConfigError(
            "--state uncertain: they may have been sent. Resolve them: `semel notify resolve --not-sent` sends them"
        )
    if choice.query.state in LIVE:
        raise ConfigError(f"--state {choice.query.state}: they are still being sent. Only finished ones can be resent")
    bulk_decision.check_reason(choice.reason, choice.by, choice.dry_run)
    report = ResendReport(choice.dry_run, decision="resent")
    asyncio.run(
        choose(where, choice, report, lambda outbox, view: _is_resendable(outbox, report, choice, view), preview)
    )
    waiting = report.waiting
    if choice.dry_run or not waiting:
        return report
    if choice.ids or choice.query.state not in UNSENT:
        console.print("A customer who has it already, or received it after all, gets it twice.", style="yellow")

    async def decide(advance: Callable[[], None]) -> None:
        async with outbox_at(where) as outbox:
            await bulk_decision.decide_each(
                report,
                waiting,
                lambda id: _resend_unless_changed(outbox, report, choice, id),
                lambda id, answer: _record_resend(report, id, answer),
                advance,
                choice.rate,
            )

    question = f"Send {counted(len(waiting), 'notification')} once more?"
    bulk_decision.decide_all(report, report.past, question, decide, console, confirm)
    return report


async def _is_resendable(
    outbox: StoredOutbox, report: ResendReport, choice: NotificationChoice, view: NotificationView
) -> bool:
    """A filter selects only messages that no customer has. A named one is always resent. A dry run previews it."""
    if choice.ids:
        pass
    elif view.erased:
        report.already[view.id] = "erased: its content is gone"
    elif view.state in TAKEN and view.notification.generation > 1:
        report.already[view.id] = f"generation {view.notification.generation} of its message: name it, to repeat that"
    elif view.state == "failed" and await _may_have_left(outbox, view):
        report.already[view.id] = "given up in doubt: the customer may have it. Name it, to send it all the same"
    if choice.dry_run and view.id not in report.already and (would := await foreseen(outbox, view)).status != "added":
        _record_resend(report, view.id, would)
    return view.id not in report.already and view.id not in report.refused


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


async def _resend_unless_changed(
    outbox: StoredOutbox, report: ResendReport, choice: NotificationChoice, id: str
) -> Resent | State:
    """A notification that a filter has chosen may have changed since: a callback came, and the customer has it. Then it
    is left alone, and the answer is its state."""
    digest = bytes.fromhex(id)
    if not choice.ids and (view := await outbox.show(digest)) is not None and view.state != report.chosen[id]:
        return view.state
    return await resend(outbox, digest, choice.reason, choice.by)


def _record_resend(report: ResendReport, id: str, answer: Resent | State) -> None:
    match answer:
        case str():
            report.already[id] = f"{answer} by now"
        case Resent(status="added"):
            report.decided[id] = answer.state
            report.made[id] = answer.id
        case Resent(status="known"):
            report.already[id] = f"sent again already: generation {answer.generation} is {answer.state}"
            report.made[id] = answer.id
        case Resent(status="missing"):
            report.already[id] = "forgotten: its retention was over"
        case Resent():
            report.refused[id] = answer.reason


def resends_as_json(report: ResendReport) -> dict[str, Any]:
    """As for a decision; each notification with its new generation, if it has one."""
    members = decision_as_json(report)
    for row in members["notifications"]:
        if row["id"] in report.made:
            row["made"] = report.made[row["id"]]
        if row["id"] in report.refused:
            row["why"] = report.refused[row["id"]]
    return members


def resends_as_tables(report: ResendReport) -> RenderableType:
    if not report.chosen:
        return Text("Nothing matches: nothing to send.")
    lines = [f"{short(id)} is {why}" for id, why in list(report.already.items())[:SHOWN]]
    lines += [f"{short(id)}: {why}" for id, why in list(report.refused.items())[:SHOWN]]
    left_alone = [Text(plain(line)) for line in lines]
    if report.dry_run:
        return Group(Text(f"{len(report.waiting):,} would be sent again. Nothing was changed."), *left_alone)
    rows = [
        ("sent again", len(report.decided), RESENT_NOTE if report.decided else ""),
        ("left alone", len(report.already), "sent again before, or not by a filter" if report.already else ""),
        ("refused", len(report.refused), "left alone" if report.refused else ""),
        ("failed", len(report.failed), ""),
    ]
    return Group(bulk_decision.summary_table(report, rows, "outbox"), *left_alone, *bulk_decision.problems(report))


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
