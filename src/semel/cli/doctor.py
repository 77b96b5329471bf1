"""`semel doctor`: checks settings, stores, sources and destinations, and shows the guarantees."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console

from semel.cli.app_importer import find_app
from semel.cli.breakers import ready
from semel.cli.describe import counted, size
from semel.cli.ledger_place import check_there, make_read_only
from semel.cli.options import LedgerUrl
from semel.core.ledger_breaker import LIMIT_MAX_S
from semel.ports import Diagnosable, Fact, Migrates, SeparateDeadLetters
from semel.settings.checks import Finding, RouteFacts, check, errors, facts_of, span, store_facts
from semel.settings.errors import SettingsError
from semel.settings.loading import load
from semel.settings.schema import Settings
from semel.settings.urls import shown
from semel.values.effect import Guarantee
from semel.values.errors import ConfigError, SemelError
from semel.wiring import IDENTITIES, ShapeIdentity, open_ledger

if TYPE_CHECKING:
    from rich.table import Table

    from semel.ports import Ledger, Publisher
    from semel.service.assembly import SourceSpec
    from semel.settings.schema import ServerSettings

LEDGER, DEAD_LETTERS = "the ledger", "the store of dead_letters"
OF_STORE = ("inbox", "durability", "dead_letters")  # checks of settings that depend on the store
SERVER = re.compile(r"(.+) (\S+:[0-9]+)")  # the name of a fact about one of several servers: "clock 10.0.0.7:6379"
MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "error": "[bold red]error[/]"}

ROUND_TRIPS = 3  # the first one may open a connection: the fastest counts
REACH_S = 10.0  # for a destination or a provider
ASK_S = 15.0  # for a source or a broker
OUT_OF_REACH = "out of reach: "  # an adapter begins the text of a temporary error with this
DAYS = re.compile(r"([0-9.]+) days?")

PATIENCE = "raise ledger_patience in [server] above the round trip, or move the ledger nearer"
CHECK_SOURCE = "check that it exists, its name, region and credentials, and that this machine can reach it"

ADVICE = (  # text in the error of a driver or a broker, and the change that fixes it
    (
        re.compile(r"Credentials\w*:|ProfileNotFound|InvalidClientTokenId|InvalidAccessKeyId|ExpiredToken|Signature"),
        "give this process valid AWS credentials: a role, a profile (AWS_PROFILE), or AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY",
    ),
    (re.compile(r"specify a region"), "set region where the queue's URL does not name it, or AWS_DEFAULT_REGION"),
    (re.compile(r"NonExistentQueue|QueueDoesNotExist"), "create the queue, or correct its URL and its region"),
    (re.compile(r"NOT_FOUND - no queue"), "create the queue, correct its name, or set declare = true"),
    (re.compile(r"refuses this user or password"), "correct the user and the password in its url"),
    (re.compile(r"configuration property"), "correct the options: their names and values are those of librdkafka"),
    (
        re.compile(r"EndpointConnectionError|no answer"),
        "check that this machine can reach it; for an emulator, or an endpoint of your own, set endpoint",
    ),
    (
        re.compile(r"transport failure|[Tt]imed out|Connect call failed|SSL"),
        "check host and port, that this machine can reach it, and that both sides use TLS or neither does",
    ),
)

Reach: TypeAlias = Callable[[], Awaitable[str | None]]
"""Connects to a destination or a provider. Returns the reason of a failure, or None."""


class DoctorReport(Struct, frozen=True):
    """The result of `semel doctor`."""

    guarantees: list[Guarantee] = []
    findings: list[Finding] = []
    store: list[Fact] = []  # of the ledger
    sources: dict[str, list[Fact]] = {}  # of sources and brokers, by name
    identities: Sequence[ShapeIdentity] = ()  # the identity of each shape of events

    @property
    def ok(self) -> bool:
        return not errors(self.findings)


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    target: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", help="An app written in Python, whose handlers run too.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="Settings file; by default semel.toml in this folder.")
    ] = None,
    ledger: LedgerUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Check settings, stores and sources, and show the guarantees that they give.

    Prints the guarantee of each route in one line, and what to change where something is wrong.
    Ends with exit code 1 if there is an error, and with 2 if the settings cannot be used at all.
    """
    try:
        report = examine(target, config) if ledger is None else examine_ledger(ledger, target, config)
    except SemelError as error:
        if not as_json:
            raise
        problems = error.problems if isinstance(error, SettingsError) else ()
        document = {"ok": False, "error": str(error), "problems": msgspec.to_builtins(list(problems))}
        typer.echo(msgspec.json.encode(document))
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(to_json(report))
    else:
        show(report, Console())
    raise typer.Exit(0 if report.ok else 1)


