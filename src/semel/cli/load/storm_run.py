"""One storm from its options to its report: look, send, check."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from random import Random
from textwrap import indent

from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from semel.cli.load import loops
from semel.cli.load.http_load import Target, target
from semel.cli.load.signing import Scheme, signer
from semel.cli.load.storm_check import Checked, SinkReader, check, look_before, needed_route, sink_target
from semel.cli.load.storm_report import Report, report
from semel.cli.load.storming import Manner, Storming
from semel.testing.shapes import Shape
from semel.testing.traffic import BURST_EVENTS, Traffic
from semel.values.errors import ConfigError

SHOW_S = 0.1


class Wish(Struct, frozen=True, kw_only=True):
    """What was asked for."""

    url: str
    events: int
    duplicates: float
    reorder: bool = True
    burst: bool = False
    shape: Shape = "eventbridge"
    seed: int = 0
    connections: int = 64
    rate: float | None = None
    timeout_s: float = 10.0
    attempts: int = 20
    scheme: Scheme | None = None
    secret: str = ""
    header: str = ""
    check: str | None = None  # the sink's URL
    settle_s: float = 60.0
    anywhere: bool = False  # not only to this machine

    def __repr__(self) -> str:
        return f"Wish({self.url!r})"  # without the secret


def run(wish: Wish, console: Console) -> Report:
    """Raises ConfigError, before anything is sent, for what cannot work."""
    service = _allowed(wish.url, target(wish.url), wish.anywhere)
    sink = _allowed(wish.check, sink_target(wish.check), wish.anywhere) if wish.check else None
    traffic = Traffic(wish.seed, wish.shape, burst=wish.burst)
    manner = Manner(
        connections=wish.connections,
        timeout_s=wish.timeout_s,
        attempts=wish.attempts,
        rate=wish.rate,
        together=BURST_EVENTS if wish.burst else 1,
    )
    sign = signer(wish.scheme, wish.secret, wish.header)
    arrivals = traffic.storm(wish.events, wish.duplicates, reorder=wish.reorder)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())

    async def storm() -> Report:
        sending = Storming(service, sign, manner, traffic, wish.events, Random().random)
        reader = SinkReader(sink) if sink is not None else None
        before = await look_before(reader, traffic, wish.events) if reader is not None else None
        total = wish.events + round(wish.events * wish.duplicates)
        console.print(f"{total:,} deliveries of {wish.events:,} events → {wish.url}", highlight=False, markup=False)
        with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
            show = _shown(progress, "deliveries answered")
            begun, begun_cpu = time.perf_counter(), time.process_time()
            showing = asyncio.create_task(_follow(lambda: show(sending.tally.ended, total)))
            try:
                await sending.run(arrivals)
            finally:
                showing.cancel()
            seconds, cpu_s = time.perf_counter() - begun, time.process_time() - begun_cpu
            checked: Checked | ConfigError | None = None
            if reader is not None and before is not None:
                show = _shown(progress, "events at the sink")
                silence = partial(_tell_silence, wish, console)
                try:
                    checked = await check(reader, traffic, sending.tally.taken, before, wish.settle_s, show, silence)
                except ConfigError as error:  # the sink is gone: what was sent is told all the same
                    checked = error
                reader.close()
        return report(wish.url, wish.shape, wish.seed, sending.tally, seconds, cpu_s, checked)

    return loops.run(storm())


def _allowed(url: str, found: Target, anywhere: bool) -> Target:
    """Load goes to this machine, unless someone says that the other one is theirs."""
    if not found.loopback and not anywhere:
        where = ", ".join(found.addresses)
        raise ConfigError(f"{url}: {where} is not this machine; add --i-own-this-target if it is yours to load")
    return found


def _shown(progress: Progress, what: str) -> Callable[[int, int], None]:
    task = progress.add_task(what, total=None)
    return lambda done, total: progress.update(task, completed=done, total=total)


def _tell_silence(wish: Wish, console: Console) -> None:
    told = (
        "Nothing has reached the sink since the storm began. Does the service forward to it? It needs, say,\n\n"
        f"{indent(needed_route(wish.check or ''), '    ')}\n"
        f"Waiting for the first event, for {wish.settle_s:g} s in all (--settle)."
    )
    console.print(told, highlight=False, markup=False, soft_wrap=True)


async def _follow(show: Callable[[], None]) -> None:
    while True:
        show()
        await asyncio.sleep(SHOW_S)
