"""What `semel doctor` looks at and prints: what is promised, what was found, and what to change."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Struct

from semel.cli import doctor_ledger
from semel.cli.doctor_sources import diagnose_sources
from semel.cli.operating.words import size
from semel.ports import Migrates
from semel.settings.checking import Finding, Level, RouteFacts, check, errors, store_facts
from semel.settings.problems import SettingsError
from semel.settings.schema import Settings
from semel.settings.urls import shown
from semel.values.effect import Guarantee
from semel.values.errors import SemelError
from semel.wiring import IDENTITIES, ShapeIdentity

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from semel.ports import Ledger, Publisher
    from semel.service.building import Supply

MIGRATE = "run `semel migrate`"
REACH_S = 10.0  # a destination that says nothing for so long is not there
LEDGER, LETTERS = "the ledger", "the store of dead_letters"
OF_STORE = ("inbox", "durability", "letters")  # checks that speak for the store
SERVER = re.compile(r"(.+) (\S+:[0-9]+)")  # a fact of one of several servers: "persistence 10.0.0.7:6379"
BAD: tuple[Level, ...] = ("error", "warning")
MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "error": "[bold red]error[/]"}

Reach: TypeAlias = Callable[[], Awaitable[str | None]]
"""Tries to connect. None: fine; else the reason why not."""


class Report(Struct, frozen=True):
    """Everything that doctor has to say."""

    guarantees: list[Guarantee] = []
    findings: list[Finding] = []
    store: list[tuple[str, str]] = []  # what the ledger says of itself
    sources: dict[str, list[tuple[str, str]]] = {}  # and sources and brokers, by their names
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
    supplies: Sequence[Supply] = (),
    publishers: Mapping[str, Publisher] | None = None,
) -> Report:
    """Look at everything. `reaches` has a way to try each destination, by its name or its URL, and each provider.

    Nothing that is found raises: it becomes a finding."""
    findings = check(settings, routes, store_facts(ledger))
    store, of_store = await _diagnose_and_measure(ledger, settings.server.ledger_patience)
    sources, of_sources = await diagnose_sources(settings, supplies, publishers or {})
    reached = await asyncio.gather(*(_reached(_label(name, settings), reach) for name, reach in reaches.items()))
    running = await doctor_ledger.breaker(settings.server)
    found = [*_as_seen(findings, of_store), *of_store, *running, *of_sources, *reached]
    return Report(list(guarantees), found, store, sources, IDENTITIES)


async def report_store(ledger: Ledger) -> Report:
    """The same for a ledger alone, of which no settings are known."""
    findings = check(Settings(endpoints=[]), [], store_facts(ledger))
    findings = [one for one in findings if one.check in OF_STORE and one.check != "inbox"]  # nobody says what it is for
    store, of_store = await _diagnose_and_measure(ledger, Settings().server.ledger_patience)
    return Report([], [*_as_seen(findings, of_store), *of_store], store)


def _as_seen(findings: Sequence[Finding], of_store: Sequence[Finding]) -> list[Finding]:
    """Nothing is called well of a store that could not be looked at, or said itself that it is not."""
    unwell = bool(errors(of_store))
    return [one for one in findings if not (unwell and one.level == "ok" and one.check in OF_STORE)]


# ---------------------------------------------------------------------------------------------------------- the store


async def _diagnose_and_measure(ledger: Ledger, patience_s: float) -> tuple[list[tuple[str, str]], list[Finding]]:
    facts, findings = await diagnose(ledger)
    if not facts or errors(findings):
        return facts, findings
    measured, slow = await doctor_ledger.measure(ledger, patience_s)
    return [*facts, *measured], [*findings, *slow]


async def diagnose(ledger: Ledger) -> tuple[list[tuple[str, str]], list[Finding]]:
    """What the store says of itself. It judges its own facts: one that begins with "error: " or "warning: " is one."""
    name = ledger.traits.name
    ask: Callable[[], Awaitable[list[tuple[str, str]]]] | None = getattr(ledger, "diagnose", None)
    unready = await _unready(ledger)
    if any(finding.what.startswith(LEDGER) for finding in unready):
        return [], unready
    try:
        facts = await ask() if ask is not None else []
    except (SemelError, OSError) as error:
        return [], unready or [_unusable(LEDGER, error)]
    if ask is None and not unready:
        return [], [Finding("ok", f"{name} has nothing to tell about itself", check="store")]
    missing = next((value for fact, value in facts if fact == "folder" and value.startswith("error: ")), "")
    if missing:  # the file cannot be opened either, for the same reason
        change = "make the folder, or write another path in ledger"
        return facts, [Finding("error", f"{name}: {missing.removeprefix('error: ')}", change, "store")]
    if (created := dict(facts).get("created")) is not None:
        return facts, [*unready, Finding("ok", f"{name}: {created}", check="store")]
    told = [(fact, value) for fact, value in grouped(facts) if not (unready and _is_the_same(fact, value, unready))]
    judged = (_judged(f"{name}, {fact}", value) for fact, value in told)
    found = unready + [finding for finding in judged if finding is not None]
    return facts, found or [Finding("ok", f"{name} can be opened and written", check="store")]


def _is_the_same(fact: str, value: str, unready: Sequence[Finding]) -> bool:
    """A store that is not ready says so itself, once more."""
    of_letters = any(LETTERS in finding.what for finding in unready)
    return "semel migrate" in value or (of_letters and fact.startswith("letters"))


async def _unready(ledger: Ledger) -> list[Finding]:
    """What has to be done to the ledger, and to the store of its letters, before they can be used."""
    letterbox: Any = getattr(ledger, "letterbox", None)
    elsewhere: list[str] = []
    try:
        elsewhere = await _steps(letterbox)
    except (SemelError, OSError) as error:
        return [_unusable(LETTERS, error)]
    of_letters = _to_migrate(f"{LETTERS}, {letterbox.traits.name},", elsewhere) if elsewhere else []
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


def grouped(facts: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Facts that several servers of one store tell in the same words are one fact of all of them."""
    servers: dict[tuple[str, str], list[str]] = {}
    for fact, value in facts:
        of_server = SERVER.fullmatch(fact)
        what, server = of_server.groups() if of_server else (fact, "")
        servers.setdefault((what, value), []).append(server)
    return [(what + _of(named), value) for (what, value), named in servers.items()]


