"""`semel storm`: realistic traffic over HTTP, and what the service made of it."""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from random import Random, SystemRandom
from textwrap import indent
from typing import Annotated

import msgspec
import typer
from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from semel.cli import http_load
from semel.cli.describe import plain
from semel.cli.http_load import Target, target
from semel.cli.storm_check import Checked, SinkReader, check, look_before, needed_route, sink_target
from semel.cli.storm_load import Manner, Scheme, Storming, Tally, signer
from semel.testing.shapes import Shape
from semel.testing.traffic import BURST_EVENTS, Traffic
from semel.values.errors import ConfigError


class ShapeName(StrEnum):
    eventbridge = "eventbridge"
    detail = "detail"
    webhook = "webhook"
    open_messaging = "open-messaging"
    cloudevents = "cloudevents"


class SchemeName(StrEnum):
    genesys = "genesys"
    standard_webhooks = "standard-webhooks"
    hmac_hex = "hmac-hex"
    header = "header"
    basic = "basic"


def register(app: typer.Typer) -> None:
    app.command()(storm)


def storm(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to send: http://127.0.0.1:8080/events")],
    events: Annotated[int, typer.Option(min=1, max=10_000_000, help="Different events to send.")] = 10_000,
    duplicates: Annotated[
        float, typer.Option(min=0, max=10, help="Copies besides: 0.3 is 30 for every 100 events.")
    ] = 0.3,
    reorder: Annotated[bool, typer.Option(help="Neighbours swap places.")] = True,
    burst: Annotated[
        bool,
        typer.Option("--burst", help="Events come in bursts that share a millisecond; --rate keeps them together."),
    ] = False,
    shape: Annotated[ShapeName, typer.Option(help="How events are spelled.")] = ShapeName.eventbridge,
    connections: Annotated[int, typer.Option(min=1, max=1_000, help="Requests at a time.")] = 64,
    rate: Annotated[
        float | None, typer.Option(min=0.1, max=1_000_000, help="Deliveries a second; by default as fast as answered.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Makes the same bytes again. By default new events each time.")
    ] = None,
    scheme: Annotated[SchemeName | None, typer.Option(help="Sign the deliveries like this sender.")] = None,
    secret: Annotated[
        str,
        typer.Option(
            envvar="SEMEL_STORM_SECRET",
            help="What to sign with: env:NAME, file:path, or the secret itself (for basic, user:password).",
        ),
    ] = "",
    header: Annotated[str, typer.Option(help="Its name, where the scheme's usual one is not wanted.")] = "",
    timeout: Annotated[float, typer.Option(min=0.01, max=3600, help="Seconds to wait for an answer.")] = 10.0,
    attempts: Annotated[int, typer.Option(min=1, max=1_000, help="Tries of one delivery before it is given up.")] = 20,
    check: Annotated[
        str | None, typer.Option(metavar="URL", help="A counting sink (semel sink) that the service forwards to.")
    ] = None,
    settle: Annotated[
        float,
        typer.Option(min=0, max=86_400, help="Seconds without a new event at the sink, until what is missing is lost."),
    ] = 60.0,
    i_own_this_target: Annotated[
        bool, typer.Option("--i-own-this-target", help="Send to another machine than this one.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Send realistic Genesys traffic: duplicated, late, out of order, in bursts.

    Copies are redeliveries with the same bytes, producer's retries under a new
    EventBridge id, and late ones of both. What is answered with 408, 409, 425,
    429 or 5xx, or not at all, is sent again after Retry-After or a growing
    pause, so that a restart of the service is survived.

    Exit codes: 0, every delivery was taken, and with --check every event had
    its effect once. 1, a delivery was refused or never answered, or the sink
    found an effect lost or doubled. 2, the command cannot work as given.
    """
    wish = StormRequest(
        url=url,
        events=events,
        duplicates=duplicates,
        reorder=reorder,
        burst=burst,
        shape=shape.value,
        seed=SystemRandom().getrandbits(32) if seed is None else seed,
        connections=connections,
        rate=rate,
        timeout_s=timeout,
        attempts=attempts,
        scheme=scheme.value if scheme else None,
        secret=secret,
        header=header,
        check=check,
        settle_s=settle,
        anywhere=i_own_this_target,
    )
    report = run(wish, Console(stderr=True))
    if as_json:
        typer.echo(to_json(report))
    else:
        console = Console()
        console.print(as_table(report))
        console.print(conclusion(report), markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if report.holds else 1)


# One storm from its options to its report: look, send, check.

SHOW_S = 0.1


class StormRequest(Struct, frozen=True, kw_only=True):
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


def run(wish: StormRequest, console: Console) -> StormReport:
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

    async def storm() -> StormReport:
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

    return http_load.run(storm())


def _allowed(url: str, found: Target, anywhere: bool) -> Target:
    """Load goes to this machine, unless someone says that the other one is theirs."""
    if not found.loopback and not anywhere:
        where = ", ".join(found.addresses)
        raise ConfigError(f"{url}: {where} is not this machine; add --i-own-this-target if it is yours to load")
    return found


def _shown(progress: Progress, what: str) -> Callable[[int, int], None]:
    task = progress.add_task(what, total=None)
    return lambda done, total: progress.update(task, completed=done, total=total)


def _tell_silence(wish: StormRequest, console: Console) -> None:
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


# What a storm came to, for people and for programs.


class StormReport(Struct, frozen=True):
    """One storm."""

    url: str
    shape: str
    seed: int
    sent: int  # deliveries
    unique: int  # different events
    redeliveries: int
    producer_retries: int
    requests: int
    retries: int
    answers: dict[str, int]  # by status code
    statuses: dict[str, int]  # by `status` in the answers with 2xx
    no_answer: dict[str, int]  # requests, by what went wrong
    refused: int  # deliveries
    gave_up: int  # deliveries
    not_taken: int  # events of which no delivery was answered with 2xx
    trouble: str
    seconds: float
    rate: float  # answers a second
    p50_ms: float
    p99_ms: float
    max_ms: float
    client_cpu_us: float  # for each request, with the making of its event
    check: Checked | None
    check_failed: str = ""  # why the sink could not be asked any more

    @property
    def holds(self) -> bool:
        taken = not (self.refused or self.gave_up or self.not_taken)
        return taken and not self.check_failed and (self.check is None or self.check.holds)


def report(
    url: str, shape: str, seed: int, tally: Tally, seconds: float, cpu_s: float, check: Checked | ConfigError | None
) -> StormReport:
    waits = array("f", sorted(tally.waits_s))
    return StormReport(
        url=url,
        shape=shape,
        seed=seed,
        sent=tally.ended,
        unique=len(tally.taken),
        redeliveries=tally.copies["redelivery"],
        producer_retries=tally.copies["producer"],
        requests=tally.requests,
        retries=tally.retries,
        answers={str(code): tally.codes[code] for code in sorted(tally.codes)},
        statuses={plain(word): count for word, count in tally.words.most_common()},
        no_answer=dict(tally.failures.most_common()),
        refused=tally.refused,
        gave_up=tally.gave_up,
        not_taken=tally.taken.count(0),
        trouble=plain(tally.trouble),
        seconds=round(seconds, 3),
        rate=round(len(waits) / seconds, 1) if seconds else 0.0,
        p50_ms=_at(waits, 0.50),
        p99_ms=_at(waits, 0.99),
        max_ms=_at(waits, 1.0),
        client_cpu_us=round(cpu_s / max(tally.requests, 1) * 1e6, 1),
        check=check if isinstance(check, Checked) else None,
        check_failed=str(check) if isinstance(check, ConfigError) else "",
    )


def _at(waits_s: array[float], share: float) -> float:
    """The wait, in ms, that this share of all answers did not exceed."""
    return round(waits_s[min(len(waits_s) - 1, int(len(waits_s) * share))] * 1000, 3) if waits_s else 0.0


def to_json(report: StormReport) -> str:
    return json.dumps({**msgspec.to_builtins(report), "holds": report.holds}, indent=2)


def as_table(report: StormReport) -> Table:
    table = Table(title="The storm", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for what, number, note in _rows(report):
        table.add_row(Text(what), number, Text(note))
    return table


def _rows(report: StormReport) -> list[tuple[str, str, str]]:
    copies = f"{report.redeliveries:,} redeliveries, {report.producer_retries:,} producer's retries"
    rows = [
        ("deliveries sent", f"{report.sent:,}", f"shape {report.shape}, --seed {report.seed}"),
        ("different events", f"{report.unique:,}", ""),
        ("duplicates", f"{report.sent - report.unique:,}", copies),
    ]
    rows += [(f"answered {code}", f"{count:,}", "") for code, count in report.answers.items()]
    rows += [(f"    {word}", f"{count:,}", "") for word, count in report.statuses.items()]
    rows += [(f"no answer: {failure}", f"{count:,}", "") for failure, count in report.no_answer.items()]
    rows += [
        ("retries", f"{report.retries:,}", ""),
        ("refused", f"{report.refused:,}", report.trouble if report.refused else ""),
        ("given up", f"{report.gave_up:,}", report.trouble if report.gave_up and not report.refused else ""),
        ("answers a second", f"{report.rate:,.0f}", f"{report.seconds:.1f} s"),
        ("p50", f"{report.p50_ms:,.1f} ms", ""),
        ("p99", f"{report.p99_ms:,.1f} ms", f"the longest {report.max_ms:,.1f} ms"),
    ]
    if report.check is not None:
        rows += _checked(report.check)
    return rows


def _checked(check: Checked) -> list[tuple[str, str, str]]:
    rows = [
        (
            "effects at the sink",
            f"{check.effects:,}",
            f"of {check.distinct:,} events of this storm, after {check.waited_s:.1f} s more",
        ),
        ("    repeats", f"{check.repeats:,}", "of a key, answered without a second effect"),
        ("    lost", f"{check.lost:,}", "taken by the service, never arrived"),
        ("    doubled", f"{check.doubled:,}", "more than one effect"),
    ]
    if check.unexpected:
        held = f"; the sink knew {check.before:,} events before" if check.before else ""
        rows.append(("    of others", f"{check.unexpected:,}", f"events that this storm did not send{held}"))
    if check.conflicts:
        rows.append(("    conflicts", f"{check.conflicts:,}", "a key came with another event"))
    return rows


def conclusion(report: StormReport) -> str:
    """The last lines: what is wrong, and which events."""
    problems = []
    if report.not_taken:
        problems.append(f"{report.not_taken:,} events were never taken")
    if report.refused or report.gave_up:
        problems.append(f"{report.refused:,} deliveries refused, {report.gave_up:,} given up")
    check = report.check
    if check is not None and (check.lost or check.doubled):
        problems.append(f"{check.lost:,} effects lost, {check.doubled:,} doubled")
    if check is not None and check.conflicts:
        problems.append(f"{check.conflicts:,} times a key came with another event")
    if report.check_failed:
        problems.append(f"not checked: {report.check_failed}")
    if problems:
        return "\n".join([f"NOT once: {'; '.join(problems)}.", *(_which(check) if check else [])])
    if check is None:
        return f"{report.unique:,} events, every delivery was taken. What came of them was not checked (--check)."
    return f"{report.unique:,} events, {report.sent:,} deliveries: each had its effect once."


def _which(check: Checked) -> list[str]:
    if check.lost and not check.distinct:
        return [
            "Nothing of this storm reached the sink: see that a route forwards to it, and that the service can reach it"
            " (semel doctor)."
        ]
    return [*_named("lost", check.lost_ids), *_named("doubled", check.doubled_ids)]


def _named(what: str, ids: list[str]) -> list[str]:
    return [f"  {what}: {name}" for name in ids]
