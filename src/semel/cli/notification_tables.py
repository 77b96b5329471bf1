"""Notifications for people (tables) and for programs (JSON)."""

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
from semel.cli.tables import REASON_SHOWN_CHARS, Listing, excerpt, facts_table
from semel.core.resend import Resent
from semel.values.delivery_state import LIVE
from semel.values.notification import Notification
from semel.values.outbox import Attempt, NotificationView, Status, coming

KIND_SHOWN_CHARS = 20
TO_SHOWN_CHARS = 28

# ------------------------------------------------------------------------------------------------------- listings


def listing(found: Sequence[NotificationView], now_ms: int, wide: bool, reveal: bool) -> Listing:
    """For a terminal: below a notification stands what is unusual about it. Wide: everything on its line, and whole."""
    return _wide(found, reveal) if wide else _narrow(found, now_ms, reveal)


def _narrow(found: Sequence[NotificationView], now_ms: int, reveal: bool) -> Listing:
    tenants = len({one.notification.tenant for one in found}) > 1
    return Listing(
        ["id", "state", "age", "kind", "to", "key"],
        [
            [
                short(one.id),
                one.state,
                age(one.added_ms, now_ms),
                cut(plain(one.notification.kind), KIND_SHOWN_CHARS),
                cut(f"{one.notification.channel} {Mask(one.notification, reveal).recipient}", TO_SHOWN_CHARS),
                plain(Mask(one.notification, reveal).name(one.notification.key)),
            ]
            for one in found
        ],
        [describe.STYLES.get(one.state, "") for one in found],
        [_note(one, tenants, reveal) for one in found],
    )


def _note(one: NotificationView, tenants: bool, reveal: bool) -> str:
    """What is unusual: "generation 2, twilio: no answer within 15 s"."""
    said, well = one.notification, one.state in ("accepted", "delivered")
    facts = [
        f"tenant {plain(said.tenant)}" if tenants and said.tenant else "",
        f"generation {said.generation}" if said.generation > 1 else "",
        plain(one.provider) if one.reason and not well else "",
        describe.twice(one.possible_duplicates),
        "erased" if one.erased else "",
    ]
    reason = "" if well else cut(Mask(said, reveal).text(one.reason), REASON_SHOWN_CHARS)
    return ": ".join(filter(None, [", ".join(filter(None, facts)), reason]))


def _wide(found: Sequence[NotificationView], reveal: bool) -> Listing:
    """Columns that would say nothing are left out."""
    masks = [Mask(one.notification, reveal) for one in found]
    columns: dict[str, list[str]] = {
        "id": [one.id for one in found],
        "state": [one.state for one in found],
        "added": [moment(one.added_ms) for one in found],
        "changed": [moment(one.changed_ms) for one in found],
        "tenant": [plain(one.notification.tenant) for one in found],
        "kind": [plain(one.notification.kind) for one in found],
        "channel": [one.notification.channel for one in found],
        "to": [mask.recipient for mask in masks],
        "key": [plain(mask.name(mask.notification.key)) for mask in masks],
        "generation": [str(generation) if (generation := one.notification.generation) > 1 else "" for one in found],
        "provider": [plain(one.provider) for one in found],
        "twice?": [describe.twice(one.possible_duplicates) for one in found],
        "content": [mask.content for mask in masks],
        "reason": [mask.text(one.reason) for one, mask in zip(found, masks, strict=True)],
    }
    told = {head: cells for head, cells in columns.items() if any(cells)}
    rows = [list(row) for row in zip(*told.values(), strict=True)]
    return Listing(list(told), rows, [describe.STYLES.get(one.state, "") for one in found], [""] * len(found))


def hint(found: Sequence[NotificationView]) -> str:
    """Below a list: what waits for a person."""
    doubtful = [one for one in found if one.state == "uncertain"]
    if not doubtful:
        return ""
    are = "is" if len(doubtful) == 1 else "are"
    return f"{len(doubtful):,} {are} uncertain: `semel notify show ID` tells what happens next, and how to decide."


# -------------------------------------------------------------------------------------------------- one notification


def portrait(one: NotificationView, others: Sequence[NotificationView], now_ms: int, reveal: bool) -> RenderableType:
    """Everything that is known: what it is, how it stands, how it came there, what happens next."""
    mask = Mask(one.notification, reveal)
    facts = {**_identity(one, mask, now_ms), **asked_of(one.notification, mask), **_others(others)}
    parts: list[RenderableType] = [
        facts_table(facts, {facts["state"]: describe.STYLES.get(one.state, "")}),
        Text("\nhistory", style="bold"),
        _timeline(one, mask),
        Text("\nwhat happens next", style="bold"),
        *_next(one, others, now_ms),
    ]
    if reveal and not one.erased:
        parts += [Text("\nwhat it says", style="bold"), Text(content(one.notification))]
    return Group(*parts)


