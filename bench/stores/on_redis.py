"""Redis: one Valkey on loopback that keeps nothing on disk, the same for Semel, the floors and the peers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import redis
import redis.asyncio
from bench.stores import loops, on_semel, raw_redis
from bench.stores.clients import clients
from bench.stores.plan import BATCH, CALLERS, LARGE_BATCH, Line, Sample, Scenario, Sizes
from bench.stores.servers import running
from bench.stores.supply import Supply, in_batches
from bench.stores.timing import Watch, of_redis
from tests.support.servers.valkey import Valkey

from semel.wiring import open_ledger

WARM = 3  # batches before the clock runs: scripts are loaded, connections are open

TOKEN_BYTES, RECORD_BYTES = 8, 250  # of a value: the least there is, and what Semel keeps of a key
SIZES = (BATCH, LARGE_BATCH)
FLOORS = ("raw", "raw_record", "socket")

LINES = (
    Line("ledger_100", "raw_100", at_least=1.0),
    *[Line("ledger_100", f"{floor}_100") for floor in FLOORS[1:]],
    Line("ledger_500", "raw_500", at_least=1.5),
    *[Line("ledger_500", f"{floor}_500") for floor in FLOORS[1:]],
    Line("many", "loop", at_least=25),
    Line("many", "loop_async"),
    Line("many", "powertools", at_least=35),
    Line("many_half", "loop_half"),
    Line("many_half", "powertools_half", at_least=50),
    Line("callers", cpu_at_most=10),
    Line("two", "one", at_least=1.4),
    Line("one"),
    *[Line(f"{floor}_{size}") for floor in FLOORS for size in SIZES],
    *[Line(peer) for peer in ("loop", "loop_async", "loop_half", "powertools", "powertools_half")],
)


@contextmanager
def opened(folder: Path, sizes: Sizes) -> Iterator[OnRedis]:
    with running(Valkey(folder)) as server:
        yield OnRedis(server.url, sizes)


class OnRedis:
    """Every measure begins with an empty server."""

    name = "redis"
    title = "Semel on one Valkey"
    lines: Sequence[Line] = LINES

    def __init__(self, url: str, sizes: Sizes) -> None:
        self._url = url
        self._sizes = sizes
        self._supply = Supply()
        self._watch = Watch(of_redis([url]))
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self.scenarios = self._scenarios()

    def prepare(self, advance: Callable[[int], None]) -> None:
        """Events are made once."""
        self._supply.events(self._sizes.events + BATCH)
        self._supply.half_copies(self._sizes.events)
        self._supply.half_copies(self._sizes.singly)

    def remarks(self) -> list[str]:
        with redis.Redis.from_url(self._url) as client:
            version = client.info("server").get("valkey_version", "?")
        return [f"Valkey {version}, no persistence; the store is emptied before each measure"]

    def _scenarios(self) -> list[Scenario]:
        loop = "a pydantic model and one SET NX, one event at a time"
        tools = "aws-lambda-powertools: @idempotent on its cache layer, one event at a time"
        flow, half = "the whole flow with a handler that does nothing", "; half of the deliveries are copies"
        return [
            *[scenario for size in SIZES for scenario in self._two_phases(size)],
            Scenario("loop", "SET NX loop", loop, self._loop()),
            Scenario("loop_async", "SET NX loop, async", f"{loop}, by redis.asyncio", self._loop_async()),
            Scenario("powertools", "Powertools", tools, self._tools()),
            Scenario("many", "process_many of 100", flow, self._many()),
            Scenario("loop_half", "SET NX loop, 50 %", loop + half, self._loop(half=True)),
            Scenario("powertools_half", "Powertools, 50 %", tools + half, self._tools(half=True)),
            Scenario("many_half", "process_many, 50 %", flow + half, self._many(half=True)),
            Scenario("callers", f"{CALLERS} callers", "process, called concurrently", self._callers),
            Scenario("one", "one process", "process_many of 100, in a process of its own", self._processes(1)),
            Scenario("two", "two processes", "as many events in each of two, at the same time", self._processes(2)),
        ]

    def _two_phases(self, size: int) -> list[Scenario]:
        packed = "claims, then settles: SET NX, SET XX, packed by hand, one pipeline each"
        record = f"{packed}, with values of {RECORD_BYTES} bytes"
        token, full = raw_redis.Phases(TOKEN_BYTES), raw_redis.Phases(RECORD_BYTES)
        return [
            Scenario(f"raw_{size}", f"raw pipeline, {size}", f"{packed}, over asyncio", self._raw(token, size)),
            Scenario(f"raw_record_{size}", f"raw records, {size}", record, self._raw(full, size)),
            Scenario(f"socket_{size}", f"raw socket, {size}", f"{packed}, blocking", self._socket(token, size)),
            Scenario(f"ledger_{size}", f"ledger, {size}", "claims, then settles, by the ledger", self._ledger(size)),
        ]

    # ------------------------------------------------------------------------------------------------------- floors

    def _raw(self, phases: raw_redis.Phases, size: int) -> Callable[[], Sample]:
        async def measure() -> Sample:
            connection = await raw_redis.RawRedis.connect(*self._address)
            try:
                await connection.two_phases(phases, self._keys(WARM, size))
                batches = self._keys(self._sizes.claims // size, size)
                return await self._watch.timed(size * len(batches), connection.two_phases(phases, batches))
            finally:
                connection.close()

        return lambda: self._on_empty(lambda: asyncio.run(measure()))

    def _socket(self, phases: raw_redis.Phases, size: int) -> Callable[[], Sample]:
        def measure() -> Sample:
            with socket.create_connection(self._address) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                raw_redis.two_phases_blocking(connection, phases, self._keys(WARM, size))
                batches = self._keys(self._sizes.claims // size, size)
                return self._watch.timed_sync(
                    size * len(batches), lambda: raw_redis.two_phases_blocking(connection, phases, batches)
                )

        return lambda: self._on_empty(measure)

    # -------------------------------------------------------------------------------------------------------- peers

    def _loop(self, half: bool = False) -> Callable[[], Sample]:
        def measure() -> Sample:
            bodies, distinct = self._one_by_one(half)
            with redis.Redis.from_url(self._url) as client:
                client.ping()
                return self._watch.timed_sync(len(bodies), lambda: _check(loops.set_nx_loop(client, bodies), distinct))

        return lambda: self._on_empty(measure)

    def _loop_async(self) -> Callable[[], Sample]:
        async def measure() -> Sample:
            bodies, distinct = self._one_by_one(half=False)
            async with redis.asyncio.Redis.from_url(self._url) as client:
                await client.ping()

                async def work() -> None:
                    _check(await loops.set_nx_loop_async(client, bodies), distinct)

                return await self._watch.timed(len(bodies), work())

        return lambda: self._on_empty(lambda: asyncio.run(measure()))

    def _tools(self, half: bool = False) -> Callable[[], Sample]:
        def measure() -> Sample:
            bodies, distinct = self._one_by_one(half)
            with redis.Redis.from_url(self._url, decode_responses=True) as client:
                powertools = loops.Powertools(client)
                client.ping()
                return self._watch.timed_sync(len(bodies), lambda: _check(powertools.loop(bodies), distinct))

        return lambda: self._on_empty(measure)

    def _one_by_one(self, half: bool) -> tuple[Sequence[bytes], int]:
        """Deliveries of the loops, and how many different events are in them."""
        if half:
            storm = self._supply.half_copies(self._sizes.singly)
            return storm.deliveries, storm.distinct
        return self._supply.events(self._sizes.singly), self._sizes.singly

    # -------------------------------------------------------------------------------------------------------- Semel

    def _ledger(self, size: int) -> Callable[[], Sample]:
        async def measure() -> Sample:
            warm = self._supply.batches_of_claims(WARM, size)
            batches = self._supply.batches_of_claims(self._sizes.claims // size, size)
            return await on_semel.on_ledger(self._watch, open_ledger(self._url), warm, batches)

        return lambda: self._on_empty(lambda: asyncio.run(measure()))

    def _many(self, half: bool = False) -> Callable[[], Sample]:
        def measure() -> Sample:
            warm, bodies = self._warm_and_events()
            distinct = len(bodies)
            if half:
                storm = self._supply.half_copies(self._sizes.events)
                bodies, distinct = storm.deliveries, storm.distinct
            batches = in_batches(bodies, BATCH)
            return asyncio.run(on_semel.process_many(self._watch, self._url, warm, batches, distinct))

        return lambda: self._on_empty(measure)

    def _callers(self) -> Sample:
        return self._on_empty(
            lambda: asyncio.run(on_semel.process_singly(self._watch, self._url, *self._warm_and_events()))
        )

    def _processes(self, number: int) -> Callable[[], Sample]:
        return lambda: self._on_empty(lambda: clients(self._watch, self._url, number, self._sizes.events))

    # ----------------------------------------------------------------------------------------------------- supplies

    def _on_empty(self, measure: Callable[[], Sample]) -> Sample:
        with redis.Redis.from_url(self._url) as client:
            client.flushall()
        return measure()

    def _keys(self, batches: int, size: int) -> list[list[bytes]]:
        return [[claim.digest for claim in self._supply.claims(size)] for _ in range(batches)]

    def _warm_and_events(self) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """The last of the events are for warming up: no storm of half the number has them."""
        events = self._supply.events(self._sizes.events + BATCH)
        return events[-BATCH:], events[:-BATCH]


def _check(ran: int, distinct: int) -> None:
    if ran != distinct:
        raise AssertionError(f"{ran:,} handlers ran where {distinct:,} had to: its time means nothing")
