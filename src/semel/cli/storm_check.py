"""Compares what was sent with what the counting sink has seen. Nothing is assumed about the way in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import blake2b
from time import monotonic
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from semel.cli.http_load import Answer, Line, Target, target
from semel.testing.traffic import Traffic
from semel.values.errors import ConfigError

POLL_S = 0.25
QUIET_S = 1.0  # so long after the last effect, a second one of the same event would have come
ASK_S = 30.0  # a page of counts; the sink shares the machine with the storm
TRIES = 3
SILENT_S = 5.0  # so long after the storm, a sink of which nobody knows is told: waiting alone would not help


class Before(Struct, frozen=True):
    """What the sink had seen when the storm began."""

    counts: Counts
    others: int  # events that are not of this storm


class Checked(Struct, frozen=True):
    """What the sink has seen, compared with what was sent."""

    effects: int  # of this storm's events
    distinct: int  # of this storm's events
    repeats: int  # of a key, which the sink answered without a second effect, since the storm began
    lost: int  # the service took the event, and it never arrived
    doubled: int  # events with more than one effect
    unexpected: int  # events that this storm did not send
    before: int  # events that the sink knew before the storm
    conflicts: int  # a key that came with another event, since the storm began
    waited_s: float
    lost_ids: list[str]
    doubled_ids: list[str]
    unexpected_marks: list[str]

    @property
    def holds(self) -> bool:
        return not (self.lost or self.doubled or self.conflicts)


class SinkReader:
    """Asks the sink."""

    def __init__(self, where: Target) -> None:
        self._where = where
        self._base = where.path.rstrip("/").removesuffix("/counts")
        self._line = Line(where, ASK_S)

    async def counts(self) -> Counts:
        return msgspec.json.decode(await self._get("/counts"), type=Counts)

    async def effects(self) -> dict[bytes, int]:
        """How many effects each event had, by its mark."""
        found: dict[bytes, int] = {}
        seen = 0
        while page := (await self._get(f"/counts/ids?from={seen}")).splitlines():
            for line in page:
                event, _, count = line.partition(b" ")
                found[bytes.fromhex(event.decode("ascii"))] = int(count)
            seen += len(page)
        return found

    def close(self) -> None:
        self._line.close()

    async def _get(self, path: str) -> bytes:
        request = self._where.head("GET", self._base + path) + b"\r\n"
        said = ""
        for _ in range(TRIES):
            answer = await self._line.ask(request)
            if isinstance(answer, Answer) and answer.status == 200:
                return answer.body
            said = f"answered {answer.status}" if isinstance(answer, Answer) else f"{answer.failure} {answer.detail}"
        raise ConfigError(f"--check http://{self._where.host}{self._base}: no counting sink there ({said}): semel sink")


def sink_target(url: str) -> Target:
    """The sink's URL, with or without /counts behind it."""
    parts = urlsplit(url)
    return target(
        urlunsplit(parts._replace(path=parts.path.rstrip("/").removesuffix("/counts"), query="", fragment=""))
    )


def needed_route(url: str) -> str:
    """Settings with which a service forwards to the sink."""
    base = url.rstrip("/").removesuffix("/counts")
    return f"""\
[destinations.sink]
url = "{base}"
allow = ["{urlsplit(url).hostname}"]

[[routes]]
name = "sink"
topics = ["**"]
forward = "sink"
effect = "keyed"
"""


async def look_before(sink: SinkReader, traffic: Traffic, events: int) -> Before:
    """A sink may be an old one, and may even know events of this storm, if its seed was used before."""
    counts = await sink.counts()
    known = await sink.effects() if counts.distinct else {}
    own = sum(mark(traffic.identity(at)) in known for at in range(events)) if known else 0
    return Before(counts, len(known) - own)


