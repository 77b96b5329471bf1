"""`semel doctor`: what is promised, what was looked at, and what to change."""

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
from semel.cli.describe import size
from semel.cli.ledger_place import check_there, make_read_only
from semel.cli.options import LedgerUrl
from semel.core.ledger_breaker import LIMIT_MAX_S
from semel.ports import Diagnosable, Fact, Migrates
from semel.settings.checks import check, errors, facts_of, store_facts
from semel.settings.errors import SettingsError
from semel.settings.findings import Finding, RouteFacts, span
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
    from semel.settings.schema import Server


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(
    target: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", help="An app written in Python, whose handlers run too.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="Settings; by default semel.toml, if it is here.")
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
        typer.echo(refusal_as_json(error))
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(to_json(report))
    else:
        show(report, Console())
    raise typer.Exit(0 if report.ok else 1)


def examine(target: str | None, config: Path | None) -> DoctorReport:
    """Load, build and look, without starting anything. Raises SemelError where there is nothing to look at."""
    from semel.service.assembly import build, served_endpoints

    settings = load(config, os.environ)
    built = build(settings, find_app(target) if target is not None else None)
    served_endpoints(settings, providers=built.providers)  # a verifier has its own opinion of its secrets

    make_read_only(built.app.ledger)

    async def look() -> DoctorReport:
        app = built.app
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

    return asyncio.run(look())


def examine_ledger(url: str, target: str | None, config: Path | None) -> DoctorReport:
    """A ledger alone. Raises SemelError where there is nothing to look at."""
    if target is not None or config is not None:
        raise ConfigError("--ledger is a ledger alone: leave it out, or leave out the settings and the app")
    check_there("ledger", url)
    store = open_ledger(url)
    make_read_only(store)

    async def look() -> DoctorReport:
        try:
            return await report_store(store)
        finally:
            await store.close()

    return asyncio.run(look())


# What `semel doctor` looks at and prints: what is promised, what was found, and what to change.

MIGRATE = "run `semel migrate`"
REACH_S = 10.0  # a destination that says nothing for so long is not there
LEDGER, LETTERS = "the ledger", "the store of dead_letters"
OF_STORE = ("inbox", "durability", "dead_letters")  # checks that speak for the store
SERVER = re.compile(r"(.+) (\S+:[0-9]+)")  # a fact of one of several servers: "persistence 10.0.0.7:6379"
MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "error": "[bold red]error[/]"}

Reach: TypeAlias = Callable[[], Awaitable[str | None]]
"""Tries to connect. None: fine; else the reason why not."""


class DoctorReport(Struct, frozen=True):
    """Everything that doctor has to say."""

    guarantees: list[Guarantee] = []
    findings: list[Finding] = []
    store: list[Fact] = []  # of the ledger
    sources: dict[str, list[Fact]] = {}  # of sources and brokers, by name
    identities: Sequence[ShapeIdentity] = ()  # the identity of each shape of events

    @property
    def ok(self) -> bool:
        return not errors(self.findings)


async def report(
    settings: Settings,
    routes: Sequence[RouteFacts],
    guarantees: Sequence[Guarantee],
    ledger: Ledger,
    reaches: Mapping[str, Reach],
    supplies: Sequence[SourceSpec] = (),
    publishers: Mapping[str, Publisher] | None = None,
) -> DoctorReport:
    """Look at everything. `reaches` has a way to try each destination, by its name or its URL, and each provider.

    Nothing that is found raises: it becomes a finding."""
    findings = check(settings, routes, store_facts(ledger))
    store, of_store = await _diagnose_and_measure(ledger, settings.server.ledger_patience)
    sources, of_sources = await diagnose_sources(settings, supplies, publishers or {})
    reached = await asyncio.gather(*(_reached(_label(name, settings), reach) for name, reach in reaches.items()))
    running = await breaker(settings.server)
    found = [*_as_seen(findings, of_store), *of_store, *running, *of_sources, *reached]
    return DoctorReport(list(guarantees), found, store, sources, IDENTITIES)


