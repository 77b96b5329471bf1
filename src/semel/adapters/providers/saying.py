"""What a notification says, in the forms that providers take. What cannot be sent is refused here, before it crosses.

Errors show nothing of what is said and nobody it is said to: they become evidence, which people read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from semel.values.errors import ConfigError
from semel.values.outbox import Dispatch

SUBJECT_MAX = 998  # characters: the longest line of a mail
_EMAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", re.ASCII)
_NUMBER = re.compile(r"\+[0-9]{1,15}", re.ASCII)
_NAMED = re.compile(r"(?P<name>[^<>@\"\\]{0,200}?)\s*<(?P<email>[^<>]+)>")


class Address(Struct, frozen=True):
    email: str
    name: str = ""


class Mail(Struct, frozen=True):
    to: str
    sender: Address
    subject: str
    text: str = ""
    html: str = ""


def text_of(dispatch: Dispatch, who: str, longest: int) -> str:
    """The text of a short message."""
    said = dispatch.notification
    if said.template:
        raise ConfigError(f"{who} sends texts, no templates: write what is to be said as the body")
    return _checked_text(said.body, who, longest)


def _checked_text(body: Any, who: str, longest: int) -> str:
    if not isinstance(body, str) or not body:
        raise ConfigError(f"{who} sends texts: the body has to be one")
    if len(body) > longest:
        raise ConfigError(f"the text has {len(body):,} characters; {who} takes {longest:,} at the most (text_max)")
    return body


def sender_of(dispatch: Dispatch, who: str, ours: str) -> str:
    sender = dispatch.notification.sender or ours
    if not sender:
        raise ConfigError(f"{who} needs a sender: give the notification one, or the provider (sender)")
    return sender


def bare_number(address: str) -> str:
    """A number without its plus sign, as some write it; any other address as it is."""
    return address[1:] if _NUMBER.fullmatch(address) is not None else address


def mail_of(dispatch: Dispatch, who: str, ours: str, *, templates: bool = False) -> Mail:
    """A mail to one address. Its body is a text, or {"text": …, "html": …}."""
    said = dispatch.notification
    if _EMAIL.fullmatch(said.recipient) is None:
        raise ConfigError(f"{who} sends to one address: name@example.com, in plain letters")
    sender = address_of(sender_of(dispatch, who, ours), who)
    if said.template:
        if not templates:
            raise ConfigError(f"{who} knows no templates: write what is to be said as the body")
        return Mail(said.recipient, sender, said.subject)
    if not said.subject:
        raise ConfigError(f"{who} needs a subject")
    if not said.subject.isprintable() or len(said.subject) > SUBJECT_MAX:
        raise ConfigError(f"the subject is one line of {SUBJECT_MAX} characters at the most")
    text, html = _text_and_html(said.body, who)
    return Mail(said.recipient, sender, said.subject, text, html)


def address_of(written: str, who: str) -> Address:
    """Of "name@example.com" or "Name <name@example.com>"."""
    named = _NAMED.fullmatch(written)
    address = Address(named["email"], named["name"]) if named is not None else Address(written)
    if _EMAIL.fullmatch(address.email) is None or not written.isprintable():  # a name with a line break is two headers
        raise ConfigError(f"{who}: the sender is no address: name@example.com, or Name <name@example.com>")
    return address


def named_address(address: Address) -> dict[str, str]:
    """As most providers of mail want it."""
    return {"email": address.email, "name": address.name} if address.name else {"email": address.email}


def _text_and_html(body: Any, who: str) -> tuple[str, str]:
    if isinstance(body, str) and body:
        return body, ""
    if isinstance(body, Mapping) and body and not body.keys() - {"text", "html"}:
        text, html = body.get("text", ""), body.get("html", "")
        if isinstance(text, str) and isinstance(html, str) and (text or html):
            return text, html
    raise ConfigError(f'{who} sends a body that is a text, or {{"text": "…", "html": "…"}}')


def texts_of(data: Mapping[str, Any], what: str) -> dict[str, str]:
    """Columns and attributes of platforms are texts, and numbers are written as one."""
    read: dict[str, str] = {}
    for name, value in data.items():
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ConfigError(f"{what}: {name!r} is neither a text nor a number")
        read[name] = str(value)
    return read
