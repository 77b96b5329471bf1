"""Tables and JSON documents of notifications."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from semel.cli import describe
from semel.cli.describe import MEANING, Mask, age, cut, iso, moment, plain, short, short_id
from semel.cli.notification_add import AddResult
from semel.cli.tables import Listing, excerpt, facts_table, note
from semel.core.resend import Resent
from semel.values.delivery_state import LIVE
from semel.values.notification import Notification
from semel.values.outbox import Attempt, NotificationView, Status, coming

KIND_SHOWN_CHARS = 20
TO_SHOWN_CHARS = 28

# ------------------------------------------------------------------------------------------------------- listings


def listing(views: Sequence[NotificationView], now_ms: int, wide: bool, reveal: bool) -> Listing:
    """Notifications with a note below each. Wide: everything on one line."""
    styles = [describe.STYLES.get(view.state, "") for view in views]
    masks = [Mask(view.notification, reveal) for view in views]
    if wide:
        return Listing.wide(
            {
                "id": [view.id for view in views],
                "state": [view.state for view in views],
                "added": [moment(view.added_ms) for view in views],
                "changed": [moment(view.changed_ms) for view in views],
                "tenant": [plain(view.notification.tenant) for view in views],
                "kind": [plain(view.notification.kind) for view in views],
                "channel": [view.notification.channel for view in views],
                "to": [mask.recipient for mask in masks],
                "key": [plain(mask.name(mask.notification.key)) for mask in masks],
                "generation": [
                    str(generation) if (generation := view.notification.generation) > 1 else "" for view in views
                ],
                "provider": [plain(view.provider) for view in views],
                "twice?": [describe.twice(view.possible_duplicates) for view in views],
                "content": [mask.content for mask in masks],
                "reason": [mask.text(view.reason) for view, mask in zip(views, masks, strict=True)],
            },
            styles,
        )
    tenants = len({view.notification.tenant for view in views}) > 1
    return Listing(
        ["id", "state", "age", "kind", "to", "key"],
        [
            [
                short(view.id),
                view.state,
                age(view.added_ms, now_ms),
                cut(plain(view.notification.kind), KIND_SHOWN_CHARS),
                cut(f"{view.notification.channel} {mask.recipient}", TO_SHOWN_CHARS),
                plain(mask.name(view.notification.key)),
            ]
            for view, mask in zip(views, masks, strict=True)
        ],
        styles,
        [_note(view, tenants, reveal) for view in views],
    )


def _note(view: NotificationView, tenants: bool, reveal: bool) -> str:
    notification, successful = view.notification, view.state in ("accepted", "delivered")
    facts = [
        f"tenant {plain(notification.tenant)}" if tenants and notification.tenant else "",
        f"generation {notification.generation}" if notification.generation > 1 else "",
        plain(view.provider) if view.reason and not successful else "",
        describe.twice(view.possible_duplicates),
        "erased" if view.erased else "",
    ]
    return note(facts, "" if successful else Mask(notification, reveal).text(view.reason))


def hint(views: Sequence[NotificationView]) -> str:
    """A line below a list with uncertain notifications."""
    count = sum(view.state == "uncertain" for view in views)
    if not count:
        return ""
    are = "is" if count == 1 else "are"
    return f"{count:,} {are} uncertain: `semel notify show ID` shows the next step and the possible decisions."


# -------------------------------------------------------------------------------------------------- one notification


def portrait(view: NotificationView, others: Sequence[NotificationView], now_ms: int, reveal: bool) -> RenderableType:
    """Everything that is stored about one notification: its identity, state, history and next step."""
    mask = Mask(view.notification, reveal)
    generations = [f"{other.notification.generation} is {other.id}, {other.state}" for other in others]
    facts = {
        **_identity(view, mask, now_ms),
        **options_of(view.notification, mask),
        "generations": "\n".join(generations),
    }
    next_step, commands = describe.next_for(view, others, now_ms)
    parts: list[RenderableType] = [
        facts_table(facts, {facts["state"]: describe.STYLES.get(view.state, "")}),
        Text("\nhistory", style="bold"),
        _timeline(view, mask),
        Text("\nwhat happens next", style="bold"),
        Text(plain(next_step)),
    ]
    if commands:
        parts.append(facts_table({f"  {command}": effect for command, effect in commands.items()}))
    if reveal and not view.erased:
        parts += [Text("\ncontent", style="bold"), Text(content(view.notification))]
    return Group(*parts)


def _identity(view: NotificationView, mask: Mask, now_ms: int) -> dict[str, str]:
    notification = view.notification
    hidden = "" if mask.reveal or view.erased else " (--reveal shows it)"
    return {
        "id": view.id,
        "state": f"{view.state}: {describe.MEANING[view.state]}",
        "since": f"{moment(view.changed_ms)}, {age(view.changed_ms, now_ms)} ago",
        "reason": mask.text(view.reason),
        "sent twice?": describe.twice(view.possible_duplicates),
        "suppressed by": view.suppressed_by,
        "key": plain(mask.name(notification.key)),
        "kind": notification.kind,
        "to": f"{mask.recipient}, by {notification.channel}",
        "content": f"{mask.content}{hidden}",
        "tenant": notification.tenant,
        "provider": view.provider or notification.provider,
        "erased": "its content and recipient are erased; the same call is still known" if view.erased else "",
    }


def options_of(notification: Notification, mask: Mask) -> dict[str, str]:
    """The options that differ from their defaults."""
    guard = notification.guard
    of = f"of {plain(mask.name(guard.key))!r}" if guard and guard.key else "to this recipient, of this kind"
    not_after = notification.not_after
    return {
        "not after": "" if not_after is None else moment(int(not_after.timestamp() * 1000)),
        "guard": "" if guard is None else f"at most one in {describe.window(guard.window_s)} {of}",
        "order": plain(mask.name(notification.order)),
        "priority": "" if notification.priority == 5 else f"{notification.priority} (0 goes first, 9 last)",
        "policy": notification.policy or "",
        "generation": str(notification.generation) if notification.generation > 1 else "",
    }


def _timeline(view: NotificationView, mask: Mask) -> Table:
    """The history by time, with the evidence of providers below each line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for at_ms, line, evidence in _moments(view):
        below = [Padding(Text(mask.text(text), "dim"), (0, 0, 0, 2), expand=False) for text in evidence if text]
        table.add_row(moment(at_ms), Group(Text(mask.text(line)), *below))
    return table


