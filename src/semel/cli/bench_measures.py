"""The things that `semel bench` measures: each takes a round's worth of time and returns one number.

What a measure prepares (events, an empty ledger, prepared statements) is not timed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from typing import Any, Protocol, cast

from semel import wiring
from semel.app import LEASE_S, RETENTION_S, Semel
from semel.testing import traffic
from semel.values import keys
from semel.values.errors import ConfigError
from semel.values.key import Namespace, content_digest

TOPIC = "v2.detail.events.**"
BATCH = 100  # deliveries of one process_many: what a worker receives at once
CALLERS = 64  # concurrent webhooks
GROWTH_EVENTS = 20_000  # over which memory is watched
SCALE = 5  # how much more a round does when it need not be quick
WARM_BATCHES = 3  # statements are prepared and caches are filled before the clock runs

Row = tuple[Any, ...]


class Peers(Protocol):
    """Programs to compare with: they live in the repository, not in the package."""

    def bare_sql(self, path: str, batches: Sequence[Sequence[Row]]) -> float: ...
    def clustered_sql(self, path: str, batches: Sequence[Sequence[Row]]) -> float: ...
    def slim_sql(self, path: str, batches: Sequence[Sequence[Row]]) -> float: ...
    def validated_loop(self, path: str, bodies: Sequence[bytes]) -> float: ...


def load_peers(path: Path) -> Peers:
    spec = spec_from_file_location("semel_bench_peers", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"--peers {path}: expected a Python file such as bench/peers.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Peers, module)


class Bench:
    """One folder of databases and one supply of events that never repeats."""

    def __init__(self, folder: Path, peers: Peers | None, quick: bool) -> None:
        self._folder = folder
        self._peers = peers
        self._scale = 1 if quick else SCALE
        self._names = count()
        self.many_keys: str | None = None  # the ledger that is filled once and used in every round

    # ------------------------------------------------------------------------------------------------- without a store

    def envelope_and_key(self) -> float:
        """CPU µs from bytes to digest, on different events."""
        bodies = self._bodies(1_000)
        namespace = Namespace("", "bench")
        passes = 10 * self._scale
        gc.collect()
        begun = time.process_time()
        for _ in range(passes):
            for body in bodies:
                event = wiring.decode(body, tenant="", origin="", id_path=None, type_path=None, headers=None)
                namespace.digest(keys.checked(keys.event(event)))
        return (time.process_time() - begun) / (passes * len(bodies)) * 1e6

    def importing(self) -> float:
        """Milliseconds of `import semel` above those of a bare interpreter."""
        return self._above_bare_python("import semel")

    def importing_all(self) -> float:
        """Milliseconds until the app class is there: asyncio, which any async program pays for, is most of it."""
        return self._above_bare_python("from semel import Semel")

    def importing_asyncio(self) -> float:
        return self._above_bare_python("import asyncio")

    def _above_bare_python(self, code: str) -> float:
        """Medians of interleaved starts."""
        bare, full = [], []
        for _ in range(3 * self._scale):
            bare.append(_seconds_of("pass"))
            full.append(_seconds_of(code))
        return (sorted(full)[len(full) // 2] - sorted(bare)[len(bare) // 2]) * 1e3

    # ------------------------------------------------------------------------------------------------------ with SQLite

    def one_at_a_time(self) -> float:
        """Events a second: each is awaited before the next, so each has its own two commits."""
        bodies = self._bodies(60 * self._scale)

        async def work(app: Semel) -> None:
            for body in bodies:
                await app.process(body)

        return len(bodies) / self._on_ledger(self._new_ledger(), work)

    def callers(self) -> float:
        """Events a second from many concurrent callers of `process`."""
        bodies = self._bodies(CALLERS * 20 * self._scale)

        async def work(app: Semel) -> None:
            queue = iter(bodies)

            async def caller() -> None:
                for body in queue:
                    await app.process(body)

            await asyncio.gather(*[caller() for _ in range(CALLERS)])

        return len(bodies) / self._on_ledger(self._new_ledger(), work)

    def batches(self) -> float:
        """Events a second through `process_many`."""
        return self._through_batches(self._new_ledger())

    def batches_on_many_keys(self) -> float:
        """The same on the ledger that `many_keys` filled. It was closed, hence checkpointed, before."""
        assert self.many_keys is not None, "asked for many keys before they were there"
        return self._through_batches(self.many_keys)

    def memory_growth(self) -> float:
        """MiB that this process grows by while it sends events through the ledger of many keys."""
        assert self.many_keys is not None, "asked for many keys before they were there"
        grown = 0.0

        async def work(app: Semel) -> None:
            nonlocal grown
            await self._stream(app)  # SQLite's page cache has its limit, and is full after this
            before = private_mib()
            await self._stream(app)
            grown = private_mib() - before

        self._on_ledger(self.many_keys, work)
        return grown

    async def _stream(self, app: Semel) -> None:
        for _ in range(GROWTH_EVENTS * self._scale // SCALE // (10 * BATCH)):
            await through_batches(app, self._batches_of_bodies(10))
        gc.collect()

    def _through_batches(self, ledger: str) -> float:
        batches = self._batches_of_bodies(20 * self._scale)
        return BATCH * len(batches) / self._on_ledger(ledger, lambda app: through_batches(app, batches))

    def _on_ledger(self, ledger: str, work: Callable[[Semel], Awaitable[None]]) -> float:
        """Seconds of `work`, after a few batches that are not timed."""
        warm = self._batches_of_bodies(WARM_BATCHES)

        async def run() -> float:
            async with Semel(ledger) as app:
                app.on(TOPIC, name="bench")(handle)
                await through_batches(app, warm)
                return await timed(work(app))

        return asyncio.run(run())

    # ------------------------------------------------------------------------------------------------------- the peers

    def bare_sql(self) -> float:
        """Events a second of bare two-phase SQL with a record's columns."""
        return self._by_peer(self._known_peers().bare_sql)

    def clustered_sql(self) -> float:
        """The same, WITHOUT ROWID."""
        return self._by_peer(self._known_peers().clustered_sql)

    def slim_sql(self) -> float:
        """The same with the fewest columns that a decision needs."""
        return self._by_peer(self._known_peers().slim_sql)

    def _by_peer(self, peer: Callable[[str, Sequence[Sequence[Row]]], float]) -> float:
        batches = self._batches_of_rows(20 * self._scale)
        gc.collect()
        return BATCH * len(batches) / peer(self._new_path(), batches)

    def _known_peers(self) -> Peers:
        assert self._peers is not None, "asked for a peer without --peers"
        return self._peers

    def validated_loop(self) -> float:
        """Events a second of the usual loop: validate, claim, commit, settle, commit."""
        peers = self._known_peers()
        bodies = self._bodies(60 * self._scale)
        gc.collect()
        return len(bodies) / peers.validated_loop(self._new_path(), bodies)

    # -------------------------------------------------------------------------------------------------------- supplies

    def _bodies(self, number: int) -> list[bytes]:
        return list(traffic.events(number, seed=next(self._names)))

    def _new_ledger(self) -> str:
        return f"sqlite:///{self._new_path()}"

    def _new_path(self) -> str:
        return str(self._folder / f"{next(self._names)}.db")

    def _batches_of_bodies(self, number: int) -> list[list[bytes]]:
        bodies = self._bodies(number * BATCH)
        return [bodies[at : at + BATCH] for at in range(0, len(bodies), BATCH)]

    def _batches_of_rows(self, number: int) -> list[list[Row]]:
        """What a Semel record holds of as many events: made before the clock runs, since bare SQL decodes nothing."""
        tokens = count(1)
        return [[_row(body, next(tokens)) for body in batch] for batch in self._batches_of_bodies(number)]