def examine(target: str | None, config: Path | None) -> DoctorReport:
    """Examine a deployment without starting it. Raises SemelError if its settings cannot be used."""
    from semel.service.assembly import build, served_endpoints

    settings = load(config, os.environ)
    built = build(settings, find_app(target) if target is not None else None)
    served_endpoints(settings, providers=built.providers)  # verifiers check their own secrets
    app = built.app
    make_read_only(app.ledger)

    async def run() -> DoctorReport:
        try:
            return await report(
                settings,
                facts_of(app.handlers),
                app.guarantees(),
                app.ledger,
                built.reaches,
                built.sources,
                built.publishers,
            )
        finally:
            await built.close()
            await app.close()

    return asyncio.run(run())


def examine_ledger(url: str, target: str | None, config: Path | None) -> DoctorReport:
    """Examine a ledger without settings. Raises SemelError if it does not exist."""
    if target is not None or config is not None:
        raise ConfigError("--ledger examines a ledger without settings: omit it, or omit -c and the app")
    check_there("ledger", url)
    ledger = open_ledger(url)
    make_read_only(ledger)

    async def run() -> DoctorReport:
        try:
            return await report_store(ledger)
        finally:
            await ledger.close()

    return asyncio.run(run())


async def report(
    settings: Settings,
    routes: Sequence[RouteFacts],
    guarantees: Sequence[Guarantee],
    ledger: Ledger,
    reaches: Mapping[str, Reach],
    sources: Sequence[SourceSpec] = (),
    publishers: Mapping[str, Publisher] | None = None,
) -> DoctorReport:
    """Examine everything. Errors become findings.

    The keys of `reaches` are names and URLs of destinations, and "provider NAME".
    """
    of_settings = check(settings, routes, store_facts(ledger))
    store, of_store = await _diagnose_and_measure(ledger, settings.server.ledger_patience)
    source_facts, of_sources = await diagnose_sources(settings, sources, publishers or {})
    reached = await asyncio.gather(*(_reach(_label(name, settings), reach) for name, reach in reaches.items()))
    running = await _running_service(settings.server)
    findings = [*_unless_broken(of_settings, of_store), *of_store, *running, *of_sources, *reached]
    return DoctorReport(list(guarantees), findings, store, source_facts, IDENTITIES)


async def report_store(ledger: Ledger) -> DoctorReport:
    """Examine a ledger whose settings are not known."""
    findings = check(Settings(endpoints=[]), [], store_facts(ledger))
    findings = [finding for finding in findings if finding.check in OF_STORE and finding.check != "inbox"]
    store, of_store = await _diagnose_and_measure(ledger, Settings().server.ledger_patience)
    return DoctorReport([], [*_unless_broken(findings, of_store), *of_store], store)


def _unless_broken(findings: Sequence[Finding], of_store: Sequence[Finding]) -> list[Finding]:
    """If the store has errors, omit the findings that call it ok."""
    broken = bool(errors(of_store))
    return [finding for finding in findings if not (broken and finding.level == "ok" and finding.check in OF_STORE)]


# ---------------------------------------------------------------------------------------------------------- the store