def _of(servers: Sequence[str]) -> str:
    return f" of {len(servers)} servers" if len(servers) > 1 else f" {servers[0]}" if servers[0] else ""


def _judged(what: str, value: str) -> Finding | None:
    for level in BAD:
        if value.startswith(f"{level}: "):
            return Finding(level, f"{what}: {_readable(value.removeprefix(f'{level}: '))}", check="store")
    return None


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


def show(report: Report, console: Console) -> None:
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


def _facts(store: Sequence[tuple[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in grouped(store):
        table.add_row(Text(name), Text(_readable(value)))
    return table


def as_table(report: Report) -> Table:
    """The findings, each with what to change below it."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in report.findings:
        change = f"\n→ {finding.change}" if finding.change else ""
        table.add_row(MARKS[finding.level], escape(finding.what + change))
    return table


def conclusion(report: Report) -> str:
    wrong = len(errors(report.findings))
    warned = sum(finding.level == "warning" for finding in report.findings)
    if wrong:
        stops = any(finding.check != "reach" for finding in errors(report.findings))
        start = ": `semel run` does not start like this" if stops else "; `semel run` starts all the same"
        return f"[bold red]{_count(wrong, 'error')}[/], {_count(warned, 'warning')}{start}."
    return f"No errors, {_count(warned, 'warning')}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def as_json(report: Report) -> str:
    """The same for programs: {"ok", "guarantees", "identities", "store", "sources", "findings"}."""
    document = {
        "ok": report.ok,
        "guarantees": [{**msgspec.to_builtins(one), "line": str(one)} for one in report.guarantees],
        "identities": msgspec.to_builtins(list(report.identities)),
        "store": dict(report.store),
        "sources": {name: dict(facts) for name, facts in report.sources.items()},
        "findings": msgspec.to_builtins(report.findings),
    }
    return msgspec.json.encode(document).decode()


def refusal_as_json(error: SemelError) -> str:
    """What programs get when the settings cannot be used at all."""
    problems = error.problems if isinstance(error, SettingsError) else ()
    document = {"ok": False, "error": str(error), "problems": msgspec.to_builtins(list(problems))}
    return msgspec.json.encode(document).decode()
