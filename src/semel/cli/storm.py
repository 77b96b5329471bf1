"""`semel storm`: sends realistic traffic over HTTP and checks the effects."""

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

from semel.cli import storm_check, storm_load
from semel.cli.describe import plain
from semel.cli.storm_check import SinkCheck, SinkReader, find_sink, needed_route, read_baseline
from semel.cli.storm_load import StormRequest, StormSender, Tally, Target, find_target, signer
from semel.testing.traffic import Traffic
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
    url: Annotated[str, typer.Argument(metavar="URL", help="The endpoint: http://127.0.0.1:8080/events")],
    events: Annotated[int, typer.Option(min=1, max=10_000_000, help="Different events to send.")] = 10_000,
    duplicates: Annotated[float, typer.Option(min=0, max=10, help="Copies: 0.3 is 30 for every 100 events.")] = 0.3,
    reorder: Annotated[bool, typer.Option(help="Swap neighbouring deliveries.")] = True,
    burst: Annotated[
        bool,
        typer.Option("--burst", help="Events come in bursts that share a millisecond; --rate keeps them together."),
    ] = False,
    shape: Annotated[ShapeName, typer.Option(help="The format of the events.")] = ShapeName.eventbridge,
    connections: Annotated[int, typer.Option(min=1, max=1_000, help="Requests at a time.")] = 64,
    rate: Annotated[
        float | None, typer.Option(min=0.1, max=1_000_000, help="Deliveries a second; by default as fast as answered.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Sends the same bytes again. By default new events each time.")
    ] = None,
    scheme: Annotated[SchemeName | None, typer.Option(help="Sign the deliveries like this sender.")] = None,
    secret: Annotated[
        str,
        typer.Option(
            envvar="SEMEL_STORM_SECRET",
            help="The signing secret: env:NAME, file:path, or the secret itself (for basic, user:password).",
        ),
    ] = "",
    header: Annotated[str, typer.Option(help="The header of the signature, if not that of the scheme.")] = "",
    timeout: Annotated[float, typer.Option(min=0.01, max=3600, help="Seconds to wait for a response.")] = 10.0,
    attempts: Annotated[
        int, typer.Option(min=1, max=1_000, help="Attempts of one delivery before it is given up.")
    ] = 20,
    check: Annotated[
        str | None, typer.Option(metavar="URL", help="A counting sink (semel sink) that the service forwards to.")
    ] = None,
    settle: Annotated[
        float,
        typer.Option(min=0, max=86_400, help="Seconds without a new event at the sink before missing events are lost."),
    ] = 60.0,
    i_own_this_target: Annotated[
        bool, typer.Option("--i-own-this-target", help="Send to a machine other than this one.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Send realistic Genesys traffic: duplicated, late, out of order, in bursts.

    Copies are redeliveries with the same bytes, producer's retries under a new
    EventBridge id, and late ones of both. A delivery that is answered with 408,
    409, 425, 429 or 5xx, or not at all, is sent again after Retry-After or with
    exponential backoff. The service may restart meanwhile.

    Exit codes: 0, every delivery was accepted, and with --check every event had
    its effect once. 1, a delivery was refused or never answered, or an effect
    was lost or doubled. 2, the command is invalid.
    """
    request = StormRequest(
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
    report = run(request, Console(stderr=True))
    if as_json:
        typer.echo(to_json(report))
    else:
        console = Console()
        console.print(as_table(report))
        console.print(conclusion(report), markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if report.holds else 1)


SHOW_S = 0.1


def run(request: StormRequest, console: Console) -> StormReport:
    """Send a storm and check its effects. Raises ConfigError, before anything is sent, if the request is invalid."""
    service = _allowed(request.url, find_target(request.url), request.anywhere)
    sink = _allowed(request.check, find_sink(request.check), request.anywhere) if request.check else None
    traffic = Traffic(request.seed, request.shape, burst=request.burst)
    sender = StormSender(
        service, request, signer(request.scheme, request.secret, request.header), traffic, Random().random
    )
    return storm_load.run(_run(request, sender, sink, traffic, console))


async def _run(
    request: StormRequest, sender: StormSender, sink: Target | None, traffic: Traffic, console: Console
) -> StormReport:
    reader = SinkReader(sink) if sink is not None else None
    try:
        before = await read_baseline(reader, traffic, request.events) if reader is not None else None
        total = request.events + round(request.events * request.duplicates)
        console.print(
            f"{total:,} deliveries of {request.events:,} events → {request.url}", highlight=False, markup=False
        )
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
            show = _progress_task(progress, "deliveries answered")
            started, started_cpu = time.perf_counter(), time.process_time()
            showing = asyncio.create_task(_repeat(lambda: show(sender.tally.ended, total)))
            try:
                await sender.run(traffic.storm(request.events, request.duplicates, reorder=request.reorder))
            finally:
                showing.cancel()
            seconds, cpu_s = time.perf_counter() - started, time.process_time() - started_cpu
            checked: SinkCheck | ConfigError | None = None
            if reader is not None and before is not None:
                show = _progress_task(progress, "events at the sink")
                silence = partial(_report_silence, request, console)
                taken = sender.tally.taken
                try:
                    checked = await storm_check.check(reader, traffic, taken, before, request.settle_s, show, silence)
                except ConfigError as error:  # the sink has ended: the report still contains what was sent
                    checked = error
        return make_report(request, sender.tally, seconds, cpu_s, checked)
    finally:
        if reader is not None:
            await reader.close()


def _allowed(url: str, target: Target, anywhere: bool) -> Target:
    """Load goes only to this machine, unless the user owns the target."""
    if not target.is_loopback and not anywhere:
        addresses = ", ".join(target.addresses)
        raise ConfigError(f"{url}: {addresses} is not this machine; add --i-own-this-target if you may load it")
    return target


def _progress_task(progress: Progress, label: str) -> Callable[[int, int], None]:
    task = progress.add_task(label, total=None)
    return lambda done, total: progress.update(task, completed=done, total=total)


def _report_silence(request: StormRequest, console: Console) -> None:
    text = (
        "Nothing has reached the sink since the storm started. Does the service forward to it? It needs a route:\n\n"
        f"{indent(needed_route(request.check or ''), '    ')}\n"
        f"Waiting for the first event, for {request.settle_s:g} s in all (--settle)."
    )
    console.print(text, highlight=False, markup=False, soft_wrap=True)


async def _repeat(show: Callable[[], None]) -> None:
    while True:
        show()
        await asyncio.sleep(SHOW_S)


class StormReport(Struct, frozen=True):
    """The result of one storm."""

    url: str
    shape: str
    seed: int
    sent: int  # deliveries
    unique: int  # events
    redeliveries: int
    producer_retries: int
    requests: int
    retries: int
    answers: dict[str, int]  # requests, by status code
    statuses: dict[str, int]  # by `status` in the bodies with 2xx
    no_answer: dict[str, int]  # requests, by failure
    refused: int  # deliveries
    gave_up: int  # deliveries
    not_taken: int  # events of which no delivery was answered with 2xx
    problem: str
    seconds: float
    rate: float  # answers a second
    p50_ms: float
    p99_ms: float
    max_ms: float
    client_cpu_us: float  # per request, including the creation of its event
    check: SinkCheck | None
    check_failed: str = ""  # why the sink could not be read to the end

    @property
    def holds(self) -> bool:
        accepted = not (self.refused or self.gave_up or self.not_taken)
        return accepted and not self.check_failed and (self.check is None or self.check.holds)


def make_report(
    request: StormRequest, tally: Tally, seconds: float, cpu_s: float, check: SinkCheck | ConfigError | None
) -> StormReport:
    waits = array("f", sorted(tally.waits_s))
    return StormReport(
        url=request.url,
        shape=request.shape,
        seed=request.seed,
        sent=tally.ended,
        unique=len(tally.taken),
        redeliveries=tally.copies["redelivery"],
        producer_retries=tally.copies["producer"],
        requests=tally.requests,
        retries=tally.retries,
        answers={str(code): tally.codes[code] for code in sorted(tally.codes)},
        statuses={plain(status): count for status, count in tally.statuses.most_common()},
        no_answer=dict(tally.failures.most_common()),
        refused=tally.refused,
        gave_up=tally.gave_up,
        not_taken=tally.taken.count(0),
        problem=plain(tally.problem),
        seconds=round(seconds, 3),
        rate=round(len(waits) / seconds, 1) if seconds else 0.0,
        p50_ms=_percentile_ms(waits, 0.50),
        p99_ms=_percentile_ms(waits, 0.99),
        max_ms=_percentile_ms(waits, 1.0),
        client_cpu_us=round(cpu_s / max(tally.requests, 1) * 1e6, 1),
        check=check if isinstance(check, SinkCheck) else None,
        check_failed=str(check) if isinstance(check, ConfigError) else "",
    )


def _percentile_ms(waits_s: array[float], share: float) -> float:
    return round(waits_s[min(len(waits_s) - 1, int(len(waits_s) * share))] * 1000, 3) if waits_s else 0.0


def to_json(report: StormReport) -> str:
    return json.dumps({**msgspec.to_builtins(report), "holds": report.holds}, indent=2)


def as_table(report: StormReport) -> Table:
    table = Table(title="The storm", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for label, number, note in _rows(report):
        table.add_row(Text(label), number, Text(note))
    return table


def _rows(report: StormReport) -> list[tuple[str, str, str]]:
    copies = f"{report.redeliveries:,} redeliveries, {report.producer_retries:,} producer's retries"
    rows = [
        ("deliveries sent", f"{report.sent:,}", f"shape {report.shape}, --seed {report.seed}"),
        ("events", f"{report.unique:,}", ""),
        ("duplicates", f"{report.sent - report.unique:,}", copies),
    ]
    rows += [(f"answered {code}", f"{count:,}", "") for code, count in report.answers.items()]
    rows += [(f"    {status}", f"{count:,}", "") for status, count in report.statuses.items()]
    rows += [(f"no answer: {failure}", f"{count:,}", "") for failure, count in report.no_answer.items()]
    rows += [
        ("retries", f"{report.retries:,}", ""),
        ("refused", f"{report.refused:,}", report.problem if report.refused else ""),
        ("given up", f"{report.gave_up:,}", report.problem if report.gave_up and not report.refused else ""),
        ("answers a second", f"{report.rate:,.0f}", f"{report.seconds:.1f} s"),
        ("p50", f"{report.p50_ms:,.1f} ms", ""),
        ("p99", f"{report.p99_ms:,.1f} ms", f"the longest {report.max_ms:,.1f} ms"),
    ]
    if report.check is not None:
        rows += _check_rows(report.check)
    return rows


def _check_rows(check: SinkCheck) -> list[tuple[str, str, str]]:
    rows = [
        (
            "effects at the sink",
            f"{check.effects:,}",
            f"of {check.distinct:,} events of this storm, after {check.waited_s:.1f} s more",
        ),
        ("    repeats", f"{check.repeats:,}", "of a key, without a second effect"),
        ("    lost", f"{check.lost:,}", "accepted by the service, never arrived"),
        ("    doubled", f"{check.doubled:,}", "more than one effect"),
    ]
    if check.unexpected:
        before = f"; the sink had {check.before:,} events before" if check.before else ""
        rows.append(("    of others", f"{check.unexpected:,}", f"events that this storm did not send{before}"))
    if check.conflicts:
        rows.append(("    conflicts", f"{check.conflicts:,}", "a key came with another event"))
    return rows


def conclusion(report: StormReport) -> str:
    """Return the last lines: the problems, and the events that have them."""
    problems = []
    if report.not_taken:
        problems.append(f"{report.not_taken:,} events were never accepted")
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
        return "\n".join([f"NOT once: {'; '.join(problems)}.", *(_affected(check) if check else [])])
    if check is None:
        return f"{report.unique:,} events, every delivery was accepted. Their effects were not checked (--check)."
    return f"{report.unique:,} events, {report.sent:,} deliveries: each had its effect once."


def _affected(check: SinkCheck) -> list[str]:
    if check.lost and not check.distinct:
        return [
            "Nothing of this storm reached the sink: check that a route forwards to it, and that the service can reach"
            " it (semel doctor)."
        ]
    return [*[f"  lost: {name}" for name in check.lost_ids], *[f"  doubled: {name}" for name in check.doubled_ids]]
