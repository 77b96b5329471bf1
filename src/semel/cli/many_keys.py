"""A ledger that has settled millions of keys: filled by SQL, through the public `ctx.tx` and its own connection."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semel.app import RETENTION_S, Semel
from semel.testing import traffic
from semel.values.errors import ConfigError

PIECE = 250_000  # keys in one transaction: what the page cache holds while they are sorted
KEY_BYTES = 600  # of disk for each key while the file is filled, with its WAL; measured 420
SPARE_BYTES = 2 * 1024**3  # for the other databases of the run
TEXT_BYTES = 75  # a key's text is 150 characters of hexadecimal digits

RECORDS = """
    with recursive piece (i) as (select 1 union all select i + 1 from piece limit :count)
    insert into semel_record (id, k, outcome, fp, attempts, at, expires, tenant, handler, text)
    select :token + i, randomblob(16), 1, randomblob(16), 1, :at, :expires, '', 'bench', hex(randomblob(:text_bytes))
    from piece
"""
DONE = """
    insert into semel_done (k, rec, expires) select k, id, expires from semel_record
    where id > :token and id <= :token + :count order by k
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