async def _diagnose_and_measure(ledger: Ledger, patience_s: float) -> tuple[list[Fact], list[Finding]]:
    facts, findings = await diagnose(ledger)
    if not facts or errors(findings):
        return facts, findings
    fastest_s = float("inf")
    try:
        for _ in range(ROUND_TRIPS):
            started = time.perf_counter()
            await ledger.claim([])
            fastest_s = min(fastest_s, time.perf_counter() - started)
    except (SemelError, OSError):
        return facts, findings  # the diagnosis of the store reports it
    facts = [*facts, Fact("round trip", f"{fastest_s * 1000:.1f} ms")]
    if fastest_s > max(patience_s, LIMIT_MAX_S):
        slow = f"a round trip to the ledger takes {fastest_s:.1f} s: the service would answer 503 most of the time"
        findings = [*findings, Finding("warning", slow, PATIENCE, "store")]
    return facts, findings


async def diagnose(ledger: Ledger) -> tuple[list[Fact], list[Finding]]:
    """Return the facts of the store, and a finding for each that is a problem."""
    name = ledger.traits.name
    unready = await _unready(ledger)
    if any(finding.what.startswith(LEDGER) for finding in unready):
        return [], unready
    try:
        facts = await ledger.diagnose() if isinstance(ledger, Diagnosable) else []
    except (SemelError, OSError) as error:
        return [], unready or [_unusable(LEDGER, error)]
    if not isinstance(ledger, Diagnosable) and not unready:
        return [], [Finding("ok", f"{name} has no facts to check", check="store")]
    missing = next((fact.value for fact in facts if fact.name == "folder" and fact.level == "error"), "")
    if missing:  # the file cannot be opened either, for the same reason
        change = "create the folder, or write another path in ledger"
        return facts, [Finding("error", f"{name}: {missing}", change, "store")]
    if created := next((fact.value for fact in facts if fact.name == "created"), ""):
        return facts, [*unready, Finding("ok", f"{name}: {created}", check="store")]
    problems = [
        Finding(fact.level, f"{name}, {fact.name}: {_readable(fact.value)}", check="store")
        for fact in grouped(facts)
        if fact.level != "info" and not (unready and _is_reported(fact, unready))
    ]
    return facts, unready + problems or [Finding("ok", f"{name} can be opened and written", check="store")]


def _is_reported(fact: Fact, unready: Sequence[Finding]) -> bool:
    """Whether the findings about migrations report this fact already."""
    of_dead_letters = any(DEAD_LETTERS in finding.what for finding in unready)
    return "semel migrate" in fact.value or (of_dead_letters and fact.name.startswith(("dead_letters", "dead letters")))


async def _unready(ledger: Ledger) -> list[Finding]:
    """The migrations that the ledger and its dead-letter store need."""
    dead_letter_store: Any = ledger.dead_letter_store if isinstance(ledger, SeparateDeadLetters) else None
    try:
        others = await dead_letter_store.pending() if isinstance(dead_letter_store, Migrates) else []
    except (SemelError, OSError) as error:
        return [_unusable(DEAD_LETTERS, error)]
    unready = _to_migrate(f"{DEAD_LETTERS}, {dead_letter_store.traits.name},", others) if others else []
    try:
        steps = await ledger.pending() if isinstance(ledger, Migrates) else []
    except (SemelError, OSError) as error:
        return [_unusable(LEDGER, error), *unready]
    own = steps[: len(steps) - len(others)]  # the ledger lists its own steps first, then those of the other store
    return [*_to_migrate(ledger.traits.name, own), *unready]


def _to_migrate(name: str, steps: Sequence[str]) -> list[Finding]:
    if not steps:
        return []
    return [Finding("error", f"{name} is not ready: {'; '.join(steps)}", "run `semel migrate`", "migrations")]


def _unusable(store: str, error: Exception) -> Finding:
    change = "check that it exists, that it can be written, and that it is a ledger of this version of Semel"
    return Finding("error", f"{store} cannot be used: {error}", change, "store")


