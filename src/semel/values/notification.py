"""A message to a customer, and its identity.

The identity consists of tenant, business key, kind, recipient, channel and generation. No part of it changes with the
call or the attempt, so the same call twice is one notification. A deliberate repetition is a new generation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from hashlib import sha256
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from semel.values.errors import ConfigError, WrongNotification

# Spellings of a recipient: one customer has one recipient text.
#
#     +49 170 1234567, 0049-170-1234567, tel:+49 (0)170 1234567   ->  +491701234567
#     Maria@Example.COM                                           ->  Maria@example.com
#
# A number without a country code could belong to customers of several countries. A text that is neither a number nor an
# address may be an id of a platform. Both stay as they are, and only the same spelling matches.
#
# `semel.normal_recipient_1` of the PostgreSQL schema does the same for notifications that SQL adds.

PHONE_CHANNELS = ("sms", "voice")

_SEPARATORS = re.compile(r"[ ().\-/]")
_INTERNATIONAL = re.compile(r"\+[1-9][0-9]{6,14}", re.ASCII)  # E.164: 15 digits at most; 7 is the shortest in use
_NATIONAL = re.compile(r"[0-9]{3,15}", re.ASCII)
_EMAIL = re.compile(r"([^@ <>]+)@([^@ <>]+)")
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)  # databases differ in lowering other characters
_TRUNK_ZERO = "(0)"  # +49 (0)170: the zero is dialled inside the country only


def e164(text: str) -> str | None:
    """The number in E.164; None for anything else than an international number."""
    number = text.removeprefix("tel:")
    if number.startswith(("+", "00")):
        number = number.replace(_TRUNK_ZERO, "", 1)
    digits = _SEPARATORS.sub("", number)
    if digits.startswith("00"):
        digits = f"+{digits[2:]}"
    return digits if _INTERNATIONAL.fullmatch(digits) else None


def email(text: str) -> str | None:
    """The address with its domain in lower case, the only part whose case never matters; None if it is no address."""
    found = _EMAIL.fullmatch(text)
    return None if found is None else f"{found[1]}@{found[2].translate(_LOWER)}"


def normal(channel: str, text: str) -> str:
    """The spelling that is stored and sent. Ids of platforms (channels `message` and `event`) stay as they are."""
    if channel in PHONE_CHANNELS:
        return e164(text) or text
    return (email(text) or text) if channel == "email" else text


def spellings(text: str) -> list[str]:
    """The texts under which a recipient may be stored, whatever its channel: as it is, and in its normal form."""
    return list(dict.fromkeys((text, e164(text) or email(text) or text)))


def matching_note(text: str) -> str:
    """Why a look-up by this recipient compares only the same spelling. Empty: other spellings are found too."""
    if e164(text) is not None or email(text) is not None:
        return ""
    if _NATIONAL.fullmatch(_SEPARATORS.sub("", text)):
        return "the number has no country code, so other spellings cannot be matched: use +49…"
    return "neither an international number nor an email address, so only this exact spelling is matched"


Channel: TypeAlias = Literal["sms", "email", "voice", "message", "event"]
CHANNELS: tuple[str, ...] = get_args(Channel)

Policy: TypeAlias = Literal["hold", "presume_sent", "resend", "give_up"]
POLICIES: tuple[str, ...] = get_args(Policy)

ADD = "await app.outbox.add([Notification(key=…, kind=…, …)])"
ID_BYTES = 16
TEXT_MAX = 300  # characters of a key, kind, recipient, order key; an email address has at most 254
CONTENT_MAX_BYTES = 256 * 1024
PRIORITY_MAX = 9
WINDOW_MAX_S = 400 * 86_400.0  # once a year is the rarest message that is guarded


class Guard(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most one message in a sliding window. By default to one recipient of one kind."""

    window_s: float
    key: str = ""  # of the caller's choice, within the tenant; empty: recipient and kind