async def report_store(ledger: Ledger) -> DoctorReport:
    """The same for a ledger alone, of which no settings are known."""
    findings = check(Settings(endpoints=[]), [], store_facts(ledger))
    findings = [one for one in findings if one.check in OF_STORE and one.check != "inbox"]  # nobody says what it is for
    store, of_store = await _diagnose_and_measure(ledger, Settings().server.ledger_patience)
    return DoctorReport([], [*_as_seen(findings, of_store), *of_store], store)


def _as_seen(findings: Sequence[Finding], of_store: Sequence[Finding]) -> list[Finding]:
    """Nothing is called well of a store that could not be looked at, or said itself that it is not."""
    unwell = bool(errors(of_store))
    return [one for one in findings if not (unwell and one.level == "ok" and one.check in OF_STORE)]


# ---------------------------------------------------------------------------------------------------------- the store


async def _diagnose_and_measure(ledger: Ledger, patience_s: float) -> tuple[list[Fact], list[Finding]]:
    facts, findings = await diagnose(ledger)
    if not facts or errors(findings):
        return facts, findings
    measured, slow = await measure(ledger, patience_s)
    return [*facts, *measured], [*findings, *slow]


async def diagnose(ledger: Ledger) -> tuple[list[Fact], list[Finding]]:
    """The facts of the store, and a finding for each that is a problem."""
    name = ledger.traits.name
    unready = await _unready(ledger)
    if any(finding.what.startswith(LEDGER) for finding in unready):
        return [], unready
    try:
        facts = await ledger.diagnose() if isinstance(ledger, Diagnosable) else []
    except (SemelError, OSError) as error:
        return [], unready or [_unusable(LEDGER, error)]
    if not isinstance(ledger, Diagnosable) and not unready:
        return [], [Finding("ok", f"{name} has nothing to tell about itself", check="store")]
    missing = next((fact.value for fact in facts if fact.name == "folder" and fact.level == "error"), "")
    if missing:  # the file cannot be opened either, for the same reason
        change = "make the folder, or write another path in ledger"
        return facts, [Finding("error", f"{name}: {missing}", change, "store")]
    if created := next((fact.value for fact in facts if fact.name == "created"), ""):
        return facts, [*unready, Finding("ok", f"{name}: {created}", check="store")]
    problems = [
        Finding(fact.level, f"{name}, {fact.name}: {_readable(fact.value)}", check="store")
        for fact in grouped(facts)
        if fact.level != "info" and not (unready and _is_the_same(fact, unready))
    ]
    return facts, unready + problems or [Finding("ok", f"{name} can be opened and written", check="store")]


def _is_the_same(fact: Fact, unready: Sequence[Finding]) -> bool:
    """A store that is not ready says so itself, once more."""
    of_letters = any(LETTERS in finding.what for finding in unready)
    return "semel migrate" in fact.value or (of_letters and fact.name.startswith("dead_letters"))


async def _unready(ledger: Ledger) -> list[Finding]:
    """What has to be done to the ledger, and to the store of its letters, before they can be used."""
    dead_letter_store: Any = getattr(ledger, "dead_letter_store", None)
    elsewhere: list[str] = []
    try:
        elsewhere = await _steps(dead_letter_store)
    except (SemelError, OSError) as error:
        return [_unusable(LETTERS, error)]
    of_letters = _to_migrate(f"{LETTERS}, {dead_letter_store.traits.name},", elsewhere) if elsewhere else []
    try:
        steps = await _steps(ledger)
    except (SemelError, OSError) as error:
        return [_unusable(LEDGER, error), *of_letters]
    return [*_to_migrate(ledger.traits.name, steps[: len(steps) - len(elsewhere)]), *of_letters]  # its own come first


