"""What is to be said to a customer, and what makes two calls the same notification.

The identity is the caller's: tenant, business key, kind, recipient, channel and generation. Nothing in it is made up
per call or per attempt, so the same call twice is one notification; a deliberate repetition is a new generation.
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
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)  # other letters are lowered differently by every database
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
    """What is said. It is stored once, and every attempt sends these bytes' meaning again."""

    body: Any = None  # a text, or a document for channel "event"
    subject: str = ""
    sender: str = ""  # a number or an address of ours; empty: the provider's configured one
    template: str = ""  # the provider's id of a template, with its data
    data: Mapping[str, Any] = {}


class Notification(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message to one recipient, about one fact of the caller's business."""

    key: str  # the fact: "order-4711-shipped"; the caller's, never made up per attempt
    kind: str  # what sort of message: "shipping", "reminder"
    recipient: str  # a number, an address, an id of the platform; kept in its normal form (values/py)
    channel: Channel
    body: Any = None
    subject: str = ""
    sender: str = ""
    template: str = ""
    data: Mapping[str, Any] = {}
    tenant: str = ""
    not_after: datetime | None = None  # with its zone; what is not sent by then expires
    priority: int = 5  # 0 goes first, 9 last
    order: str = ""  # notifications with the same order key are sent one after the other
    guard: Guard | None = None
    provider: str = ""  # by name; empty: the first one of its channel
    policy: Policy | None = None  # at the deadline of an unknown outcome; None: the provider's
    generation: int = 1  # 2 is a deliberate repetition

    def __post_init__(self) -> None:
        if self.data or not (self.body is None or isinstance(self.body, str)):
            _keep(self)
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
        """JSON, in one spelling for each content."""
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
        """What its guard watches; None: nothing."""
        return None if self.guard is None else watched(self.guard, self.tenant, self.recipient, self.kind)


def check_batch(notifications: Sequence[Notification], write: str) -> None:
    """Raises ConfigError for one that stands in no list, and for what is no notification; it says what to `write`."""
    if isinstance(notifications, Notification):
        raise ConfigError(f"a notification alone: expected a list of them: {write}")
    if not isinstance(notifications, Sequence) or not all(isinstance(one, Notification) for one in notifications):
        raise ConfigError(f"expected a list of notifications: {write}")


def watched(guard: Guard, tenant: str, recipient: str, kind: str) -> bytes:
    if guard.key:
        return _digest("key", tenant, guard.key)
    return _digest("recipient", tenant, recipient, kind)


def notification_id(tenant: str, key: str, kind: str, recipient: str, channel: str, generation: int) -> bytes:
    """16 bytes. Made of SHA-256 and lengths in decimal, so that a function of a database can make it too."""
    return _digest(tenant, key, kind, recipient, channel, str(generation))


def who_is(tenant: str, text: str) -> bytes:
    """What stands for a recipient, or an order key, of one tenant."""
    return _digest("who", tenant, text)


def who_any(tenant: str, recipient: str) -> list[bytes]:
    """The digests under which notifications to a recipient are stored, whichever spelling is asked for: one or two."""
    return [who_is(tenant, spelling) for spelling in spellings(recipient)]


def _digest(*parts: str) -> bytes:
    """Over parts with their lengths before them: ("ab", "c") and ("a", "bc") are two things."""
    hashed = sha256()
    for part in parts:
        raw = part.encode()
        hashed.update(b"%d:" % len(raw))
        hashed.update(raw)
    return hashed.digest()[:ID_BYTES]


def read_content(raw: bytes) -> Content:
    return _decode(raw)


def _keep(said: Notification) -> None:
    """A copy of its own: whoever writes the next customer's name into the same document does not change this one."""
    try:
        body, data = deepcopy((said.body, said.data))
    except Exception:  # whatever it is: what cannot be copied is no JSON, and is refused as that
        return
    force_setattr(said, "body", body)
    force_setattr(said, "data", data)


def _check_content(said: Notification) -> None:
    """What cannot be stored and read again is refused where it is said, and not when a relay comes to it."""
    if said.body is None and not said.template:
        raise WrongNotification("a notification says something: give it a body or a template")
    if isinstance(said.body, (bytes, bytearray, memoryview)):
        raise WrongNotification("body: expected a text or a document, got bytes: decode them")
    if said.channel != "event" and said.body is not None:  # an event is any JSON
        if not isinstance(said.body, (str, Mapping, list, tuple)):
            raise WrongNotification(f"body: expected a text or a document, got {type(said.body).__name__}")
        if isinstance(said.body, str) and not said.body.strip():
            raise WrongNotification("body: an empty text says nothing")
    if not isinstance(said.subject, str):
        raise WrongNotification("subject: expected a text")
    if not isinstance(said.data, Mapping) or not all(isinstance(name, str) for name in said.data):
        raise WrongNotification('data: expected the fields of the template, {"name": …}')


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_text(name: str, text: object, least: int = 0) -> None:
    if not isinstance(text, str) or not least <= len(text) <= TEXT_MAX:
        raise WrongNotification(f"{name}: expected a text of {least} to {TEXT_MAX} characters")
    if "\x00" in text or not text.isprintable() or text != text.strip():
        raise WrongNotification(
            f"{name}: white space around it or characters that cannot be printed would make it another"
        )


_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(Content).decode
