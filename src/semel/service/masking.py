"""What may be written into a log: short, on one line, and never a body, a secret, or what an object says of itself.

A value is shown only when its kind is known to be harmless; everything else is shown as its kind. Lines are flat: a
list shows its items, anything deeper is a kind. Names decide too: whatever is called a body or a password is masked.
The one thing that nobody can help is a text into which a program has put a secret by itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import islice
from pathlib import PurePath
from typing import TypeAlias
from uuid import UUID

from semel.settings.secret import Secret
from semel.values.errors import MalformedEvent, SemelError

MASK = "***"
TEXT_MAX = 500  # characters of one value
ITEM_MAX = 100  # characters of one item of a list
ITEMS_MAX = 20
NAME_MAX = 64

# What is so named is never shown,
_CREDENTIAL = re.compile(
    r"secret|token|passw|passphrase|pwd|credential|cookie|header|signature|bearer|auth|(api|access|private|account)key|dsn"
)
# and of what is so named only numbers ("body_bytes": 120).
_CONTENT = re.compile(r"body|bodies|payload|document|content|^(data|raw|text|result|event)s?$")

_PLAIN = (date, time, timedelta, Decimal, UUID, PurePath, IPv4Address, IPv6Address, IPv4Network, IPv6Network)

Scalar: TypeAlias = bool | int | float | str | None


def shown(name: str, value: object) -> Scalar | list[Scalar]:
    """The value of a field, as it may stand in a log."""
    hidden = _hidden(name[:NAME_MAX])
    if hidden == "all" or (hidden == "content" and not isinstance(value, (int, float, type(None)))):
        return MASK
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [harmless(item, ITEM_MAX) for item in islice(value, ITEMS_MAX)]
        return items if len(value) <= ITEMS_MAX else [*items, f"… ({len(value)} items)"]
    return harmless(value)


def harmless(value: object, most: int = TEXT_MAX) -> Scalar:
    """One value without regard to its name; what is not known to be harmless is told by its kind."""
    try:
        match value:
            case None | bool():
                return value
            case Secret():
                return MASK
            case Enum():
                return one_line(value.name, most)
            case int():
                return int(value) if -(2**63) <= value < 2**63 else "<large number>"
            case float():
                return float(value)
            case str():
                return one_line(str(value), most)
            case bytes() | bytearray() | memoryview():
                return f"<{len(value)} bytes>"
            case BaseException():
                return said_by(value)
        if isinstance(value, _PLAIN):
            return one_line(str(value), most)
        if isinstance(value, Collection):
            return f"<{_kind(value)} of {len(value)}>"
    except Exception:  # an object may do anything when it is asked something
        pass
    return f"<{_kind(value)}>"


def said_by(error: BaseException) -> str:
    """An error's kind. Its words only where they are ours or the system's: others like to quote what they choked on."""
    words: object = None
    if isinstance(error, SemelError) and not isinstance(error, MalformedEvent):
        words = error
    elif isinstance(error, OSError):
        words = error.strerror
    return _kind(error) if words is None else f"{_kind(error)}: {one_line(str(words))}"


def one_line(text: str, most: int = TEXT_MAX) -> str:
    """Without anything that moves the cursor, ends a line or turns the direction of writing around."""
    part = text[:most]
    if not part.isprintable():
        part = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in part)
    return part if len(text) <= most else f"{part}… ({len(text)} characters)"


def _kind(value: object) -> str:
    return one_line(type(value).__name__, NAME_MAX)


@lru_cache(maxsize=1024)
def _hidden(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.casefold())
    return "all" if _CREDENTIAL.search(plain) else "content" if _CONTENT.search(plain) else ""