async def check(
    sink: SinkReader,
    traffic: Traffic,
    taken: bytearray,
    before: Before,
    settle_s: float,
    show: Callable[[int, int], None],
    tell_silence: Callable[[], None],
) -> Checked:
    """Compare, once every event that was taken has arrived and nothing moves any more.

    Whoever is slow gets time as long as new events arrive; after `settle_s` without one, what is missing is lost. Where
    nothing at all has arrived for a while, `tell_silence` is called, once."""
    begun_s = monotonic()
    wanted = taken.count(1)
    seen, seen_s = (-1, -1), begun_s  # effects and events, and when they last changed
    arrived_s = begun_s  # when the last new event did
    told = False
    compared: Checked | None = None
    while True:
        counts = await sink.counts()
        here = max(0, counts.distinct - before.others)
        show(min(here, wanted), wanted)
        now_s = monotonic()
        if counts.distinct != seen[1]:
            arrived_s = now_s
        if (counts.effects, counts.distinct) != seen:
            seen, seen_s, compared = (counts.effects, counts.distinct), now_s, None
        over = now_s - arrived_s >= settle_s
        if over or (here >= wanted and now_s - seen_s >= QUIET_S):
            if compared is None:
                compared = _compare(counts, await sink.effects(), traffic, taken, before)
            if over or not compared.lost:
                return replace(compared, waited_s=now_s - begun_s)
        if not told and wanted and not here and counts == before.counts and now_s - begun_s >= SILENT_S:
            told = True
            tell_silence()
        await asyncio.sleep(POLL_S)


def _compare(counts: Counts, effects: dict[bytes, int], traffic: Traffic, taken: bytearray, before: Before) -> Checked:
    total = distinct = lost = doubled = 0
    lost_ids: list[str] = []
    doubled_ids: list[str] = []
    for at, was_taken in enumerate(taken):
        name = traffic.identity(at)
        count = effects.pop(mark(name), 0)
        total += count
        distinct += count > 0
        if count == 0 and was_taken:
            lost += 1
            if len(lost_ids) < IDS_SHOWN:
                lost_ids.append(name)
        elif count > 1:
            doubled += 1
            if len(doubled_ids) < IDS_SHOWN:
                doubled_ids.append(f"{name} ({count} times)")
    return Checked(
        effects=total,
        distinct=distinct,
        repeats=max(0, counts.repeats - before.counts.repeats),
        lost=lost,
        doubled=doubled,
        unexpected=len(effects),
        before=before.counts.distinct,
        conflicts=max(0, counts.conflicts - before.counts.conflicts),
        waited_s=0.0,
        lost_ids=lost_ids,
        doubled_ids=doubled_ids,
        unexpected_marks=[event.hex() for event, _ in zip(effects, range(IDS_SHOWN), strict=False)],
    )


# What the storm and the sink agree on: how an effect is named between them. No key code of Semel has a part in it, so
# that a mistake there cannot hide itself.

MARK_BYTES = 16
PAGE_LINES = 20_000  # of the sink's counts: less than a megabyte
IDS_SHOWN = 10


class Counts(Struct, frozen=True):
    """The sink's summary."""

    effects: int
    distinct: int  # different events
    repeats: int  # of a key, answered from memory
    doubled: list[str]  # the first events with more than one effect
    doubled_events: int
    conflicts: int = 0  # a key that came with another event
    refused: int = 0  # without a key, or without a body that is JSON
    faults: int = 0  # answers spoiled on purpose


class _Body(Struct, gc=False):
    participantId: Any = None  # noqa: N815 - as on the wire
    sessionId: Any = None  # noqa: N815
    eventTime: Any = None  # noqa: N815


class _Detail(Struct, gc=False):
    topicName: str | None = None  # noqa: N815
    eventBody: _Body | None = None  # noqa: N815
    eventId: Any = None  # noqa: N815
    id: Any = None


class _Document(Struct, gc=False):
    id: Any = None
    topicName: str | None = None  # noqa: N815
    eventBody: _Body | None = None  # noqa: N815
    detail: _Detail | None = None


_read = msgspec.json.Decoder(_Document).decode


def identity(body: bytes) -> str:
    """The event in a forwarded body. Raises ValueError for what is no JSON object."""
    try:
        document = _read(body)
    except msgspec.ValidationError:
        return _content(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a JSON object: {error}") from None
    detail = document.detail
    inner = detail if detail is not None else document
    if inner.topicName and inner.eventBody is not None:
        return _genesys(inner.topicName, inner.eventBody) or _content(body)
    own = detail.eventId or detail.id if detail is not None else document.id
    return str(own) if own else _content(body)


def mark(identity: str) -> bytes:
    """A short name for an identity: a million of them fit into memory."""
    return blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=MARK_BYTES).digest()


def _genesys(topic: str, body: _Body) -> str:
    if not (body.participantId and body.sessionId and body.eventTime):
        return ""
    return f"{topic}|{body.participantId}|{body.sessionId}|{body.eventTime}"


def _content(body: bytes) -> str:
    return f"content {blake2b(body, digest_size=MARK_BYTES).hexdigest()}"