def _identity(one: NotificationView, mask: Mask, now_ms: int) -> dict[str, str]:
    said = one.notification
    hidden = "" if mask.reveal or one.erased else " (--reveal shows it)"
    return {
        "id": one.id,
        "state": f"{one.state}: {describe.MEANING[one.state]}",
        "since": f"{moment(one.changed_ms)}, {age(one.changed_ms, now_ms)} ago",
        "reason": mask.text(one.reason),
        "sent twice?": describe.twice(one.possible_duplicates),
        "suppressed by": one.suppressed_by,
        "key": plain(mask.name(said.key)),
        "kind": said.kind,
        "to": f"{mask.recipient}, by {said.channel}",
        "content": f"{mask.content}{hidden}",
        "tenant": said.tenant,
        "provider": one.provider or said.provider,
        "erased": "its content and recipient are forgotten; the same call is still known" if one.erased else "",
    }


def asked_of(said: Notification, mask: Mask) -> dict[str, str]:
    """What it asks for, where that is not the usual."""
    guard = said.guard
    of = f"of {plain(mask.name(guard.key))!r}" if guard and guard.key else "to this recipient, of this kind"
    return {
        "not after": "" if said.not_after is None else moment(int(said.not_after.timestamp() * 1000)),
        "guard": "" if guard is None else f"at most one in {describe.window(guard.window_s)} {of}",
        "order": plain(mask.name(said.order)),
        "priority": "" if said.priority == 5 else f"{said.priority} (0 goes first, 9 last)",
        "policy": said.policy or "",
        "generation": str(said.generation) if said.generation > 1 else "",
    }


def _others(others: Sequence[NotificationView]) -> dict[str, str]:
    told = [f"{one.notification.generation} is {one.id}, {one.state}" for one in others]
    return {"generations": "\n".join(told)}


