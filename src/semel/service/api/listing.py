"""Pages of notifications, the newest first.

A page continues behind the last notification of the page before: its time and its id are the cursor. So nothing is
repeated and nothing is left out, whatever is added meanwhile.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace
from starlette.responses import Response

from semel.ports import Notifications
from semel.service.api.asking import flag, ms_of, told
from semel.service.api.notification_shapes import LIST_DEFAULT, LIST_MAX, NotificationLine, NotificationPage
from semel.values.errors import MalformedEvent
from semel.values.outbox import Shown, Sought
from semel.values.sending import STATES

TEXTS = ("recipient", "kind", "key", "provider")
FILTERS = ("state", *TEXTS)
QUERIES = (*FILTERS, "possible_duplicates", "since", "until", "after", "limit", "reveal")
CURSOR_PATTERN = re.compile("[0-9a-f]{12}-[0-9a-f]{32}")  # of `next`: milliseconds and an id
PAGE_MAX_BYTES = 2 * 1024 * 1024  # of contents: what is made of them in memory is several times as large


async def page(
    outbox: Notifications, tenant: str, asked: Mapping[str, str], line: Callable[[Shown], NotificationLine]
) -> Response:
    """One page, bounded by rows and by bytes. It is masked and written in a thread: other requests do not wait."""
    sought = sought_in(tenant, asked)
    found = await outbox.find(replace(sought, limit=sought.limit + 1))
    return await asyncio.to_thread(_written, found, sought, line)


def _written(found: Sequence[Shown], sought: Sought, line: Callable[[Shown], NotificationLine]) -> Response:
    shown = found[: sought.limit]
    has_more = len(found) > sought.limit or sum(one.size for one in found) > PAGE_MAX_BYTES
    next = f"{shown[-1].added_ms:012x}-{shown[-1].id}" if has_more else None
    return told(NotificationPage([line(one) for one in shown], next))


def sought_in(tenant: str, asked: Mapping[str, str]) -> Sought:
    """What is asked for, in the words of the outbox."""
    if (state := asked.get("state")) is not None and state not in STATES:
        raise MalformedEvent(f"state: expected one of {', '.join(STATES)}")
    until_ms, after_id = _cursor(asked["after"]) if "after" in asked else (_time(asked, "until"), None)
    return Sought(
        tenant=tenant,
        **{name: asked[name] for name in FILTERS if name in asked},
        possible_duplicates=flag(asked, "possible_duplicates"),
        since_ms=_time(asked, "since") or 0,
        until_ms=until_ms,
        after_id=after_id,
        limit=_limit(asked),
        bytes_max=PAGE_MAX_BYTES,
    )


def _limit(asked: Mapping[str, str]) -> int:
    text = asked.get("limit", str(LIST_DEFAULT))
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and 1 <= int(text) <= LIST_MAX):
        raise MalformedEvent(f"limit: expected a whole number, 1 to {LIST_MAX:,}")
    return int(text)


def _cursor(text: str) -> tuple[int, bytes]:
    """`next` of another page: the time and the id of its last notification."""
    if not CURSOR_PATTERN.fullmatch(text):
        raise MalformedEvent("after: expected `next` of another page")
    at, _, id = text.partition("-")
    return int(at, 16), bytes.fromhex(id)


def _time(asked: Mapping[str, str], name: str) -> int | None:
    if name not in asked:
        return None
    try:
        return ms_of(datetime.fromisoformat(asked[name]))
    except (ValueError, TypeError):  # TypeError: it has no zone
        like = "2026-03-19T22:04:48.123Z"
        raise MalformedEvent(f"{name}: expected a time with its zone, as {like} (for + write %2B)") from None
