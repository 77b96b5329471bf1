"""Finds events in a ledger and notifications in its outbox: by filter, by key or id, or by the beginning of one."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from semel.cli.describe import Mask, instant_ms, plain
from semel.cli.ledger_place import Place, opened
from semel.core.resend import needed_outbox
from semel.ports import STATES, Catalog, Entry, EntryQuery, StoredOutbox
from semel.values.errors import ConfigError, LedgerUnavailable, SemelError
from semel.values.notification import CONTENT_MAX_BYTES, Notification
from semel.values.outbox import NotificationQuery, NotificationView, Status

KEY_CHARS = 32
PREFIX_MIN_CHARS = 4
SCAN_MAX = 100_000  # entries of one state that are searched for the beginning of a key
PAGE = 250  # entries of the first page: their events are in memory
PAGE_MAX = 2_000  # of a later page, if events are small: a store may scan all entries for each page
PAGE_BYTES = 16_000_000  # of events, in one page

Item = TypeVar("Item")

DEAD_STATES = ("dead", "uncertain")
WHOLE_KEY_ONLY = "A discarded event is in no list: pass its whole key"


class Filters(Struct, frozen=True):
    """The filters of a command."""

    handler: str = ""
    tenant: str | None = None
    reason: str = ""
    since_ms: int = 0
    until_ms: int | None = None

    @property
    def any(self) -> bool:
        return self != Filters()


def filters(handler: str, tenant: str | None, reason: str, since: str, until: str) -> Filters:
    since_ms, until_ms = times(since, until)
    return Filters(handler=handler, tenant=tenant, reason=reason, since_ms=since_ms, until_ms=until_ms)


def times(since: str, until: str) -> tuple[int, int | None]:
    """Parse --since and --until."""
    since_ms = _instant("--since", since) if since else 0
    until_ms = _instant("--until", until) if until else None
    if until_ms is not None and until_ms <= since_ms:
        raise ConfigError(f"--since {since} is not before --until {until}: no time is between them")
    return since_ms, until_ms


def _instant(option: str, text: str) -> int:
    try:
        return instant_ms(text, now_ms())
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{option} {error}") from None


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# -------------------------------------------------------------------------------------------------------- events


async def list_entries(
    where: Place, states: Sequence[str | None], limit: int, wanted: Filters
) -> tuple[list[Entry], int]:
    """The newest entries that match, and the number of all entries in these states. None: any state."""
    async with opened(where, reads=True) as ledger:
        counts = await ledger.counts()
        in_all = sum(count for state, count in counts.items() if state in states or None in states)
        return await newest_entries(ledger, states, limit, wanted), in_all


async def list_dead_letters(
    where: Place, states: Sequence[str], limit: int, wanted: Filters
) -> tuple[list[Entry], int, LedgerUnavailable | None]:
    """The same for dead letters. If the ledger is unavailable, they come from their own store, with its error."""
    try:
        return (*await list_entries(where, states, limit, wanted), None)
    except LedgerUnavailable as error:
        if (alone := where.dead_letter_place) is None:
            raise
        try:
            return (*await list_entries(alone, states, limit, wanted), error)
        except SemelError:  # the dead-letter store is the unavailable one; the first error reports it
            raise error from None


async def key_history(where: Place, key: str, first: Sequence[str]) -> list[Entry]:
    """The history of a key. A beginning of a key is searched in the states `first`, then in the others."""
    async with opened(where, reads=True) as ledger:
        whole = await find_key(ledger, key, first)
        history = await ledger.history(whole)
    if not history:
        raise ConfigError(f"there is no event with the key {whole}, or its retention has ended")
    return history


def event_of(history: Sequence[Entry]) -> bytes:
    """The stored bytes of the event."""
    for entry in history:
        if entry.event is not None:
            return entry.event
    raise ConfigError(f"{history[0].key}: its event is not stored; only dead and uncertain events are")


async def newest_entries(catalog: Catalog, states: Sequence[str | None], limit: int, wanted: Filters) -> list[Entry]:
    """The newest entries of several states, without events and results."""
    found: list[Entry] = []
    for state in states:
        if state is None or limit <= PAGE:
            found += map(_bare, await _entries(catalog, state, limit, wanted))
            continue
        async for entry in every_entry(catalog, state, wanted, limit):
            found.append(_bare(entry))
    found.sort(key=lambda entry: entry.at_ms, reverse=True)
    return found[:limit]


def _bare(entry: Entry) -> Entry:
    return replace(entry, event=None, result=None)


async def every_entry(catalog: Catalog, state: str, wanted: Filters, limit: int | None = None) -> AsyncIterator[Entry]:
    """All entries of a state, or the first `limit`, page by page, the newest first."""

    async def fetch(size: int, until_ms: int | None) -> list[Entry]:
        return await _entries(catalog, state, size, wanted, until_ms)

    def place_of(entry: Entry) -> tuple[str, int, int]:
        return entry.key, entry.at_ms, len(entry.event or b"")

    async for entry in paged(fetch, place_of, wanted.until_ms):
        yield entry
        limit = None if limit is None else limit - 1
        if limit == 0:
            return


async def paged(
    fetch: Callable[[int, int | None], Awaitable[Sequence[Item]]],
    place_of: Callable[[Item], tuple[str, int, int]],
    until_ms: int | None,
    page_max: int | None = None,
) -> AsyncIterator[Item]:
    """All items that a store lists, the newest first, each of them once, also while others are added.

    `place_of` returns the name of an item, its time in milliseconds and its bytes. A page starts in the millisecond in
    which the previous page ended, because many items can share one. It has room for the items already seen there. A
    page without new items was too small for that millisecond, so the next one is twice as large.
    """
    seen: set[str] = set()
    size = PAGE
    while True:
        page = await fetch(size, until_ms)
        places = [place_of(item) for item in page]
        fresh = [item for item, (name, _, _) in zip(page, places, strict=True) if name not in seen]
        seen.update(name for name, _, _ in places)
        for item in fresh:
            yield item
        if len(page) < size:
            return
        oldest_ms = min(at_ms for _, at_ms, _ in places)
        seen_there = sum(at_ms == oldest_ms for _, at_ms, _ in places)
        next_size = _next_size([count for _, _, count in places], page_max or PAGE_MAX)
        size = next_size + seen_there if fresh else size * 2
        later_ms = oldest_ms + 1  # `until` may or may not include its own millisecond
        until_ms = later_ms if until_ms is None else min(until_ms, later_ms)


def _next_size(page_bytes: Sequence[int], most: int) -> int:
    """The number of items that fit into a page, if they are as large as these."""
    average = 1 + sum(page_bytes) // len(page_bytes)
    return max(PAGE, min(most, PAGE_BYTES // average))


async def find_key(catalog: Catalog, text: str, first: Sequence[str] = STATES) -> str:
    """The whole key that begins with this text. Searches the other states only if no key of the states `first` matches.

    Raises ConfigError when there is none, or more than one.
    """

    def keys(states: Sequence[str]) -> list[AsyncIterator[str]]:
        return [(entry.key async for entry in every_entry(catalog, state, Filters())) for state in states]

    others = [state for state in STATES if state not in first]
    return await _complete(text, "key", [keys(first), keys(others)], WHOLE_KEY_ONLY)


async def _complete(text: str, noun: str, groups: Sequence[Sequence[AsyncIterator[str]]], hint: str) -> str:
    """Complete the beginning of a key or an id. A group is searched only if the earlier ones have no match."""
    beginning = digits(text, noun)
    if len(beginning) == KEY_CHARS:
        return beginning
    matches: set[str] = set()
    limited = ""
    for group in groups:
        if matches:
            break
        for listing in group:
            searched = 0
            async for name in listing:
                searched += 1
                if name.startswith(beginning):
                    matches.add(name)
                if searched >= SCAN_MAX:
                    limited = f" among the newest {SCAN_MAX:,} of each state"
                    break
    match sorted(matches):
        case [name]:
            return name
        case []:
            raise ConfigError(f"no {noun} begins with {beginning}{limited}. {hint}")
        case [*several]:
            raise ConfigError(f"{len(several)} {noun}s begin with {beginning}: {', '.join(several[:5])}")


def digits(text: str, what: str) -> str:
    """A key or an id, or its beginning, as copied from a list. Raises ConfigError for anything else."""
    found = text.strip().rstrip("….").lower()
    if not re.fullmatch(rf"[0-9a-f]{{{PREFIX_MIN_CHARS},{KEY_CHARS}}}", found):
        expected = f"{KEY_CHARS} hexadecimal digits, or at least the first {PREFIX_MIN_CHARS} of them"
        raise ConfigError(f"{what} {text[:40]!r}: expected {expected}")
    return found


async def _entries(
    catalog: Catalog, state: str | None, limit: int, wanted: Filters, until_ms: int | None = None
) -> list[Entry]:
    return await catalog.entries(
        EntryQuery(
            state,
            limit,
            handler=wanted.handler,
            tenant=wanted.tenant,
            reason=wanted.reason,
            since_ms=wanted.since_ms,
            until_ms=wanted.until_ms if until_ms is None else until_ms,
        )
    )


# --------------------------------------------------------------------------------------------------- notifications

Kept = TypeVar("Kept")

OUTBOX_SCHEMES = ("sqlite", "postgresql", "postgres")  # URL schemes of ledgers with an outbox
NOTIFICATION_PAGE_MAX = 20_000  # notifications of a page, if they are small: messages are shorter than events
GENERATIONS = 100  # of one business key that are read


@asynccontextmanager
async def outbox_at(where: Place, *, reads: bool = False) -> AsyncIterator[StoredOutbox]:
    """The outbox of a ledger. `reads`: nothing is created or changed. A separate dead-letter store is not opened."""
    if where.ledger.reveal().partition("://")[0] not in OUTBOX_SCHEMES:
        raise ConfigError(
            f"ledger {Place(where.ledger)}: this kind of ledger has no outbox. Notifications need sqlite:///file.db "
            "or postgresql://…: pass one with --ledger, or set it as the ledger"
        )
    async with opened(Place(where.ledger), reads=reads) as ledger:
        yield needed_outbox(ledger)


async def every_notification(outbox: StoredOutbox, query: NotificationQuery) -> AsyncIterator[NotificationView]:
    """All notifications that match the query, page by page."""

    async def fetch(size: int, until_ms: int | None) -> list[NotificationView]:
        return await outbox.find(replace(query, limit=size, until_ms=until_ms))

    def place_of(view: NotificationView) -> tuple[str, int, int]:
        return view.id, view.added_ms, _size(view.notification)

    async for view in paged(fetch, place_of, query.until_ms, NOTIFICATION_PAGE_MAX):
        yield view


def _size(notification: Notification) -> int:
    try:
        return (
            len(notification.body)
            if isinstance(notification.body, str) and not notification.data
            else len(notification.content)
        )
    except ConfigError:  # another version of Semel accepted it
        return CONTENT_MAX_BYTES


async def list_notifications(
    where: Place, query: NotificationQuery, keep: Callable[[NotificationView], Kept]
) -> list[Kept]:
    """The newest notifications, up to the limit of the query. `keep` reduces each: there can be a hundred thousand."""
    async with outbox_at(where, reads=True) as outbox:
        if query.limit <= PAGE:
            return [keep(view) for view in await outbox.find(query)]
        found: list[Kept] = []
        async for view in every_notification(outbox, query):
            found.append(keep(view))
            if len(found) == query.limit:
                break
        return found


def without_content(view: NotificationView, reveal: bool) -> NotificationView:
    """The notification without its content, for long lists. Its reason is masked first, which needs the content."""
    reason, notification = Mask(view.notification, reveal).hidden(view.reason), copy(view.notification)
    force_setattr(notification, "body", "")
    force_setattr(notification, "data", {})
    return replace(view, notification=notification, reason=reason)


async def notification_with_generations(
    where: Place, id: str, key: str, tenant: str
) -> tuple[NotificationView, Sequence[NotificationView]]:
    """One notification, by its id or its business key, and its other generations."""
    async with outbox_at(where, reads=True) as outbox:
        view = await (notification_by_key(outbox, key, tenant) if key else notification_by_id(outbox, id))
        return view, await generations_of(outbox, view)


async def message_status(
    where: Place, tenant: str, recipient: str, kind: str, key: str
) -> tuple[Status, NotificationView | None]:
    """Whether this customer got the message, with the notification that decides the answer."""
    async with outbox_at(where, reads=True) as outbox:
        found = await outbox.status(tenant, recipient=recipient, kind=kind, key=key)
        return found, await outbox.show(bytes.fromhex(found.id)) if found.id else None


async def chosen_notifications(
    outbox: StoredOutbox, ids: Sequence[str], query: NotificationQuery, matching: str = ""
) -> AsyncIterator[NotificationView]:
    """The named notifications; without ids all that match the query and have this text in their reason."""
    for text in ids:
        yield await notification_by_id(outbox, text, first=query.state)
    if not ids:
        async for view in every_notification(outbox, query):
            if matching in view.reason:
                yield view


async def notification_by_id(outbox: StoredOutbox, text: str, first: str = "") -> NotificationView:
    """The notification whose id begins with this text. The state `first` is searched first."""

    def ids(state: str) -> AsyncIterator[str]:
        return (view.id async for view in every_notification(outbox, NotificationQuery(state=state)))

    groups = [[ids(first)], [ids("")]] if first else [[ids("")]]
    id = await _complete(text, "id", groups, "Its retention may have ended; `semel notify list` lists the others")
    view = await outbox.show(bytes.fromhex(id))
    if view is None:
        raise ConfigError(f"there is no notification {id}, or its retention has ended")
    return view


async def notification_by_key(outbox: StoredOutbox, key: str, tenant: str) -> NotificationView:
    """The newest generation of the notification with a business key.

    Raises ConfigError when there is none, or when several messages share the key.
    """
    found = await outbox.find(NotificationQuery(tenant=tenant, key=key, limit=GENERATIONS))
    if not found:
        whose = f"tenant {plain(tenant)!r}" if tenant else "no tenant: pass --tenant"
        raise ConfigError(f"there is no notification with the key {plain(key)!r} (of {whose})")
    if len({_message(view) for view in found}) > 1:
        rows = "\n".join(f"  {view.id}  {view.state:11}  {plain(view.notification.kind)}" for view in found)
        raise ConfigError(f"{len(found)} notifications have the key {plain(key)!r}: pass the id of one\n{rows}")
    latest = max(found, key=lambda view: view.notification.generation)
    return await notification_by_id(outbox, latest.id)


async def generations_of(outbox: StoredOutbox, view: NotificationView) -> Sequence[NotificationView]:
    """The other generations of a message, the oldest first."""
    notification = view.notification
    found = await outbox.find(
        NotificationQuery(tenant=notification.tenant, key=notification.key, kind=notification.kind, limit=GENERATIONS)
    )
    others = [other for other in found if other.id != view.id and _message(other) == _message(view)]
    return sorted(others, key=lambda other: other.notification.generation)


def _message(view: NotificationView) -> tuple[str, str, str]:
    """The fields that all generations share, besides tenant and key."""
    return view.notification.kind, view.notification.recipient, view.notification.channel
