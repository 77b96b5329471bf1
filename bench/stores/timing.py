"""The clock of all measures: time of the machine, of this process and of the server, around work that is prepared."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import redis
from bench.stores.plan import Sample

Meter = Callable[[], float]  # seconds of processor time that the servers have used until now


class Watch:
    """Processor time is reported beside the rate, because other load on the machine changes it less."""

    def __init__(self, server: Meter) -> None:
        self.server = server

    async def timed(self, events: int, work: Awaitable[None]) -> Sample:
        """Measure `work`, which handles this number of events."""
        gc.collect()
        server, begun, cpu = self.server(), time.perf_counter(), time.process_time()
        await work
        return self._sample(events, server, begun, cpu)

    def timed_sync(self, events: int, work: Callable[[], None]) -> Sample:
        gc.collect()
        server, begun, cpu = self.server(), time.perf_counter(), time.process_time()
        work()
        return self._sample(events, server, begun, cpu)

    def _sample(self, events: int, server: float, begun: float, cpu: float) -> Sample:
        seconds, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
        server_s = self.server() - server
        return Sample(events / seconds, cpu_s / events * 1e6, server_s / events * 1e6)


def of_redis(urls: Sequence[str]) -> Meter:
    """As reported by the servers."""

    def read() -> float:
        used = 0.0
        for url in urls:
            with redis.Redis.from_url(url) as client:
                told = client.info("cpu")
            used += told["used_cpu_user"] + told["used_cpu_sys"]
        return used

    return read


def of_processes(pid: int) -> Meter:
    """A process with its children, also those that have ended. Always 0 where there is no /proc."""
    tick = os.sysconf("SC_CLK_TCK")

    def read() -> float:
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return 0.0
        return (_ticks(pid, 4) + sum(_ticks(int(child), 2) for child in children)) / tick

    return read


def _ticks(pid: int, fields: int) -> int:
    """utime and stime; with four fields those of its ended children too."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has ended meanwhile: its parent tells
        return 0
    return sum(map(int, stat.rpartition(")")[2].split()[11 : 11 + fields]))
