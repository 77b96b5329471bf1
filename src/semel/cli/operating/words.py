"""How times, keys and foreign texts are written for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

KEY_SHOWN_CHARS = 12  # of 32: enough to tell a million keys apart

_UUID = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGES = ((604_800 * 2, "week", 604_800), (86_400 * 2, "day", 86_400), (3_600, "hour", 3_600), (60, "minute", 60))


def plain(text: str) -> str:
    """A text of unknown origin on one line, without anything that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def plain_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(plain(line) for line in text.split("\n"))


def moment(at_ms: int) -> str:
    """UTC, to the second."""
    return f"{_utc(at_ms):%Y-%m-%d %H:%M:%S} UTC"


def iso(at_ms: int) -> str:
    return _utc(at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def age(at_ms: int, now_ms: int) -> str:
    """How long it has been, in words: "3 minutes". Another clock may be a little ahead of ours."""
    seconds = max(0, now_ms - at_ms) // 1000
    for least_s, unit, unit_s in _AGES:
        if seconds >= least_s:
            return counted(seconds // unit_s, unit)
    return counted(seconds, "second")


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def size(count: int) -> str:
    """Bytes, as much of them as people want to know: "81 GB"."""
    if count < 1000:
        return counted(count, "byte")
    amount, units = count / 1000, ["TB", "GB", "MB", "kB"]
    while round(amount) >= 1000 and len(units) > 1:
        amount /= 1000
        units.pop()
    return f"{amount:.1f} {units[-1]}" if amount < 9.95 else f"{amount:,.0f} {units[-1]}"


def short(key: str) -> str:
    return key if len(key) <= KEY_SHOWN_CHARS else f"{key[:KEY_SHOWN_CHARS]}…"


def cut(text: str, most_chars: int) -> str:
    return text if len(text) <= most_chars else f"{text[: most_chars - 1]}…"


def brief_ids(text: str) -> str:
    """UUIDs by their first digits, as people tell them apart: a line has room for more than one then."""
    return _UUID.sub(r"\1…", text)


def span_s(text: str) -> int | None:
    """A length of time: "90s", "2h", "3d". None: it is none."""
    match = re.fullmatch(r"([0-9]{1,6})([smhdw])", text.strip())
    return int(match[1]) * _UNITS_S[match[2]] if match else None


def instant_ms(text: str, now_ms: int) -> int:
    """An ISO 8601 time (UTC where it does not say), or how long ago: "90s", "2h", "3d". Raises ValueError."""
    text = text.strip()
    if (ago_s := span_s(text)) is not None:
        return now_ms - ago_s * 1000
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r}: expected a time such as 2026-03-19T22:00 or 2h, 3d ago") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _utc(at_ms: int) -> datetime:
    """Years that no clock shows are cut down to ones that can be written."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(max(at_ms, 0), 253_402_300_799_999))
