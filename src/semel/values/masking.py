"""Customers in listings and logs: enough to recognise one's own, too little to write to a stranger's."""

from __future__ import annotations

import re

from semel.values.errors import ConfigError
from semel.values.notification import Notification

ERASED = "(erased)"
TAIL = 4  # characters at the end: what people compare when they read a number to each other
HIDDEN_LEAST = 4  # characters that stay hidden, however short the whole is
NAMED_LEAST = 5  # a shorter one may stand in a text by chance

_NUMBER = re.compile(r"\+?[0-9][0-9 ()./-]*")


def masked_recipient(text: str) -> str:
    """`+49…1234`, `m…@example.com`, `…9f3c`."""
    if text in ("", ERASED):
        return text
    name, at, domain = text.rpartition("@")
    if at and name and domain:
        return f"{name[0] if len(name) > HIDDEN_LEAST else ''}…@{domain}"
    if _NUMBER.fullmatch(text):
        return _ends(text, 3 if text.startswith("+") else 2)
    return _ends(text, 0)


def masked_content(notification: Notification) -> str:
    """What sort of content it is and how long, and nothing of what it says."""
    if notification.body == ERASED:
        return ERASED
    parts = [f"template with {_counted(len(notification.data), 'field')}"] if notification.template else []
    match notification.body:
        case None:
            pass
        case str() as text:
            parts.append(f"text of {_counted(len(text), 'character')}")
        case _:
            parts.append(f"document of {_size(notification):,} bytes")
    if notification.subject:
        parts.append(f"subject of {_counted(len(notification.subject), 'character')}")
    return ", ".join(parts)


def without(text: str, recipient: str) -> str:
    """A text that may name the recipient: keys, reasons, what providers say."""
    if len(recipient) < NAMED_LEAST or recipient == ERASED:
        return text
    return re.sub(re.escape(recipient), lambda _: masked_recipient(recipient), text, flags=re.IGNORECASE)


def _counted(many: int, what: str) -> str:
    return f"{many:,} {what}{'' if many == 1 else 's'}"


def _ends(text: str, head: int) -> str:
    """The beginning and the end, as far as enough is hidden between them."""
    tail = min(TAIL, max(0, len(text) - head - HIDDEN_LEAST))
    head = min(head, max(0, len(text) - tail - HIDDEN_LEAST))
    return f"{text[:head]}…{text[len(text) - tail :]}"


def _size(notification: Notification) -> int:
    try:
        return len(notification.content)
    except ConfigError:  # it was judged when it was added, by another version
        return 0