async def _steps(store: object) -> list[str]:
    return await store.pending() if isinstance(store, Migrates) else []


def _to_migrate(name: str, steps: Sequence[str]) -> list[Finding]:
    return [Finding("error", f"{name} is not ready: {'; '.join(steps)}", MIGRATE, "migrations")] if steps else []


def _unusable(what: str, error: Exception) -> Finding:
    change = "see that it is there and can be written, and that it is a ledger of this Semel"
    return Finding("error", f"{what} cannot be used: {error}", change, "store")


def grouped(facts: Sequence[Fact]) -> list[Fact]:
    """Merge the facts that several servers of one store have in common."""
    servers: dict[Fact, list[str]] = {}
    for fact in facts:
        of_server = SERVER.fullmatch(fact.name)
        name, server = of_server.groups() if of_server else (fact.name, "")
        servers.setdefault(replace(fact, name=name), []).append(server)
    return [replace(fact, name=fact.name + _of(named)) for fact, named in servers.items()]


def _of(servers: Sequence[str]) -> str:
    return f" of {len(servers)} servers" if len(servers) > 1 else f" {servers[0]}" if servers[0] else ""


def _readable(value: str) -> str:
    """A store tells exact bytes, which programs get as they are."""
    return re.sub(r"\b([0-9]{1,3}(?:,[0-9]{3})+) bytes\b", lambda found: size(int(found[1].replace(",", ""))), value)


# ---------------------------------------------------------------------------------------- destinations and providers


def _label(name: str, settings: Settings) -> str:
    """A destination or provider for people. A URL is shortened: the rest of it may hold a key."""
    if name in settings.destinations:
        return f"destination {name} ({shown(settings.destinations[name].url)})"
    return name if name.startswith("provider ") else shown(name)


async def _reached(label: str, reach: Reach) -> Finding:
    try:
        async with asyncio.timeout(REACH_S):
            reason = await reach()
    except TimeoutError:
        reason = f"no answer within {REACH_S:g} s"
    except (SemelError, OSError) as error:
        reason = str(error)
    if reason is None:
        return Finding("ok", f"{label} can be reached", check="reach")
    change = "see that it runs, that its URL is right, and that a private address is in its allow"
    return Finding("error", f"{label} cannot be reached: {reason}", change, "reach")


# ------------------------------------------------------------------------------------------------------------ showing


def show(report: DoctorReport, console: Console) -> None:
    """Guarantees, the facts of the store and of sources, then the findings with what to change."""
    from rich.markup import escape

    if report.guarantees:
        console.print("[bold]What is promised[/]")
        for promise in report.guarantees:
            console.print(str(promise), markup=False, highlight=False, soft_wrap=True)  # a line each, however long
        console.print()
    if report.identities:
        console.print("[bold]Which events are recognised when their producer sends them again[/]")
        console.print(_identities(report.identities))
        console.print()
    if report.store:
        console.print("[bold]The ledger[/]")
        console.print(_facts(report.store))
        console.print()
    for name, facts in report.sources.items():
        if facts:
            console.print(f"[bold]{escape(name[:1].upper() + name[1:])}[/]")
            console.print(_facts(facts))
            console.print()
    console.print("[bold]What was looked at[/]", as_table(report), "", conclusion(report), sep="\n")