def _moments(view: NotificationView) -> Iterator[tuple[int, str, Sequence[str]]]:
    """Several attempts may share one crossing, which is listed once."""
    yield view.added_ms, "added", ()
    crossed: set[int] = set()
    for attempt in view.attempts:
        if attempt.crossed_ms and attempt.crossed_ms not in crossed:
            crossed.add(attempt.crossed_ms)
            yield attempt.crossed_ms, describe.crossing_of(attempt), ()
        if attempt.outcome:
            reference = f"reference {attempt.reference}" if attempt.reference else ""
            yield attempt.ended_ms, describe.ending_of(attempt), (attempt.evidence, reference)


def content(notification: Notification) -> str:
    fields = [
        f"from: {notification.sender}" if notification.sender else "",
        f"subject: {notification.subject}" if notification.subject else "",
        f"template: {notification.template}" if notification.template else "",
        f"data: {_document(notification.data)}" if notification.data else "",
    ]
    body = notification.body
    text = body if isinstance(body, str) else "" if body is None else _document(body)
    return excerpt("\n".join(filter(None, [*fields, text])), "--json shows all of it")


def _document(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


# ------------------------------------------------------------------------------------------------------------ status


def answer(status: Status, now_ms: int, notification: Notification | None, note: str = "") -> RenderableType:
    """Did this customer get the message?"""
    evidence, reference = _evidence(status, notification)
    facts = {
        "state": status.state,
        "since": f"{moment(status.at_ms)}, {age(status.at_ms, now_ms)} ago" if status.at_ms else "",
        "provider": status.provider,
        "reference": plain(reference),
        "evidence": plain(evidence),
        "id": status.id,
    }
    meaning = describe.ANSWERS[status.answer]
    if status.answer == "not_sent":
        reason = f", reason: {plain(evidence)}" if evidence else ""
        many = (
            f"{status.unsent:,} were not sent, the newest is {status.state}"
            if status.unsent != 1
            else f"1 {status.state}"
        )
        meaning = f"no: {many}{reason}, see {short_id(status.id)}"
    line = Text.assemble((status.answer, f"bold {describe.STYLES.get(status.answer, '')}"), f": {meaning}")
    if not status.id:
        return Group(line, Text(f"Note: {note}", style="dim")) if note else line
    more = Text(f"Details: semel notify show {short_id(status.id)}", style="dim")
    return Group(line, facts_table(facts, describe.STYLES), more)


def _evidence(status: Status, notification: Notification | None) -> tuple[str, str]:
    """Evidence and reference, masked. Without the notification they cannot be masked, so they are omitted."""
    if notification is None:
        return "", ""
    return Mask(notification).hidden(status.evidence), Mask(notification).hidden(status.reference)


def status_members(status: Status, notification: Notification | None, note: str = "") -> dict[str, Any]:
    evidence, reference = _evidence(status, notification)
    return {
        "status": status.answer,
        "id": status.id,
        "state": status.state,
        "at": iso(status.at_ms) if status.at_ms else "",
        "at_ms": status.at_ms,
        "provider": status.provider,
        "reference": reference,
        "evidence": evidence,
        "unsent": status.unsent,
        "note": note,
    }


# -------------------------------------------------------------------------------------------------------------- JSON


def members(view: NotificationView, reveal: bool) -> dict[str, Any]:
    """A notification without its attempts."""
    notification, mask = view.notification, Mask(view.notification, reveal)
    return {
        "id": view.id,
        "state": view.state,
        "reason": mask.hidden(view.reason),
        "tenant": notification.tenant,
        "key": mask.name(notification.key),
        "kind": notification.kind,
        "channel": notification.channel,
        "recipient": mask.raw_recipient,
        "generation": notification.generation,
        "provider": view.provider,
        "added": iso(view.added_ms),
        "added_ms": view.added_ms,
        "changed": iso(view.changed_ms),
        "changed_ms": view.changed_ms,
        "due": iso(view.due_ms) if view.due_ms and view.state in LIVE else None,
        "possible_duplicates": view.possible_duplicates,
        "suppressed_by": view.suppressed_by,
        "erased": view.erased,
        **mask.members(),
    }


def whole(view: NotificationView, others: Sequence[NotificationView], now_ms: int, reveal: bool) -> dict[str, Any]:
    """A notification with its options, attempts and next step."""
    notification, mask = view.notification, Mask(view.notification, reveal)
    guard, not_after = notification.guard, notification.not_after
    next_step, commands = describe.next_for(view, others, now_ms)
    upcoming = coming(view, now_ms)
    return {
        **members(view, reveal),
        "not_after": None if not_after is None else iso(int(not_after.timestamp() * 1000)),
        "priority": notification.priority,
        "order": mask.name(notification.order),
        "guard": None if guard is None else {"window_s": guard.window_s, "key": mask.name(guard.key)},
        "policy": notification.policy,
        "attempts": [_attempt(attempt, mask) for attempt in view.attempts],
        "generations": [
            {"generation": other.notification.generation, "id": other.id, "state": other.state} for other in others
        ],
        "next": {
            "exit": upcoming.exit if upcoming else None,
            "at": iso(upcoming.at_ms) if upcoming and upcoming.at_ms else None,
            "under_way": upcoming.under_way if upcoming else False,
            "policy": upcoming.policy if upcoming else None,
            "policy_at": iso(upcoming.policy_ms) if upcoming and upcoming.policy_ms else None,
            "says": next_step,
        },
        "commands": list(commands),
    }


def _attempt(attempt: Attempt, mask: Mask) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "provider": attempt.provider,
        "crossed": iso(attempt.crossed_ms) if attempt.crossed_ms else None,
        "ended": iso(attempt.ended_ms) if attempt.ended_ms else None,
        "outcome": attempt.outcome,
        "evidence": mask.hidden(attempt.evidence),
        "reference": mask.hidden(attempt.reference),
        "by": attempt.by,
    }