def grouped(facts: Sequence[Fact]) -> list[Fact]:
    """Merge the facts that several servers of one store have in common."""
    servers: dict[Fact, list[str]] = {}
    for fact in facts:
        of_server = SERVER.fullmatch(fact.name)
        name, server = of_server.groups() if of_server else (fact.name, "")
        servers.setdefault(replace(fact, name=name), []).append(server)
    return [
        replace(
            fact, name=f"{fact.name} of {len(named)} servers" if len(named) > 1 else f"{fact.name} {named[0]}".strip()
        )
        for fact, named in servers.items()
    ]


def _readable(value: str) -> str:
    """Round exact numbers of bytes; the JSON document has them unchanged."""
    return re.sub(r"\b([0-9]{1,3}(?:,[0-9]{3})+) bytes\b", lambda match: size(int(match[1].replace(",", ""))), value)


# ------------------------------------------------------------------------------------------------ sources and brokers


async def diagnose_sources(
    settings: Settings, sources: Sequence[SourceSpec], publishers: Mapping[str, Publisher]
) -> tuple[dict[str, list[Fact]], list[Finding]]:
    """Return the facts of each source and broker, by name, and the findings. Errors become findings."""
    logging.getLogger("aiormq").addHandler(logging.NullHandler())  # its errors are among the findings
    diagnosable: dict[str, Diagnosable] = {f"source {source.name}": source.make() for source in sources}
    diagnosable |= {f"broker {kind}": publisher for kind, publisher in publishers.items()}
    results = await asyncio.gather(*(_diagnose_source(name, store) for name, store in diagnosable.items()))
    facts = {name: facts for name, (facts, _) in zip(diagnosable, results, strict=True)}
    findings = [finding for _, findings in results for finding in findings]
    for name in facts:
        findings += _kept_too_long(name, facts[name], settings.redelivery)
    return facts, findings


async def _diagnose_source(name: str, source: Diagnosable) -> tuple[list[Fact], list[Finding]]:
    check = name.partition(" ")[0]
    try:
        async with asyncio.timeout(ASK_S):
            facts = await source.diagnose()
    except TimeoutError:
        silent = f"{name} cannot be used: {OUT_OF_REACH}no answer within {ASK_S:g} s"
        return [], [Finding("error", silent, CHECK_SOURCE, check)]
    except (SemelError, OSError) as error:
        reason = str(error).rstrip(".")
        return [], [Finding("error", f"{name} cannot be used: {reason}", _advice(reason) or CHECK_SOURCE, check)]
    problems = [
        Finding(fact.level, f"{name}, {fact.name}: {fact.value}", _advice(fact.value) * (fact.level == "error"), check)
        for fact in facts
        if fact.level != "info"
    ]
    return facts, problems or [Finding("ok", f"{name} can be used", check=check)]


def _advice(error: str) -> str:
    return next((advice for pattern, advice in ADVICE if pattern.search(error)), "")


def _kept_too_long(name: str, facts: Sequence[Fact], redelivery_s: float) -> list[Finding]:
    """A queue can redeliver a message for as long as it keeps it. Retentions must cover that."""
    kept = next((DAYS.fullmatch(fact.value) for fact in facts if fact.name == "kept for"), None)
    kept_s = float(kept[1]) * 86_400 if kept is not None else 0.0
    if not name.startswith("source ") or kept_s <= redelivery_s:
        return []
    what = (
        f"{name} keeps messages for {span(kept_s)}, but redelivery is {span(redelivery_s)}: the effect of a message "
        "that is redelivered later would happen again"
    )
    change = f"set redelivery to {kept_s:.0f} or more, or keep messages for a shorter time"
    return [Finding("error", what, change, "source")]


# ------------------------------------------------------------------------- destinations, providers, a running service


def _label(name: str, settings: Settings) -> str:
    """A name for output. A URL is shortened, because the rest may contain a key."""
    if name in settings.destinations:
        return f"destination {name} ({shown(settings.destinations[name].url)})"
    return name if name.startswith("provider ") else shown(name)