async def handle(event: Any, ctx: Any) -> None:
    """A handler that costs nothing: what is measured is Semel."""


async def through_batches(app: Semel, batches: Sequence[Sequence[bytes]]) -> None:
    for batch in batches:
        for outcome in await app.process_many(batch):
            if outcome.status != "done":
                raise AssertionError(f"measured something else than new events: {outcome}")


async def timed(work: Awaitable[None]) -> float:
    gc.collect()
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


def _row(body: bytes, token: int) -> Row:
    event = wiring.decode(body, tenant="", origin="", id_path=None, type_path=None, headers=None)
    parts = keys.checked(keys.event(event))
    digest = Namespace("", "bench").digest(parts)
    until = int((time.time() + LEASE_S + RETENTION_S) * 1000)
    return (digest, token, until, 1, content_digest(event.payload()), "", "bench", "|".join(parts))


def _seconds_of(code: str) -> float:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # as installed
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=kept)
    return time.perf_counter() - begun


# A ledger that has settled millions of keys: filled by SQL, through the public `ctx.tx` and its own connection.

PIECE = 250_000  # keys in one transaction: what the page cache holds while they are sorted
KEY_BYTES = 600  # of disk for each key while the file is filled, with its WAL; measured 420
SPARE_BYTES = 2 * 1024**3  # for the other databases of the run
TEXT_BYTES = 75  # a key's text is 150 characters of hexadecimal digits

