"""Compares the events of a storm with the effects that the sink has counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from semel.cli.sink import Counts, mark
from semel.cli.storm_load import HttpClient, Response, Target, find_target
from semel.testing.traffic import Traffic
from semel.values.errors import ConfigError

POLL_S = 0.25
QUIET_S = 1.0  # after the last effect: a second effect of the same event would have arrived
TIMEOUT_S = 30.0  # of a page of counts; the sink shares the machine with the storm
ATTEMPTS = 3
SILENT_S = 5.0  # after the storm: then a sink that received nothing is reported, with the route that it needs
IDS_SHOWN = 10


class Baseline(Struct, frozen=True):
    """The counts of the sink before the storm."""

    counts: Counts
    others: int  # events that are not of this storm


class SinkCheck(Struct, frozen=True):
    """The effects at the sink, compared with the events that were sent."""

    effects: int  # of this storm's events
    distinct: int  # events of this storm
    repeats: int  # of a key, without a second effect, since the storm started
    lost: int  # events that the service accepted and that never arrived
    doubled: int  # events with more than one effect
    unexpected: int  # events that this storm did not send
    before: int  # events at the sink before the storm
    conflicts: int  # keys that came with another event, since the storm started
    waited_s: float
    lost_ids: list[str]
    doubled_ids: list[str]
    unexpected_marks: list[str]

    @property
    def holds(self) -> bool:
        return not (self.lost or self.doubled or self.conflicts)


class SinkReader:
    """Reads the counts of a sink."""

    def __init__(self, target: Target) -> None:
        self._base = target.url.rstrip("/")
        self._client = HttpClient(target, 1, TIMEOUT_S)

    async def counts(self) -> Counts:
        return msgspec.json.decode(await self._get("/counts"), type=Counts)

    async def effects(self) -> dict[bytes, int]:
        """Return the number of effects of each event, by its mark."""
        effects: dict[bytes, int] = {}
        read = 0
        while page := (await self._get(f"/counts/ids?from={read}")).splitlines():
            for line in page:
                event, _, count = line.partition(b" ")
                effects[bytes.fromhex(event.decode("ascii"))] = int(count)
            read += len(page)
        return effects

    async def close(self) -> None:
        await self._client.close()

    async def _get(self, path: str) -> bytes:
        problem = ""
        for _ in range(ATTEMPTS):
            response = await self._client.send("GET", self._base + path)
            if isinstance(response, Response) and response.status == 200:
                return response.body
            if isinstance(response, Response):
                problem = f"status {response.status}"
            else:
                problem = f"{response.failure} {response.detail}"
        raise ConfigError(f"--check {self._base}: no counting sink there ({problem}). Start one: semel sink")


def find_sink(url: str) -> Target:
    """Parse the sink's URL, with or without /counts at its end. Raises ConfigError."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/counts")
    return find_target(urlunsplit(parts._replace(path=path, query="", fragment="")))


def needed_route(url: str) -> str:
    """Return settings with which a service forwards to the sink."""
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


async def read_baseline(sink: SinkReader, traffic: Traffic, events: int) -> Baseline:
    """The sink may have counts of an earlier storm, even of the same events if the seed was used before."""
    counts = await sink.counts()
    known = await sink.effects() if counts.distinct else {}
    own = sum(mark(traffic.identity(at)) in known for at in range(events)) if known else 0
    return Baseline(counts, len(known) - own)


async def check(
    sink: SinkReader,
    traffic: Traffic,
    taken: bytearray,
    before: Baseline,
    settle_s: float,
    show: Callable[[int, int], None],
    report_silence: Callable[[], None],
) -> SinkCheck:
    """Compare when every accepted event has arrived and the counts no longer change.

    A slow service gets time as long as new events arrive. After `settle_s` without one, the missing events are lost.
    `report_silence` is called once, if nothing at all has arrived for a while."""
    started_s = monotonic()
    expected = taken.count(1)
    last, changed_s = (-1, -1), started_s  # effects and events, and when they last changed
    arrived_s = started_s  # when the last new event arrived
    reported = False
    compared: SinkCheck | None = None
    while True:
        counts = await sink.counts()
        arrived = max(0, counts.distinct - before.others)
        show(min(arrived, expected), expected)
        now_s = monotonic()
        if counts.distinct != last[1]:
            arrived_s = now_s
        if (counts.effects, counts.distinct) != last:
            last, changed_s, compared = (counts.effects, counts.distinct), now_s, None
        settled = now_s - arrived_s >= settle_s
        if settled or (arrived >= expected and now_s - changed_s >= QUIET_S):
            if compared is None:
                compared = _compare(counts, await sink.effects(), traffic, taken, before)
            if settled or not compared.lost:
                return replace(compared, waited_s=now_s - started_s)
        if not reported and expected and not arrived and counts == before.counts and now_s - started_s >= SILENT_S:
            reported = True
            report_silence()
        await asyncio.sleep(POLL_S)


def _compare(
    counts: Counts, effects: dict[bytes, int], traffic: Traffic, taken: bytearray, before: Baseline
) -> SinkCheck:
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
    return SinkCheck(
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