async def _reach(label: str, reach: Reach) -> Finding:
    try:
        async with asyncio.timeout(REACH_S):
            reason = await reach()
    except TimeoutError:
        reason = f"no answer within {REACH_S:g} s"
    except (SemelError, OSError) as error:
        reason = str(error)
    if reason is None:
        return Finding("ok", f"{label} can be reached", check="reach")
    change = "check that it runs, that its URL is right, and that a private address is in its allow"
    return Finding("error", f"{label} cannot be reached: {reason}", change, "reach")


async def _running_service(server: ServerSettings) -> list[Finding]:
    """The ledger breaker of a service that runs with these settings. Empty if no service answers."""
    ledger = (await asyncio.to_thread(ready, server)).get("ledger")
    if not isinstance(ledger, dict) or ledger.get("breaker") in (None, "closed"):
        return []
    what = (
        f"the service on {server.host}:{server.port} refuses deliveries: the breaker of the ledger is "
        f"{ledger['breaker']} since {ledger.get('since')} ({ledger.get('reason')})"
    )
    slow = ledger.get("reason") in ("slow", "stuck")
    return [Finding("warning", what, PATIENCE if slow else "see the service's log for the ledger's error", "running")]


# ------------------------------------------------------------------------------------------------------------- output


def show(report: DoctorReport, console: Console) -> None:
    """Print guarantees, facts, then findings with their changes."""
    from rich.markup import escape
    from rich.text import Text

    if report.guarantees:
        console.print("[bold]Guarantees[/]")
        for guarantee in report.guarantees:
            console.print(str(guarantee), markup=False, highlight=False, soft_wrap=True)  # one line each
        console.print()
    if report.identities:
        console.print("[bold]Is an event recognised when its producer sends it again?[/]")
        table = _grid()
        for row in report.identities:
            recognised = "[green]yes[/]" if row.recognised else "[yellow]no[/]"
            table.add_row(recognised, Text(row.events), Text(f"identified by {row.identity}"))
        console.print(table, "")
    for name, facts in {"the ledger": report.store, **report.sources}.items():
        if facts:
            console.print(f"[bold]{escape(name[:1].upper() + name[1:])}[/]")
            table = _grid()
            table.add_column(no_wrap=True, style="dim")
            table.add_column(overflow="fold")
            for fact in grouped(facts):
                table.add_row(Text(fact.name), Text(_readable(str(fact))))
            console.print(table, "")
    table = _grid()
    for finding in report.findings:
        change = f"\n→ {finding.change}" if finding.change else ""
        table.add_row(MARKS[finding.level], escape(finding.what + change))
    console.print("[bold]Findings[/]", table, "", conclusion(report), sep="\n")


def _grid() -> Table:
    from rich.table import Table

    return Table(box=None, pad_edge=False, show_header=False)


def conclusion(report: DoctorReport) -> str:
    wrong = errors(report.findings)
    warnings = counted(sum(finding.level == "warning" for finding in report.findings), "warning")
    if not wrong:
        return f"No errors, {warnings}."
    stops = any(finding.check != "reach" for finding in wrong)
    start = ": `semel run` does not start like this" if stops else "; `semel run` starts nevertheless"
    return f"[bold red]{counted(len(wrong), 'error')}[/], {warnings}{start}."


def to_json(report: DoctorReport) -> str:
    """The report for programs: {"ok", "guarantees", "identities", "store", "sources", "findings"}."""
    document = {
        "ok": report.ok,
        "guarantees": [{**msgspec.to_builtins(one), "line": str(one)} for one in report.guarantees],
        "identities": msgspec.to_builtins(list(report.identities)),
        "store": {fact.name: str(fact) for fact in report.store},
        "sources": {name: {fact.name: str(fact) for fact in facts} for name, facts in report.sources.items()},
        "findings": msgspec.to_builtins(report.findings),
    }
    return msgspec.json.encode(document).decode()