RECORDS = """
    with recursive piece (i) as (select 1 union all select i + 1 from piece limit :count)
    insert into semel_record (id, digest, outcome, fingerprint, attempts, settled_ms, expires_ms, tenant, handler,
                              key_text)
    select :token + i, randomblob(16), 1, randomblob(16), 1, :at, :expires, '', 'bench', hex(randomblob(:text_bytes))
    from piece
"""
DONE = """
    insert into semel_done (digest, record_id, expires_ms) select digest, id, expires_ms from semel_record
    where id > :token and id <= :token + :count order by digest
"""


def fill(ledger: str, number: int, progress: Callable[[int], None]) -> float:
    """Settle as many random keys. Returns the seconds it took; the file is checkpointed."""
    begun = time.perf_counter()
    asyncio.run(_fill(ledger, number, progress))
    return time.perf_counter() - begun


async def _fill(ledger: str, number: int, progress: Callable[[int], None]) -> None:
    sizes = [PIECE] * (number // PIECE) + [number % PIECE] * (number % PIECE > 0)
    left = iter(sizes)

    async with Semel(ledger) as app:

        @app.on("**", effect="transaction", timeout=None, lease=3600)
        async def settle_piece(event: Any, ctx: Any) -> None:
            _settle_piece(ctx.tx, next(left))

        for size, body in zip(sizes, traffic.events(len(sizes), seed=-1), strict=True):
            outcome = await app.process(body)
            if outcome.status != "done":
                raise RuntimeError(f"the ledger could not be filled: {outcome.reason}")
            progress(size)


def _settle_piece(tx: Any, size: int) -> None:
    ((token,),) = tx.execute("select value from semel_meta where name = 'token'")
    now_ms = time.time_ns() // 1_000_000
    piece = {"token": token, "count": size, "text_bytes": TEXT_BYTES}
    tx.execute(RECORDS, {**piece, "at": now_ms, "expires": now_ms + int(RETENTION_S * 1000)})
    tx.execute(DONE, piece)
    tx.execute("update semel_meta set value = value + ? where name = 'token'", (size,))


def check_disk(folder: Path, number: int) -> None:
    needed = number * KEY_BYTES + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            f"{number:,} keys need about {needed / 1e9:.1f} GB in {folder}, {free / 1e9:.1f} GB are free: "
            "ask for fewer by --keys, or name another folder by --folder"
        )


def private_mib() -> float:
    """Memory of this process that is its own. Pages of the mapped database file are not: the system takes them back."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon"))
    except (OSError, StopIteration):  # not Linux: the peak is all there is
        import resource

        unit = 1024**2 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
