"""One worker process of `semel demo`: reads deliveries from stdin and writes answers to stdout.

in:   <number> TAB <body> LF            out:  <number> <status> <seconds until the redelivery> LF
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

from semel.app import Semel

TOPIC = "v2.detail.events.**"
BATCH_MAX = 50
LEASE_S = 1.5  # short: the deliveries of a killed worker wait for it
TIMEOUT_S = 1.0
ATTEMPTS = 1_000  # every kill counts as one


def ledger_url(path: Path) -> str:
    return f"sqlite:///{path}"


def main() -> None:
    ledger, calls = Path(sys.argv[1]), Path(sys.argv[2])
    asyncio.run(work(ledger, calls))


async def work(ledger: Path, calls: Path) -> None:
    log = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with Semel(ledger_url(ledger), lease=LEASE_S) as app:

        @app.on(TOPIC, effect="transaction", timeout=TIMEOUT_S, max_attempts=ATTEMPTS)
        async def open_ticket(event: Any, ctx: Any) -> None:
            ctx.tx.execute("insert into ticket values (?)", (event.id,))

        @app.on(TOPIC, effect="retry", timeout=TIMEOUT_S, max_attempts=ATTEMPTS)
        async def call_crm(event: Any, ctx: Any) -> None:
            os.write(log, f"{event.id}\n".encode())

        lines = _read_stdin()
        while batch := await _next_batch(lines):
            outcomes = await app.process_many([body for _, body in batch])
            for (number, _), outcome in zip(batch, outcomes, strict=True):
                sys.stdout.write(f"{number} {outcome.status} {outcome.after or 0}\n")
            sys.stdout.flush()


def _read_stdin() -> asyncio.Queue[bytes]:
    """Read lines in a thread. An empty one is the end."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, b"")

    threading.Thread(target=read, daemon=True).start()
    return lines


async def _next_batch(lines: asyncio.Queue[bytes]) -> list[tuple[int, bytes]]:
    """Return the available deliveries, at least one; none when the input has ended."""
    batch = []
    line = await lines.get()
    while line:
        number, _, body = line.rstrip(b"\n").partition(b"\t")
        batch.append((int(number), body))
        if lines.empty() or len(batch) == BATCH_MAX:
            break
        line = lines.get_nowait()
    if not line and batch:
        lines.put_nowait(b"")  # the end, again after this batch
    return batch


if __name__ == "__main__":
    main()
