"""Encodes notifications for stores: identity and content in columns of their own, the rest as one JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from semel.values.delivery_state import DeliveryState
from semel.values.errors import ConfigError
from semel.values.notification import Channel, Guard, Notification, Policy, read_content, watched
from semel.values.outbox import Attempt, NotificationView

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ERASED = b'{"body":"(erased)"}'
UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""Errors of a content that was written into the table by hand. Everything that Semel adds can be decoded."""
encode = msgspec.json.Encoder().encode
delivery_state_of = msgspec.json.Decoder(DeliveryState).decode


class NotificationOptions(Struct, frozen=True, omit_defaults=True):
    """The fields of a notification besides its identity and content."""

    order: str = ""
    priority: int = 5
    not_after_ms: int | None = None
    guard: Guard | None = None
    provider: str = ""
    policy: Policy | None = None


_options = msgspec.json.Decoder(NotificationOptions).decode
_ANY = Notification(key="?", kind="?", recipient="?", channel="event", body="?")


def options_of(one: Notification) -> NotificationOptions:
    not_after = None if one.not_after is None else int(one.not_after.timestamp() * 1000)
    return NotificationOptions(one.order, one.priority, not_after, one.guard, one.provider, one.policy)


def not_after_of(options: str | bytes) -> datetime | None:
    """The requested expiry of a notification."""
    not_after_ms = _options(options).not_after_ms
    return None if not_after_ms is None else _time(not_after_ms)


def by_wall_clock(delivery_state: DeliveryState, not_after: datetime | None, ahead_ms: int) -> DeliveryState:
    """Set the expiry by a store's clock that is `ahead_ms` ahead of the wall clock. The stored value may come from
    another clock: of an earlier boot, or before the wall clock was corrected."""
    not_after_ms = None if not_after is None else (not_after - _EPOCH) // timedelta(milliseconds=1) + ahead_ms
    if delivery_state.not_after_ms == not_after_ms:
        return delivery_state
    return replace(delivery_state, not_after_ms=not_after_ms)


def readable_delivery_state(delivery_state: bytes | None) -> DeliveryState | None:
    """The delivery state for operators; None if it is finished, or if it was written by hand and cannot be decoded."""
    try:
        return None if delivery_state is None else delivery_state_of(delivery_state)
    except UNREADABLE:
        return None


def guard_of(tenant: str, recipient: str, kind: str, options: str | bytes) -> bytes | None:
    """The digest that a notification's guard watches; None without a guard."""
    guard = _options(options).guard
    return None if guard is None else watched(guard, tenant, recipient, kind)


def notification_of(
    tenant: str,
    key: str,
    kind: str,
    recipient: str,
    channel: Channel,
    generation: int,
    content: bytes | None,
    options: str | bytes,
) -> Notification:
    said, asked = read_content(content or ERASED), _options(options)
    fields: dict[str, Any] = {
        "key": key,
        "kind": kind,
        "recipient": recipient or "(erased)",
        "channel": channel,
        "body": said.body,
        "subject": said.subject,
        "sender": said.sender,
        "template": said.template,
        "data": said.data,
        "tenant": tenant,
        "not_after": None if asked.not_after_ms is None else _time(asked.not_after_ms),
        "priority": asked.priority,
        "order": asked.order,
        "guard": asked.guard,
        "provider": asked.provider,
        "policy": asked.policy,
        "generation": generation,
    }
    try:
        one = Notification(**fields)
    except ConfigError:
        return _unchecked(fields)
    if one.recipient != fields["recipient"]:  # older than the normal form: its id and its guard are of this spelling
        force_setattr(one, "recipient", fields["recipient"])
    return one


def readable(
    tenant: str,
    key: str,
    kind: str,
    recipient: str,
    channel: Channel,
    generation: int,
    content: bytes | None,
    options: str | bytes,
) -> Notification:
    """The notification for operators, also if its content cannot be decoded."""
    identity = (tenant, key, kind, recipient, channel, generation)
    try:
        return notification_of(*identity, content, options)
    except UNREADABLE:
        return notification_of(*identity, b'{"body":"(cannot be read)"}', b"{}")


def view_of(row: Iterable[Any], attempts: Sequence[Attempt]) -> NotificationView:
    """Build a view from the columns of the SQL stores, in the order of their statements."""
    id, tenant, key, kind, recipient, channel, generation, content, options, *rest = row
    state, reason, provider, added_ms, changed_ms, due_ms, duplicates, suppressed_by, delivery_state, taken = rest
    return NotificationView(
        id=id.hex(),
        notification=readable(tenant, key, kind, recipient, channel, generation, content, options),
        state=state,
        reason=reason,
        provider=provider,
        added_ms=added_ms,
        changed_ms=changed_ms,
        due_ms=due_ms,
        possible_duplicates=duplicates,
        suppressed_by="" if suppressed_by is None else suppressed_by.hex(),
        attempts=tuple(attempts),
        erased=content is None,
        delivery_state=readable_delivery_state(delivery_state),
        taken=bool(taken),
        size=len(content or b""),
    )


def _time(ms: int) -> datetime:
    """The time, limited to the range of Python: PostgreSQL has later years."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.max.replace(tzinfo=UTC)


def _unchecked(fields: dict[str, Any]) -> Notification:
    """A notification without checks. SQL or another version checked it when it was added. Refusing it here would block
    the notifications that are taken with it."""
    one = copy(_ANY)
    for name, value in fields.items():
        force_setattr(one, name, value)
    return one