class Content(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The content of a message. It is stored once, and every attempt sends it."""

    body: Any = None  # a text, or a document for channel "event"
    subject: str = ""
    sender: str = ""  # a number or an address; empty: the configured sender of the provider
    template: str = ""  # the provider's id of a template, with its data
    data: Mapping[str, Any] = {}


class Notification(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message to one recipient, about one fact of the caller's business."""

    key: str  # the business fact: "order-4711-shipped"; the same in every attempt
    kind: str  # of message: "shipping", "reminder"
    recipient: str  # a number, an address, an id of the platform; stored in its normal form
    channel: Channel
    body: Any = None
    subject: str = ""
    sender: str = ""
    template: str = ""
    data: Mapping[str, Any] = {}
    tenant: str = ""
    not_after: datetime | None = None  # with its zone; an unsent message expires then
    priority: int = 5  # 0 goes first, 9 last
    order: str = ""  # notifications with the same order key are sent one after the other
    guard: Guard | None = None
    provider: str = ""  # by name; empty: the first one of its channel
    policy: Policy | None = None  # at the deadline of an unknown outcome; None: the provider's
    generation: int = 1  # 2 is a deliberate repetition

    def __post_init__(self) -> None:
        if self.data or not (self.body is None or isinstance(self.body, str)):
            _copy_content(self)
        for name in ("key", "kind", "recipient"):
            _check_text(name, getattr(self, name), least=1)
        for name in ("tenant", "order", "provider", "sender", "template"):
            _check_text(name, getattr(self, name))
        if self.channel not in CHANNELS:
            raise WrongNotification(f"channel={self.channel!r}: expected one of {', '.join(CHANNELS)}")
        if (recipient := normal(self.channel, self.recipient)) != self.recipient:
            force_setattr(self, "recipient", recipient)
        if self.policy is not None and self.policy not in POLICIES:
            raise WrongNotification(f"policy={self.policy!r}: expected one of {', '.join(POLICIES)}")
        _check_content(self)
        if self.not_after is not None and not isinstance(self.not_after, datetime):
            raise WrongNotification("not_after: expected a datetime with its zone, datetime.now(timezone.utc) + …")
        if self.not_after is not None and self.not_after.tzinfo is None:
            raise WrongNotification("not_after has no time zone: give it one, datetime.now(timezone.utc) + …")
        if type(self.priority) is not int or not 0 <= self.priority <= PRIORITY_MAX:
            raise WrongNotification(f"priority={self.priority!r}: expected 0 (first) to {PRIORITY_MAX}")
        if type(self.generation) is not int or not 1 <= self.generation < 2**31:
            raise WrongNotification(f"generation={self.generation!r}: expected a whole number, 1 or more")
        if self.guard is not None and not isinstance(self.guard, Guard):
            raise WrongNotification("guard: expected a Guard, Guard(window_s=86_400)")
        if self.guard is not None:
            _check_text("guard.key", self.guard.key)
            if not _is_number(self.guard.window_s) or not 0 < self.guard.window_s <= WINDOW_MAX_S:
                raise WrongNotification(
                    f"guard.window_s={self.guard.window_s!r}: expected seconds, above 0 and at most {WINDOW_MAX_S:g}"
                )

    @property
    def id(self) -> bytes:
        return notification_id(self.tenant, self.key, self.kind, self.recipient, self.channel, self.generation)

    @property
    def content(self) -> bytes:
        """The content as canonical JSON."""
        content = Content(
            body=self.body, subject=self.subject, sender=self.sender, template=self.template, data=self.data
        )
        try:
            raw = _encode(content)
        except (TypeError, ValueError, RecursionError) as error:
            raise WrongNotification(f"the notification's body or data cannot be written as JSON: {error}") from None
        if len(raw) > CONTENT_MAX_BYTES:
            raise WrongNotification(f"the notification has {len(raw):,} bytes; {CONTENT_MAX_BYTES:,} is the most")
        return raw

    @property
    def guarded_by(self) -> bytes | None:
        """The digest that its guard watches; None without a guard."""
        return None if self.guard is None else watched(self.guard, self.tenant, self.recipient, self.kind)


def check_batch(notifications: Sequence[Notification], write: str) -> None:
    """Raise ConfigError unless it is a list of notifications. The error shows the correct call, `write`."""
    if isinstance(notifications, Notification):
        raise ConfigError(f"a notification alone: expected a list of them: {write}")
    if not isinstance(notifications, Sequence) or not all(isinstance(one, Notification) for one in notifications):
        raise ConfigError(f"expected a list of notifications: {write}")


def watched(guard: Guard, tenant: str, recipient: str, kind: str) -> bytes:
    if guard.key:
        return _digest("key", tenant, guard.key)
    return _digest("recipient", tenant, recipient, kind)


def notification_id(tenant: str, key: str, kind: str, recipient: str, channel: str, generation: int) -> bytes:
    """16 bytes of SHA-256 over length-prefixed parts, which a function of a database can compute too."""
    return _digest(tenant, key, kind, recipient, channel, str(generation))


def recipient_digest(tenant: str, text: str) -> bytes:
    """The digest of a recipient, or of an order key, of one tenant."""
    return _digest("who", tenant, text)


def recipient_digests(tenant: str, recipient: str) -> list[bytes]:
    """The digests under which notifications to a recipient may be stored, in any spelling: one or two."""
    return [recipient_digest(tenant, spelling) for spelling in spellings(recipient)]


def _digest(*parts: str) -> bytes:
    """Digest of length-prefixed parts: ("ab", "c") and ("a", "bc") differ."""
    hashed = sha256()
    for part in parts:
        raw = part.encode()
        hashed.update(b"%d:" % len(raw))
        hashed.update(raw)
    return hashed.digest()[:ID_BYTES]


def read_content(raw: bytes) -> Content:
    return _decode(raw)


def _copy_content(notification: Notification) -> None:
    """Copy body and data, so that a caller that reuses its document does not change this notification."""
    try:
        body, data = deepcopy((notification.body, notification.data))
    except Exception:  # an object that cannot be copied is no JSON, and is refused later
        return
    force_setattr(notification, "body", body)
    force_setattr(notification, "data", data)


def _check_content(notification: Notification) -> None:
    """Refuse content that cannot be stored and decoded, before a relay takes it."""
    if notification.body is None and not notification.template:
        raise WrongNotification("a notification needs a body or a template")
    if isinstance(notification.body, (bytes, bytearray, memoryview)):
        raise WrongNotification("body: expected a text or a document, got bytes: decode them")
    if notification.channel != "event" and notification.body is not None:  # an event is any JSON
        if not isinstance(notification.body, (str, Mapping, list, tuple)):
            raise WrongNotification(f"body: expected a text or a document, got {type(notification.body).__name__}")
        if isinstance(notification.body, str) and not notification.body.strip():
            raise WrongNotification("body: the text is empty")
    if not isinstance(notification.subject, str):
        raise WrongNotification("subject: expected a text")
    if not isinstance(notification.data, Mapping) or not all(isinstance(name, str) for name in notification.data):
        raise WrongNotification('data: expected the fields of the template, {"name": …}')


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_text(name: str, text: object, least: int = 0) -> None:
    if not isinstance(text, str) or not least <= len(text) <= TEXT_MAX:
        raise WrongNotification(f"{name}: expected a text of {least} to {TEXT_MAX} characters")
    if "\x00" in text or not text.isprintable() or text != text.strip():
        raise WrongNotification(f"{name}: remove white space at its ends and unprintable characters")


_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(Content).decode
