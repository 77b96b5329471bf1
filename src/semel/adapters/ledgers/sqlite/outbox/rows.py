"""Notifications as they stand in the file."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from semel.values.notification import Channel, Guard, Notification, Policy, read_content, watched
from semel.values.sending import Standing

ERASED = b'{"body":"(erased)"}'

encode = msgspec.json.Encoder().encode
standing_of = msgspec.json.Decoder(Standing).decode


class Options(Struct, frozen=True, omit_defaults=True):
    """What a notification asks for, besides its identity and content."""

    order: str = ""
    priority: int = 5
    not_after_ms: int | None = None
    guard: Guard | None = None
    provider: str = ""
    policy: Policy | None = None


_options = msgspec.json.Decoder(Options).decode


def options_of(one: Notification) -> Options:
    not_after = None if one.not_after is None else int(one.not_after.timestamp() * 1000)
    return Options(one.order, one.priority, not_after, one.guard, one.provider, one.policy)


def guard_of(tenant: str, recipient: str, kind: str, options: bytes) -> bytes | None:
    """What a notification's guard watches."""
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
    options: bytes,
) -> Notification:
    said, asked = read_content(content or ERASED), _options(options)
    return Notification(
        key=key,
        kind=kind,
        recipient=recipient or "(erased)",
        channel=channel,
        body=said.body,
        subject=said.subject,
        sender=said.sender,
        template=said.template,
        data=said.data,
        tenant=tenant,
        not_after=None if asked.not_after_ms is None else datetime.fromtimestamp(asked.not_after_ms / 1000, UTC),
        priority=asked.priority,
        order=asked.order,
        guard=asked.guard,
        provider=asked.provider,
        policy=asked.policy,
        generation=generation,
    )
