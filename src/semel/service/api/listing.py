"""Pages of notifications, the newest first.

A page goes on where the one before ended: at a millisecond. What was added in the same one is never parted, so that
nothing is told twice and nothing is left out, whatever is added meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from msgspec.structs import replace

from semel.ports import Notifications
from semel.service.api.asking import flag, ms_of, time_text
from semel.service.api.notification_shapes import LIST_DEFAULT, LIST_MAX, NotificationLine, NotificationPage
from semel.service.api.refusals import Refused
from semel.values.errors import MalformedEvent
from semel.values.outbox import Shown, Sought
from semel.values.sending import STATES

TEXTS = ("recipient", "kind", "key", "provider")
FILTERS = ("state", *TEXTS)
QUERIES = (*FILTERS, "possible_duplicates", "since", "until", "limit", "reveal")
TOGETHER_MAX = 10_000  # of one millisecond: one large transaction


async def page(
    outbox: Notifications, tenant: str, asked: Mapping[str, str], line: Callable[[Shown], NotificationLine]
) -> NotificationPage:
    sought = sought_in(tenant, asked)
    found = await outbox.find(replace(sought, limit=sought.limit + 1))
    if len(found) <= sought.limit:
        return NotificationPage([line(one) for one in found], None)
    last_ms = found[-1].added_ms  # this millisecond may go on
    whole = [one for one in found if one.added_ms > last_ms]
    if not whole:
        whole, last_ms = await _together(outbox, sought, last_ms), last_ms - 1
    return NotificationPage([line(one) for one in whole], time_text(last_ms + 1))


async def _together(outbox: Notifications, sought: Sought, at_ms: int) -> list[Shown]:
    """All of one millisecond, of which there are more than a page has room for."""
    found = await outbox.find(replace(sought, since_ms=at_ms, until_ms=at_ms + 1, limit=TOGETHER_MAX + 1))
    if len(found) > TOGETHER_MAX:
        raise Refused(409, f"more than {TOGETHER_MAX:,} were added at {time_text(at_ms)}: ask for fewer, by a filter")
    return found


def sought_in(tenant: str, asked: Mapping[str, str]) -> Sought:
    """What is asked for, in the words of the outbox."""
    if (state := asked.get("state")) is not None and state not in STATES:
        raise MalformedEvent(f"state: expected one of {', '.join(STATES)}")
    return Sought(
        tenant=tenant,
        **{name: asked[name] for name in FILTERS if name in asked},
        possible_duplicates=flag(asked, "possible_duplicates"),
        since_ms=_time(asked, "since") or 0,
        until_ms=_time(asked, "until"),
        limit=_limit(asked),
    )


def _limit(asked: Mapping[str, str]) -> int:
    text = asked.get("limit", str(LIST_DEFAULT))
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and 1 <= int(text) <= LIST_MAX):
        raise MalformedEvent(f"limit: expected a whole number, 1 to {LIST_MAX:,}")
    return int(text)


def _time(asked: Mapping[str, str], name: str) -> int | None:
    if name not in asked:
        return None
    try:
        return ms_of(datetime.fromisoformat(asked[name]))
    except (ValueError, TypeError):  # TypeError: it has no zone
        like = "2026-03-19T22:04:48.123Z"
        raise MalformedEvent(f"{name}: expected a time with its zone, as {like} (for + write %2B)") from None
