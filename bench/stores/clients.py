"""Several client processes on one store, each with its own event loop.

python -m bench.stores.clients URL EVENTS SEED      one of them: says "ready", waits for a line, works, says `Ran`
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from bench.stores.on_semel import Counted
from bench.stores.plan import BATCH, Sample
from bench.stores.supply import in_batches
from bench.stores.timing import Watch

from semel.testing import traffic

ROOT = Path(__file__).parent.parent.parent


class Ran(msgspec.Struct, frozen=True):
    """The times of one client. All processes share the monotonic clock of the machine."""

    begun: float
    ended: float
    cpu_s: float


class Client:
    """One process, prepared when it has said "ready"."""

    def __init__(self, url: str, events: int, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.stores.clients", url, str(events), str(seed)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def line(self) -> bytes:
        assert self._process.stdout is not None
        if not (said := self._process.stdout.readline()):
            raise RuntimeError(f"a client process ended early, with {self._process.wait()}; it said why above")
        return said

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def clients(watch: Watch, url: str, number: int, events: int) -> Sample:
    """So many processes that each send as many events of their own, begun together."""
    running: list[Client] = []
    try:
        running.extend(Client(url, events, seed) for seed in range(1, number + 1))
        for client in running:
            client.line()
        server = watch.server()
        for client in running:
            client.go()
        ran = [msgspec.json.decode(client.line(), type=Ran) for client in running]
        server_s = watch.server() - server
    finally:
        for client in running:
            client.end()
    seconds = max(one.ended for one in ran) - min(one.begun for one in ran)
    sent = number * events
    return Sample(sent / seconds, sum(one.cpu_s for one in ran) / sent * 1e6, server_s / sent * 1e6)


async def work(url: str, events: int, seed: int) -> Ran:
    bodies = list(traffic.events(events + BATCH, seed))
    batches = in_batches(bodies[:events], BATCH)
    counted = Counted(url)
    async with counted.app as app:
        await app.process_many(bodies[events:])
        counted.ran = 0
        print("ready", flush=True)
        sys.stdin.readline()
        begun, cpu = time.monotonic(), time.process_time()
        for batch in batches:
            await app.process_many(batch)
        ran = Ran(begun, time.monotonic(), time.process_time() - cpu)
    if counted.ran != events:
        raise AssertionError(f"{counted.ran:,} handlers ran where {events:,} had to: its time means nothing")
    return ran


def main(arguments: Sequence[str]) -> None:
    url, events, seed = arguments
    print(msgspec.json.encode(asyncio.run(work(url, int(events), int(seed)))).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
