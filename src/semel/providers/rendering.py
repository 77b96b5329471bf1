"""Renders notifications into the forms that providers take: texts, mails, and documents with placeholders.

A notification that cannot be sent is refused here, before its crossing. Errors contain neither the message nor the
recipient, because they become evidence, which operators read.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

from msgspec import Struct

from semel.values.errors import ConfigError
from semel.values.outbox import Dispatch

SUBJECT_MAX = 998  # characters: the longest line of a mail
_EMAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", re.ASCII)
_NUMBER = re.compile(r"\+[0-9]{1,15}", re.ASCII)
_NAMED = re.compile(r"(?P<name>[^<>@\"\\]{0,200}?)\s*<(?P<email>[^<>]+)>")


class MailAddress(Struct, frozen=True):
    email: str
    name: str = ""


class Mail(Struct, frozen=True):
    to: str
    sender: MailAddress
    subject: str
    text: str = ""
    html: str = ""


def message_text(dispatch: Dispatch, who: str, longest: int) -> str:
    """The text of a short message. Raises ConfigError."""
    notification = dispatch.notification
    if notification.template:
        raise ConfigError(f"{who} sends texts, no templates: put the text into the body")
    body = notification.body
    if not isinstance(body, str) or not body:
        raise ConfigError(f"{who} sends texts: the body must be a text")
    if len(body) > longest:
        raise ConfigError(f"the text has {len(body):,} characters; {who} accepts {longest:,} at most (text_max)")
    return body


def choose_sender(dispatch: Dispatch, who: str, default: str) -> str:
    sender = dispatch.notification.sender or default
    if not sender:
        raise ConfigError(f"{who} needs a sender: set it in the notification, or as the provider's option sender")
    return sender


def bare_number(address: str) -> str:
    """Remove the plus sign of a phone number. Other addresses are unchanged."""
    return address[1:] if _NUMBER.fullmatch(address) is not None else address


def build_mail(dispatch: Dispatch, who: str, default_sender: str, *, templates: bool = False) -> Mail:
    """Build a mail to one address. The body is a text, or {"text": …, "html": …}. Raises ConfigError."""
    notification = dispatch.notification
    if _EMAIL.fullmatch(notification.recipient) is None:
        raise ConfigError(f"{who} sends to one address: name@example.com, in ASCII")
    sender = parse_address(choose_sender(dispatch, who, default_sender), who)
    if notification.template:
        if not templates:
            raise ConfigError(f"{who} has no templates: put the text into the body")
        return Mail(notification.recipient, sender, notification.subject)
    if not notification.subject:
        raise ConfigError(f"{who} needs a subject")
    if not notification.subject.isprintable() or len(notification.subject) > SUBJECT_MAX:
        raise ConfigError(f"the subject must be one line of at most {SUBJECT_MAX} characters")
    text, html = _text_and_html(notification.body, who)
    return Mail(notification.recipient, sender, notification.subject, text, html)


def parse_address(written: str, who: str) -> MailAddress:
    """Parse "name@example.com" or "Name <name@example.com>". Raises ConfigError."""
    named = _NAMED.fullmatch(written)
    address = MailAddress(named["email"], named["name"]) if named is not None else MailAddress(written)
    if _EMAIL.fullmatch(address.email) is None or not written.isprintable():  # a line break would add a header
        raise ConfigError(f"{who}: the sender is not an address: name@example.com, or Name <name@example.com>")
    return address


def named_address(address: MailAddress) -> dict[str, str]:
    """The address as an object, the form that most mail providers take."""
    return {"email": address.email, "name": address.name} if address.name else {"email": address.email}


def _text_and_html(body: Any, who: str) -> tuple[str, str]:
    if isinstance(body, str) and body:
        return body, ""
    if isinstance(body, Mapping) and body and not body.keys() - {"text", "html"}:
        text, html = body.get("text", ""), body.get("html", "")
        if isinstance(text, str) and isinstance(html, str) and (text or html):
            return text, html
    raise ConfigError(f'{who}: the body must be a text, or {{"text": "…", "html": "…"}}')


def as_texts(data: Mapping[str, Any], what: str) -> dict[str, str]:
    """Convert numbers to texts: columns and attributes of platforms are texts. Raises ConfigError."""
    texts: dict[str, str] = {}
    for name, value in data.items():
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ConfigError(f"{what}: {name!r} is neither a text nor a number")
        texts[name] = str(value)
    return texts


# Documents with placeholders: the configured body of a request.
#
#     {"to": "{recipient}", "text": "{body}", "meta": {"reference": "{id}", "note": "for {kind}"}}
#
# A text that is a single placeholder is replaced by the value itself, which may be a document. A placeholder within a
# text is replaced by text. "{{" is a literal brace.

PLACEHOLDERS = ("id", "recipient", "body", "subject", "sender", "template", "kind", "key", "tenant", "channel")
DEPTH_MAX = 20
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def check_template(template: Any, what: str, depth: int = 0) -> None:
    """Raises ConfigError for unknown placeholders, at start-up instead of at the first message."""
    if depth > DEPTH_MAX:
        raise ConfigError(f"{what}: nested more than {DEPTH_MAX} deep")
    match template:
        case str():
            for found in _PLACEHOLDER.finditer(template):
                if found[0] in ("{{", "}}"):
                    continue
                name = found[1] or ""
                if name not in PLACEHOLDERS and not (name.startswith("data.") and len(name) > len("data.")):
                    raise ConfigError(
                        f"{what}: {found[0]!r} is not a placeholder: "
                        f"expected one of {{{'}, {'.join(PLACEHOLDERS)}}} or {{data.NAME}}"
                    )
        case Mapping():
            for name, value in template.items():
                if not isinstance(name, str):
                    raise ConfigError(f"{what}: field names must be texts")
                check_template(value, what, depth + 1)
        case list() | tuple():
            for value in template:
                check_template(value, what, depth + 1)
        case None | bool() | int() | float():
            pass
        case _:
            raise ConfigError(f"{what}: {type(template).__name__} cannot be written as JSON")


def fill_template(template: Any, dispatch: Dispatch, sender: str) -> Any:
    """Fill the document for one message. Raises ConfigError if the message has no value for a placeholder."""
    match template:
        case str():
            whole = _PLACEHOLDER.fullmatch(template)
            if whole is not None and whole[1] is not None:
                return _value(whole[1], dispatch, sender)
            return _PLACEHOLDER.sub(lambda found: _as_text(found, dispatch, sender), template)
        case Mapping():
            return {name: fill_template(value, dispatch, sender) for name, value in template.items()}
        case list() | tuple():
            return [fill_template(value, dispatch, sender) for value in template]
    return template


def _as_text(found: re.Match[str], dispatch: Dispatch, sender: str) -> str:
    if found[0] in ("{{", "}}"):
        return found[0][0]
    value = _value(found[1], dispatch, sender)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ConfigError(f"{{{found[1]}}} within a text: its value is neither a text nor a number")
    return str(value)


def _value(name: str, dispatch: Dispatch, sender: str) -> Any:
    notification = dispatch.notification
    match name:
        case "id":
            return dispatch.id.hex()
        case "sender":
            return notification.sender or sender
    if name.startswith("data."):
        data_name = name.removeprefix("data.")
        if data_name not in notification.data:
            raise ConfigError(f"the notification's data has no {data_name!r}, which the provider's body needs")
        return notification.data[data_name]
    return getattr(notification, name)


def insert_key(document: Mapping[str, Any], path: str, key: str) -> dict[str, Any]:
    """Insert the key at a path such as "meta.idempotencyKey".

    Raises ConfigError if the document already has a value there: its author may rely on it.
    """
    name, _, rest = path.partition(".")
    inner = document.get(name)
    if not rest:
        if inner is not None:
            raise ConfigError(f"the body already has {name!r}: remove it, Semel writes the key there")
        return {**document, name: key}
    if inner is not None and not isinstance(inner, Mapping):
        raise ConfigError(f"the body's {name!r} must be an object, because the key is written into it")
    return {**document, name: insert_key(inner or {}, rest, key)}


WORD_BYTES = 36  # of UTF-8 in an encoded word: its line, with the header's name, has at most 76 characters
FOLD = "\r\n "  # continues a header on the next line
PLAIN_MAX = 70  # characters of a header that is written without encoding
_SPECIAL = set('()<>[]:;@\\,."=?_')


def mail_bytes(mail: Mail, message_id: str, boundary: str, date_ms: int) -> str:
    """Render a mail as ASCII text with CRLF line ends.

    The result is the same in every version of Python: 7-bit, short lines, nothing random, so that a retry sends the
    same bytes. The Message-ID contains the notification id, so that a recipient can detect a duplicate.
    """
    head = [
        f"From: {mailbox(mail.sender, FOLD)}",
        f"To: <{mail.to}>",
        f"Subject: {_header(mail.subject)}",
        f"Message-ID: <{message_id}>",
        f"Date: {formatdate(date_ms / 1000, usegmt=False)}",
        "MIME-Version: 1.0",
    ]
    parts = [(kind, value) for kind, value in (("plain", mail.text), ("html", mail.html)) if value]
    if len(parts) == 1:
        return "\r\n".join([*head, *_part(*parts[0])])
    lines = [*head, f'Content-Type: multipart/alternative; boundary="{boundary}"', ""]
    for kind, value in parts:
        lines += [f"--{boundary}", *_part(kind, value)]
    return "\r\n".join([*lines, f"--{boundary}--", ""])


def _part(kind: str, value: str) -> list[str]:
    encoded = base64.encodebytes(value.encode()).decode().splitlines()
    return [f"Content-Type: text/{kind}; charset=utf-8", "Content-Transfer-Encoding: base64", "", *encoded, ""]


def mailbox(address: MailAddress, between: str = " ") -> str:
    """A name and its address in 7-bit ASCII. `between` separates the encoded words of a long name."""
    name = address.name
    if not name:
        return f"<{address.email}>"
    return f"{_words(name, between) if not name.isascii() or _SPECIAL & set(name) else name} <{address.email}>"


def _header(text: str) -> str:
    plain = text.isascii() and text.isprintable() and "=?" not in text and len(text) <= PLAIN_MAX
    return text if plain and text == text.strip() else _words(text, FOLD)


def _words(text: str, between: str) -> str:
    """Encoded words (RFC 2047), split between characters."""
    words, word = [], b""
    for char in text:
        raw = char.encode()
        if len(word) + len(raw) > WORD_BYTES:
            words.append(word)
            word = b""
        word += raw
    words.append(word)
    return between.join(f"=?utf-8?b?{base64.b64encode(word).decode()}?=" for word in words)