def _identities(rows: Sequence[ShapeIdentity]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for row in rows:
        mark = "[green]yes[/]" if row.recognised else "[yellow]no[/]"
        table.add_row(mark, Text(row.events), Text(f"known by {row.identity}"))
    return table


def _facts(facts: Sequence[Fact]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for fact in grouped(facts):
        table.add_row(Text(fact.name), Text(_readable(str(fact))))
    return table


def as_table(report: DoctorReport) -> Table:
    """The findings, each with what to change below it."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in report.findings:
        change = f"\n→ {finding.change}" if finding.change else ""
        table.add_row(MARKS[finding.level], escape(finding.what + change))
    return table


def conclusion(report: DoctorReport) -> str:
    wrong = len(errors(report.findings))
    warned = sum(finding.level == "warning" for finding in report.findings)
    if wrong:
        stops = any(finding.check != "reach" for finding in errors(report.findings))
        start = ": `semel run` does not start like this" if stops else "; `semel run` starts all the same"
        return f"[bold red]{_count(wrong, 'error')}[/], {_count(warned, 'warning')}{start}."
    return f"No errors, {_count(warned, 'warning')}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def to_json(report: DoctorReport) -> str:
    """The same for programs: {"ok", "guarantees", "identities", "store", "sources", "findings"}."""
    document = {
        "ok": report.ok,
        "guarantees": [{**msgspec.to_builtins(one), "line": str(one)} for one in report.guarantees],
        "identities": msgspec.to_builtins(list(report.identities)),
        "store": {fact.name: str(fact) for fact in report.store},
        "sources": {name: {fact.name: str(fact) for fact in facts} for name, facts in report.sources.items()},
        "findings": msgspec.to_builtins(report.findings),
    }
    return msgspec.json.encode(document).decode()


def refusal_as_json(error: SemelError) -> str:
    """What programs get when the settings cannot be used at all."""
    problems = error.problems if isinstance(error, SettingsError) else ()
    document = {"ok": False, "error": str(error), "problems": msgspec.to_builtins(list(problems))}
    return msgspec.json.encode(document).decode()


# The round trip to the ledger, and the breaker of a service that runs with these settings.

ROUND_TRIPS = 3  # the first one may open a connection: the fastest counts

PATIENCE = "raise ledger_patience in [server] above the round trip, or move the ledger nearer"


async def measure(ledger: Ledger, patience_s: float) -> tuple[list[Fact], list[Finding]]:
    """The fastest of a few empty claims, as a fact and as findings."""
    fastest_s = float("inf")
    try:
        for _ in range(ROUND_TRIPS):
            begun = time.perf_counter()
            await ledger.claim([])
            fastest_s = min(fastest_s, time.perf_counter() - begun)
    except (SemelError, OSError):
        return [], []  # the diagnosis of the store reports it
    facts = [Fact("round trip", f"{fastest_s * 1000:.1f} ms")]
    if fastest_s <= max(patience_s, LIMIT_MAX_S):
        return facts, []
    what = f"a round trip to the ledger takes {fastest_s:.1f} s: the service would answer 503 most of the time"
    return facts, [Finding("warning", what, PATIENCE, "store")]


async def breaker(server: Server) -> list[Finding]:
    """What a running service reports about its breaker. Nothing if none answers."""
    ledger = (await asyncio.to_thread(ready, server)).get("ledger")
    state: dict[str, Any] = ledger if isinstance(ledger, dict) else {}
    if not state or state.get("breaker") in (None, "closed"):
        return []
    what = (
        f"the service on {server.host}:{server.port} refuses deliveries: the breaker of the ledger is "
        f"{state['breaker']} since {state.get('since')} ({state.get('reason')})"
    )
    change = PATIENCE if state.get("reason") in ("slow", "stuck") else "see the service's log for the ledger's error"
    return [Finding("warning", what, change, "running")]


# What sources and brokers say of themselves, and what doctor thinks of it.

OUT_OF_REACH = "out of reach: "  # how an adapter begins what may be over in a moment
ASK_S = 15.0  # a broker that says nothing for so long is not there
DAY_S = 86_400
KEPT = "kept for"  # what a queue calls its retention
CHANGE = "see that it is there, that its name, region and credentials are right, and that this machine may reach it"

ADVICE = (  # what a driver or a broker says, and what a person can do about it
    (
        re.compile(r"Credentials\w*:|ProfileNotFound|InvalidClientTokenId|InvalidAccessKeyId|ExpiredToken|Signature"),
        "give this process credentials of AWS that are valid: a role, a profile (AWS_PROFILE), or AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY",
    ),
    (re.compile(r"specify a region"), "set region where the queue's URL does not name it, or AWS_DEFAULT_REGION"),
    (re.compile(r"NonExistentQueue|QueueDoesNotExist"), "create the queue, or correct its URL and its region"),
    (re.compile(r"NOT_FOUND - no queue"), "create the queue, correct its name, or set declare = true"),
    (re.compile(r"refuses this user or password"), "correct the user and the password in its url"),
    (re.compile(r"configuration property"), "correct the options: their names and values are those of librdkafka"),
    (
        re.compile(r"EndpointConnectionError|no answer"),
        "see that this machine may reach it; an emulator, or an endpoint of your own, is named by the setting endpoint",
    ),
    (
        re.compile(r"transport failure|[Tt]imed out|Connect call failed|SSL"),
        "see that host and port are right, that this machine may reach it, and that both sides use TLS or neither does",
    ),
)

_DAYS = re.compile(r"([0-9.]+) days?")


async def diagnose_sources(
    settings: Settings, supplies: Sequence[SourceSpec], publishers: Mapping[str, Publisher]
) -> tuple[dict[str, list[Fact]], list[Finding]]:
    """The facts of each, by its name, and what is wrong with them. Nothing raises: it becomes a finding."""
    logging.getLogger("aiormq").addHandler(logging.NullHandler())  # what it has to say is among the findings
    asked: dict[str, Callable[[], Awaitable[list[Fact]]]] = {}
    for supply in supplies:
        asked[f"source {supply.name}"] = supply.make().diagnose
    for kind, publisher in publishers.items():
        asked[f"broker {kind}"] = publisher.diagnose
    told = await asyncio.gather(*(_told(name, ask) for name, ask in asked.items()))
    facts = dict(zip(asked, (facts for facts, _ in told), strict=True))
    findings = [finding for _, found in told for finding in found]
    for name, some in facts.items():
        findings += _too_long(name, some, settings)
    return facts, findings


async def _told(name: str, ask: Callable[[], Awaitable[list[Fact]]]) -> tuple[list[Fact], list[Finding]]:
    check = name.partition(" ")[0]
    try:
        async with asyncio.timeout(ASK_S):
            facts = await ask()
    except TimeoutError:
        silent = f"{name} cannot be used: {OUT_OF_REACH}no answer within {ASK_S:g} s"
        return [], [Finding("error", silent, CHANGE, check)]
    except (SemelError, OSError) as error:
        said = str(error).rstrip(".")
        return [], [Finding("error", f"{name} cannot be used: {said}", _advice(said) or CHANGE, check)]
    problems = [
        Finding(fact.level, f"{name}, {fact.name}: {fact.value}", _advice(fact.value) * (fact.level == "error"), check)
        for fact in facts
        if fact.level != "info"
    ]
    return facts, problems or [Finding("ok", f"{name} is there", check=check)]


def _advice(said: str) -> str:
    """Empty where nothing is known, or what was said tells it already."""
    return next((advice for pattern, advice in ADVICE if pattern.search(said)), "")


def _too_long(name: str, facts: Sequence[Fact], settings: Settings) -> list[Finding]:
    """What a queue keeps can come again: `redelivery` covers that, and what routes remember covers it twice."""
    kept = next((_DAYS.fullmatch(fact.value) for fact in facts if fact.name == KEPT), None)
    kept_s = float(kept[1]) * DAY_S if kept is not None else 0.0
    if not name.startswith("source ") or kept_s <= settings.redelivery:
        return []
    what = (
        f"{name} keeps messages for {span(kept_s)}, and redelivery says that an event may come again for "
        f"{span(settings.redelivery)}: a late copy would act again"
    )
    return [
        Finding("error", what, f"set redelivery to {kept_s:.0f} or more, or keep messages for a shorter time", "source")
    ]