# ------------------------------------------------------------------------------------------------ adding, resending

RELAY = "A relay sends it: a running one, or the next `semel relay --once`."


def add_text(result: AddResult, notification: Notification) -> RenderableType:
    mask, facts = Mask(notification), {"id": result.id}
    if result.status == "added":
        facts |= {"to": f"{mask.recipient}, by {notification.channel}", "content": mask.content}
    if result.dry_run:
        key = plain(mask.name(notification.key))
        facts |= {"key": key, "kind": notification.kind, **options_of(notification, mask)}
    parts: list[RenderableType] = [Text(_headline(result)), facts_table(facts)]
    if result.ignored and result.status == "known":
        parts.append(Text(f"This call does not change its options: {_listed(result.ignored)}."))
    return Group(*parts)


def _headline(result: AddResult) -> str:
    match result.status, result.dry_run:
        case "added", False:
            return f"added. {RELAY}"
        case "added", True:
            return "would be added. Nothing was changed."
        case "known", _:
            meaning = MEANING.get(result.state, "")
            return f"known: it was added before and is {result.state}, {meaning}. Nothing was changed."
    fields = f" ({_listed(result.differs)})" if result.differs else ""
    return (
        f"conflict: the same key, kind and recipient are known with another content{fields}. The first one is kept, "
        f"{result.state}: semel notify show {short_id(result.id)}. Another fact needs another --key."
    )


def _listed(names: list[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)


def add_members(result: AddResult) -> dict[str, Any]:
    return {
        "id": result.id,
        "status": result.status,
        "state": result.state,
        "dry_run": result.dry_run,
        "differs": result.differs,
        "not_changed": result.ignored,
    }


def resent_text(resent: Resent) -> RenderableType:
    facts = {"id": resent.id, "generation": str(resent.generation)}
    match resent.status:
        case "added":
            return Group(Text(f"added as generation {resent.generation}. {RELAY}"), facts_table(facts))
        case "known":
            meaning = MEANING.get(resent.state, "")
            known = f"known: generation {resent.generation} was added before and is {resent.state}, {meaning}."
            return Group(Text(f"{known} To repeat that one, name it."), facts_table(facts))
    return Text(f"refused: {plain(resent.reason)}")