def _timeline(one: NotificationView, mask: Mask) -> Table:
    """By time; what providers said stands below what it came to."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for at_ms, what, told in _moments(one):
        below = [Padding(Text(mask.text(line), "dim"), (0, 0, 0, 2), expand=False) for line in told if line]
        table.add_row(moment(at_ms), Group(Text(mask.text(what)), *below))
    return table


def _moments(one: NotificationView) -> Iterator[tuple[int, str, Sequence[str]]]:
    """Several pieces of evidence may be about one crossing, which is told once."""
    yield one.added_ms, "added", ()
    crossed: set[int] = set()
    for attempt in one.attempts:
        if attempt.crossed_ms and attempt.crossed_ms not in crossed:
            crossed.add(attempt.crossed_ms)
            yield attempt.crossed_ms, describe.crossing_of(attempt), ()
        if attempt.outcome:
            yield attempt.ended_ms, describe.ending_of(attempt), (attempt.evidence, _reference(attempt))


def _next(one: NotificationView, others: Sequence[NotificationView], now_ms: int) -> Iterator[RenderableType]:
    told, commands = describe.next_for(one, others, now_ms)
    yield Text(plain(told))
    if commands:
        yield facts_table({f"  {command}": effect for command, effect in commands.items()})


def _reference(attempt: Attempt) -> str:
    return f"reference {attempt.reference}" if attempt.reference else ""


def content(said: Notification) -> str:
    """Whole, as far as a terminal is for reading."""
    facts = [
        f"from: {said.sender}" if said.sender else "",
        f"subject: {said.subject}" if said.subject else "",
        f"template: {said.template}" if said.template else "",
        f"data: {_document(said.data)}" if said.data else "",
    ]
    body = said.body if isinstance(said.body, str) else "" if said.body is None else _document(said.body)
    return excerpt("\n".join(filter(None, [*facts, body])), "--json shows all of it")


def _document(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


# ------------------------------------------------------------------------------------------------------------ status


def answer(found: Status, now_ms: int, said: Notification | None, note: str = "") -> RenderableType:
    """Did this customer get the message?"""
    evidence, reference = _said_of(found, said)
    facts = {
        "state": found.state,
        "since": f"{moment(found.at_ms)}, {age(found.at_ms, now_ms)} ago" if found.at_ms else "",
        "provider": found.provider,
        "reference": plain(reference),
        "evidence": plain(evidence),
        "id": found.id,
    }
    meant = describe.ANSWERS[found.told]
    if found.told == "not_sent":
        reason = f", reason: {plain(evidence)}" if evidence else ""
        many = (
            f"1 {found.state}" if found.unsent == 1 else f"{found.unsent:,} were not sent, the newest is {found.state}"
        )
        meant = f"no: {many}{reason}, see {describe.short_id(found.id)}"
    word = Text.assemble((found.told, f"bold {describe.STYLES.get(found.told, '')}"), f": {meant}")
    if not found.id:
        return Group(word, Text(f"Note: {note}", style="dim")) if note else word
    more = Text(f"All that is known of it: semel notify show {describe.short_id(found.id)}", style="dim")
    return Group(word, facts_table(facts, describe.STYLES), more)


def _said_of(found: Status, said: Notification | None) -> tuple[str, str]:
    """Evidence and reference. Without the notification, nobody can tell what is to be hidden in them."""
    return ("", "") if said is None else (Mask(said).hidden(found.evidence), Mask(said).hidden(found.reference))


def status_members(found: Status, said: Notification | None, note: str = "") -> dict[str, Any]:
    evidence, reference = _said_of(found, said)
    return {
        "status": found.told,
        "id": found.id,
        "state": found.state,
        "at": iso(found.at_ms) if found.at_ms else "",
        "at_ms": found.at_ms,
        "provider": found.provider,
        "reference": reference,
        "evidence": evidence,
        "unsent": found.unsent,
        "note": note,
    }


# -------------------------------------------------------------------------------------------------------------- JSON


def members(one: NotificationView, reveal: bool) -> dict[str, Any]:
    """A notification without its attempts."""
    said, mask = one.notification, Mask(one.notification, reveal)
    return {
        "id": one.id,
        "state": one.state,
        "reason": mask.hidden(one.reason),
        "tenant": said.tenant,
        "key": mask.name(said.key),
        "kind": said.kind,
        "channel": said.channel,
        "recipient": mask.raw_recipient,
        "generation": said.generation,
        "provider": one.provider,
        "added": iso(one.added_ms),
        "added_ms": one.added_ms,
        "changed": iso(one.changed_ms),
        "changed_ms": one.changed_ms,
        "due": iso(one.due_ms) if one.due_ms and one.state in LIVE else None,
        "possible_duplicates": one.possible_duplicates,
        "suppressed_by": one.suppressed_by,
        "erased": one.erased,
        **mask.members(),
    }


def whole(one: NotificationView, others: Sequence[NotificationView], now_ms: int, reveal: bool) -> dict[str, Any]:
    """With its attempts and what it asks for."""
    said, mask = one.notification, Mask(one.notification, reveal)
    guard = None if said.guard is None else {"window_s": said.guard.window_s, "key": mask.name(said.guard.key)}
    told, commands = describe.next_for(one, others, now_ms)
    return {
        **members(one, reveal),
        "not_after": None if said.not_after is None else iso(int(said.not_after.timestamp() * 1000)),
        "priority": said.priority,
        "order": mask.name(said.order),
        "guard": guard,
        "policy": said.policy,
        "attempts": [_attempt(attempt, mask) for attempt in one.attempts],
        "generations": [
            {"generation": other.notification.generation, "id": other.id, "state": other.state} for other in others
        ],
        "next": _coming(one, now_ms, told),
        "commands": list(commands),
    }


def _coming(one: NotificationView, now_ms: int, told: str) -> dict[str, Any]:
    """What happens next by itself: `says` for people, the rest for programs."""
    next = coming(one, now_ms)
    if next is None:
        return {"exit": None, "at": None, "under_way": False, "policy": None, "policy_at": None, "says": told}
    return {
        "exit": next.exit,
        "at": iso(next.at_ms) if next.at_ms else None,
        "under_way": next.under_way,
        "policy": next.policy,
        "policy_at": iso(next.policy_ms) if next.policy_ms else None,
        "says": told,
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


# What came of adding, and of sending once more.

RELAY = "A relay sends it: the one that runs, or the next `semel relay --once`."


def add_text(result: AddResult, said: Notification) -> RenderableType:
    """The id stands first, whole: it is what everything else is asked by."""
    mask, facts = Mask(said), {"id": result.id}
    if result.status == "added":
        facts |= {"to": f"{mask.recipient}, by {said.channel}", "content": mask.content}
    if result.dry_run:
        facts |= {"key": plain(mask.name(said.key)), "kind": said.kind, **asked_of(said, mask)}
    told: list[RenderableType] = [Text(_headline(result)), facts_table(facts)]
    if result.ignored and result.status == "known":
        told.append(Text(f"What it asks for is not changed by this call: {_listed(result.ignored)}."))
    return Group(*told)


def _headline(result: AddResult) -> str:
    match result.status, result.dry_run:
        case "added", False:
            return f"added. {RELAY}"
        case "added", True:
            return "would be added. Nothing was changed."
        case "known", _:
            known = f"known: it was added before and is {result.state}, {MEANING.get(result.state, '')}"
            return f"{known}. Nothing was changed."
    what = f" ({_listed(result.differs)})" if result.differs else ""
    return (
        f"conflict: the same key, kind and recipient are known with another content{what}. The first one is kept, "
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
            meant = MEANING.get(resent.state, "")
            told = f"known: generation {resent.generation} was added before and is {resent.state}, {meant}."
            return Group(Text(f"{told} To repeat that one, name it."), facts_table(facts))
    return Text(f"refused: {plain(resent.reason)}")
