"""Finds what an operator wants in a ledger."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from semel.cli.operating.place import Place, opened
from semel.cli.operating.words import instant_ms
from semel.ports import STATES, Catalog, Entry
from semel.values.errors import ConfigError, LedgerUnavailable, SemelError

KEY_CHARS = 32
PREFIX_MIN_CHARS = 4
SCAN_MAX = 100_000  # entries of one state that are looked at for the beginning of a key
PAGE = 250  # entries of a first look: their events are in memory meanwhile
PAGE_MAX = 2_000  # of a later one, where they are small: a store may have to look through all of them for each page
PAGE_BYTES = 16_000_000  # of their events

One = TypeVar("One")

LETTERS = ("dead", "uncertain")
WHOLE_ONLY = "What was discarded is in no list any more, and known by its whole key only"


class Filters(Struct, frozen=True):
    """Which entries are wanted."""

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
    """What --since and --until say."""
    since_ms = _instant("--since", since) if since else 0
    until_ms = _instant("--until", until) if until else None
    if until_ms is not None and until_ms <= since_ms:
        raise ConfigError(f"--since {since} is not before --until {until}: nothing can be in between")
    return since_ms, until_ms


def _instant(option: str, text: str) -> int:
    try:
        return instant_ms(text, now_ms())
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{option} {error}") from None


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# -------------------------------------------------------------------------------------------------- what is in it


async def listed(where: Place, states: Sequence[str | None], limit: int, wanted: Filters) -> tuple[list[Entry], int]:
    """The newest entries that are wanted, and how many there are in these states at all. None: any state."""
    async with opened(where, reads=True) as ledger:
        counts = await ledger.counts()
        in_all = sum(count for state, count in counts.items() if state in states or None in states)
        return await newest(ledger, states, limit, wanted), in_all


async def letters(
    where: Place, states: Sequence[str], limit: int, wanted: Filters
) -> tuple[list[Entry], int, LedgerUnavailable | None]:
    """The same of letters, which may be in a store of their own: that is enough to list them. Why the ledger itself is
    out of reach, if it is, comes with them."""
    try:
        return (*await listed(where, states, limit, wanted), None)
    except LedgerUnavailable as error:
        if (alone := where.letters_alone) is None:
            raise
        try:
            return (*await listed(alone, states, limit, wanted), error)
        except SemelError:  # it is this store that is out of reach, and the first error has said so
            raise error from None


async def known(where: Place, key: str, first: Sequence[str]) -> list[Entry]:
    """The history of a key, which may be told by its beginning. It is looked for in these states first."""
    async with opened(where, reads=True) as ledger:
        whole = await find(ledger, key, first)
        history = await ledger.history(whole)
    if not history:
        raise ConfigError(f"nothing is known of the key {whole}, or its retention is over")
    return history


def event_of(history: Sequence[Entry]) -> bytes:
    """The event, byte for byte."""
    for entry in history:
        if entry.event is not None:
            return entry.event
    raise ConfigError(f"{history[0].key}: its event is not kept: that is done while it is dead or uncertain")


async def newest(catalog: Catalog, states: Sequence[str | None], limit: int, wanted: Filters) -> list[Entry]:
    """The newest entries of several states together, without their documents."""
    found: list[Entry] = []
    for state in states:
        if state is None or limit <= PAGE:
            found += map(_bare, await _entries(catalog, state, limit, wanted))
            continue
        async for entry in every(catalog, state, wanted, limit):
            found.append(_bare(entry))
    found.sort(key=lambda entry: entry.at_ms, reverse=True)
    return found[:limit]


def _bare(entry: Entry) -> Entry:
    return replace(entry, event=None, result=None)


async def every(catalog: Catalog, state: str, wanted: Filters, limit: int | None = None) -> AsyncIterator[Entry]:
    """All entries of a state, or so many, page after page, the newest first."""

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
    fetch: Callable[[int, int | None], Awaitable[Sequence[One]]],
    place_of: Callable[[One], tuple[str, int, int]],
    until_ms: int | None,
    page_max: int | None = None,
) -> AsyncIterator[One]:
    """All that a store lists, the newest first. Each comes once, whatever happens meanwhile. `place_of` tells which one
    it is, its time in milliseconds and its bytes.

    A page begins in the millisecond in which the one before it ended, since many can share one: it has room for those
    that were seen there. Where it brings nothing new all the same, it was too small for that millisecond.
    """
    seen: set[str] = set()
    size = PAGE
    while True:
        page = await fetch(size, until_ms)
        places = [place_of(one) for one in page]
        fresh = [one for one, (name, _, _) in zip(page, places, strict=True) if name not in seen]
        seen.update(name for name, _, _ in places)
        for one in fresh:
            yield one
        if len(page) < size:
            return
        oldest_ms = min(at_ms for _, at_ms, _ in places)
        seen_there = sum(at_ms == oldest_ms for _, at_ms, _ in places)
        next_size = _next_size([count for _, _, count in places], page_max or PAGE_MAX)
        size = next_size + seen_there if fresh else size * 2
        later_ms = oldest_ms + 1  # `until` may or may not include its own millisecond
        until_ms = later_ms if until_ms is None else min(until_ms, later_ms)


def _next_size(page_bytes: Sequence[int], most: int) -> int:
    """As many as fit, if the next ones are like these."""
    average = 1 + sum(page_bytes) // len(page_bytes)
    return max(PAGE, min(most, PAGE_BYTES // average))


async def find(catalog: Catalog, text: str, first: Sequence[str] = STATES) -> str:
    """The whole key that begins with this text. Raises ConfigError when there is none, or more than one.

    Whoever means letters has to tell them apart from letters only: the other states are looked at when these have none.
    """
    key = digits(text, "key")
    if len(key) == KEY_CHARS:
        return key
    matches, complete = await _beginning_with(catalog, key, first)
    if not matches and (others := [state for state in STATES if state not in first]):
        matches, complete_too = await _beginning_with(catalog, key, others)
        complete = complete and complete_too
    limited = "" if complete else f" among the newest {SCAN_MAX:,} of each state"
    return the_only(matches, key, "key", f"{limited}. {WHOLE_ONLY}")


def digits(text: str, what: str) -> str:
    """A key or an id, or its beginning, as it was copied from a list. Raises ConfigError when it is none."""
    found = text.strip().rstrip("….").lower()
    if not re.fullmatch(rf"[0-9a-f]{{{PREFIX_MIN_CHARS},{KEY_CHARS}}}", found):
        expected = f"{KEY_CHARS} hexadecimal digits, or at least the first {PREFIX_MIN_CHARS} of them"
        raise ConfigError(f"{what} {text[:40]!r}: expected {expected}")
    return found


def the_only(matches: Collection[str], beginning: str, what: str, where: str) -> str:
    match sorted(matches):
        case [found]:
            return found
        case []:
            raise ConfigError(f"no {what} begins with {beginning}{where}")
        case [*several]:
            raise ConfigError(f"{len(several)} {what}s begin with {beginning}: {', '.join(several[:5])}")


async def _beginning_with(catalog: Catalog, prefix: str, states: Sequence[str]) -> tuple[set[str], bool]:
    matches: set[str] = set()
    complete = True
    for state in states:
        looked_at = 0
        async for entry in every(catalog, state, Filters()):
            looked_at += 1
            if entry.key.startswith(prefix):
                matches.add(entry.key)
            if looked_at >= SCAN_MAX:
                complete = False
                break
    return matches, complete


async def _entries(
    catalog: Catalog, state: str | None, limit: int, wanted: Filters, until_ms: int | None = None
) -> list[Entry]:
    return await catalog.entries(
        state,
        limit,
        handler=wanted.handler,
        tenant=wanted.tenant,
        reason=wanted.reason,
        since_ms=wanted.since_ms,
        until_ms=wanted.until_ms if until_ms is None else until_ms,
    )
