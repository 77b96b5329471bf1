"""A notification as it is told outside: masked, unless somebody who may see it has asked for it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import asdict

from semel.service.api.asking import ms_of, time_text
from semel.service.api.notification_shapes import AttemptLine, NextStep, NotificationLine, NotificationReport
from semel.values.coming import Coming, coming
from semel.values.masking import Hider, masked_content, masked_recipient, without
from semel.values.outbox import Attempt, Shown


def line(shown: Shown, revealed: bool) -> NotificationLine:
    return NotificationLine(**_told(shown, revealed, Hider(shown.notification)))


def report(shown: Shown, revealed: bool, now_ms: int) -> NotificationReport:
    hider = Hider(shown.notification)
    attempts = [_attempt(one, hider, revealed) for one in shown.attempts]
    return NotificationReport(**_told(shown, revealed, hider), attempts=attempts, next=_next(coming(shown, now_ms)))


def _next(next: Coming | None) -> NextStep | None:
    if next is None:
        return None
    return NextStep(
        exit=next.exit,
        at=time_text(next.at_ms) if next.at_ms else "",
        under_way=next.under_way,
        policy=next.policy or "",
        policy_at=time_text(next.policy_ms) if next.policy_ms else "",
    )


def _told(shown: Shown, revealed: bool, hider: Hider) -> dict[str, Any]:
    one = shown.notification
    return {
        "id": shown.id,
        "state": shown.state,
        "reason": shown.reason if revealed else hider.hidden(shown.reason),
        "key": one.key if revealed else without(one.key, one.recipient),
        "kind": one.kind,
        "recipient": one.recipient if revealed else masked_recipient(one.recipient),
        "channel": one.channel,
        "generation": one.generation,
        "content": masked_content(one),
        "provider": shown.provider,
        "priority": one.priority,
        "not_after": "" if one.not_after is None else time_text(ms_of(one.not_after)),
        "added": time_text(shown.added_ms),
        "changed": time_text(shown.changed_ms),
        "possible_duplicates": shown.possible_duplicates,
        "suppressed_by": shown.suppressed_by,
        "erased": shown.erased,
        "revealed": _all_of(shown) if revealed and not shown.erased else None,
    }


def _all_of(shown: Shown) -> dict[str, Any]:
    """What was asked for, in the names of the request."""
    asked = asdict(shown.notification)
    for name in ("tenant", "generation"):
        del asked[name]
    builtins: dict[str, Any] = msgspec.to_builtins(asked)
    return builtins


def _attempt(one: Attempt, hider: Hider, revealed: bool) -> AttemptLine:
    return AttemptLine(
        number=one.number,
        provider=one.provider,
        outcome=one.outcome,
        at=time_text(one.ended_ms) if one.ended_ms else "",
        crossed=time_text(one.crossed_ms) if one.crossed_ms else "",
        evidence=one.evidence if revealed else hider.hidden(one.evidence),
        reference=one.reference if revealed else hider.hidden(one.reference),
        by=one.by,
    )
