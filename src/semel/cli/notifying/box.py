"""Which outbox an operator means, and finding notifications in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import TypeVar

from msgspec.structs import force_setattr, replace

from semel.cli.notifying.masks import Mask
from semel.cli.operating.looking import KEY_CHARS, PAGE, SCAN_MAX, digits, paged, the_only
from semel.cli.operating.place import Place, opened
from semel.cli.operating.words import plain
from semel.core.outboxes import StoredOutbox, needed_outbox
from semel.values.errors import ConfigError
from semel.values.notification import CONTENT_MAX_BYTES, Notification
from semel.values.outbox import Shown, Sought, Status

Kept = TypeVar("Kept")

HOLDERS = ("sqlite", "postgresql", "postgres")  # ledgers that hold an outbox, by the schemes of their URLs
PAGE_MAX = 20_000  # notifications of a page, where they are small: messages are shorter than events
GENERATIONS = 100  # of one business key, that are told


@asynccontextmanager
async def outbox_at(where: Place, *, reads: bool = False) -> AsyncIterator[StoredOutbox]:
    """The outbox of a ledger. `reads`: nothing is created or changed. The store of its letters, if it has one, is not
    asked: nothing of it is needed."""
    if where.ledger.reveal().partition("://")[0] not in HOLDERS:
        raise ConfigError(
            f"ledger {Place(where.ledger)}: this kind of ledger holds no outbox. Notifications need sqlite:///file.db "
            "or postgresql://…: name one by --ledger, or as the ledger of the settings"
        )
    async with opened(Place(where.ledger), reads=reads) as ledger:
        yield needed_outbox(ledger)


async def every(box: StoredOutbox, sought: Sought) -> AsyncIterator[Shown]:
    """All that are sought, page after page."""

    async def fetch(size: int, until_ms: int | None) -> list[Shown]:
        return await box.find(replace(sought, limit=size, until_ms=until_ms))

    def place_of(one: Shown) -> tuple[str, int, int]:
        return one.id, one.added_ms, _size(one.notification)

    async for one in paged(fetch, place_of, sought.until_ms, PAGE_MAX):
        yield one


def _size(said: Notification) -> int:
    try:
        return len(said.body) if isinstance(said.body, str) and not said.data else len(said.content)
    except ConfigError:  # it was judged when it was added, by another version
        return CONTENT_MAX_BYTES


async def listed(where: Place, sought: Sought, keep: Callable[[Shown], Kept]) -> list[Kept]:
    """As many as are sought, the newest; of each what is wanted to be kept, since there can be a hundred thousand."""
    async with outbox_at(where, reads=True) as box:
        if sought.limit <= PAGE:
            return [keep(one) for one in await box.find(sought)]
        found: list[Kept] = []
        async for one in every(box, sought):
            found.append(keep(one))
            if len(found) == sought.limit:
                break
        return found


def without_content(one: Shown, reveal: bool) -> Shown:
    """Small, for a list of many. What its reason repeats of the content can be found only while that is there."""
    reason, said = Mask(one.notification, reveal).hidden(one.reason), copy(one.notification)
    force_setattr(said, "body", "")
    force_setattr(said, "data", {})
    return replace(one, notification=said, reason=reason)


async def known(where: Place, id: str, key: str, tenant: str) -> tuple[Shown, Sequence[Shown]]:
    """One notification, by its id or its business key, and its other generations."""
    async with outbox_at(where, reads=True) as box:
        one = await (keyed(box, key, tenant) if key else named(box, id))
        return one, await generations_of(box, one)


async def asked(where: Place, tenant: str, recipient: str, kind: str, key: str) -> tuple[Status, Shown | None]:
    """Did this customer get the message? With the notification that says so."""
    async with outbox_at(where, reads=True) as box:
        found = await box.status(tenant, recipient=recipient, kind=kind, key=key)
        return found, await box.show(bytes.fromhex(found.id)) if found.id else None


async def meant(box: StoredOutbox, ids: Sequence[str], sought: Sought, matching: str = "") -> AsyncIterator[Shown]:
    """Those that are named; or all that are sought, and of these the ones with this text in their reason."""
    for text in ids:
        yield await named(box, text, first=sought.state)
    if not ids:
        async for one in every(box, sought):
            if matching in one.reason:
                yield one


# ----------------------------------------------------------------------------------------------------------- one of


async def named(box: StoredOutbox, text: str, first: str = "") -> Shown:
    """The notification whose id begins with this text; among those in the state `first`, if one of them does."""
    id = await _whole(box, text, first)
    shown = await box.show(bytes.fromhex(id))
    if shown is None:
        raise ConfigError(f"nothing is known of a notification {id}, or its retention is over")
    return shown


async def _whole(box: StoredOutbox, text: str, first: str) -> str:
    beginning = digits(text, "id")
    if len(beginning) == KEY_CHARS:
        return beginning
    matches, complete = await _beginning_with(box, beginning, first)
    if first and not matches:
        matches, complete = await _beginning_with(box, beginning, "")
    limited = "" if complete else f" among the newest {SCAN_MAX:,}"
    return the_only(matches, beginning, "id", f"{limited}. Its retention may be over; `semel notify list` has the rest")


async def _beginning_with(box: StoredOutbox, beginning: str, state: str) -> tuple[set[str], bool]:
    matches: set[str] = set()
    looked_at = 0
    async for one in every(box, Sought(state=state)):
        looked_at += 1
        if one.id.startswith(beginning):
            matches.add(one.id)
        if looked_at >= SCAN_MAX:
            return matches, False
    return matches, True


async def keyed(box: StoredOutbox, key: str, tenant: str) -> Shown:
    """The notification of a business key: its newest generation. Raises ConfigError when there is none, or the key is
    shared by several messages."""
    found = await box.find(Sought(tenant=tenant, key=key, limit=GENERATIONS))
    if not found:
        whose = f"tenant {plain(tenant)!r}" if tenant else "no tenant: --tenant names one"
        raise ConfigError(f"nothing is known of the key {plain(key)!r} (of {whose})")
    if len({_message(one) for one in found}) > 1:
        told = "\n".join(f"  {one.id}  {one.state:11}  {plain(one.notification.kind)}" for one in found)
        raise ConfigError(f"{len(found)} notifications have the key {plain(key)!r}: name one by its id\n{told}")
    latest = max(found, key=lambda one: one.notification.generation)
    return await named(box, latest.id)


async def generations_of(box: StoredOutbox, one: Shown) -> Sequence[Shown]:
    """The other generations of a message, the oldest first."""
    said = one.notification
    found = await box.find(Sought(tenant=said.tenant, key=said.key, kind=said.kind, limit=GENERATIONS))
    others = [other for other in found if other.id != one.id and _message(other) == _message(one)]
    return sorted(others, key=lambda other: other.notification.generation)


def _message(one: Shown) -> tuple[str, str, str]:
    """What generations have in common, besides tenant and key."""
    return one.notification.kind, one.notification.recipient, one.notification.channel
