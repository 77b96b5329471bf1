"""What `semel doctor` looks at and prints: what is promised, what was found, and what to change."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct

from semel.cli.operating.words import size
from semel.ports import Migrates
from semel.settings.checking import Finding, Level, RouteFacts, check, errors, store_facts
from semel.settings.problems import SettingsError
from semel.settings.schema import Settings
from semel.settings.urls import shown
from semel.values.effect import Guarantee
from semel.values.errors import SemelError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from semel.ports import Ledger

MIGRATE = "run `semel migrate`"
REACH_S = 10.0  # a destination that says nothing for so long is not there
BAD: tuple[Level, ...] = ("error", "warning")
MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "error": "[bold red]error[/]"}

Reach: TypeAlias = Callable[[], Awaitable[str | None]]
"""Tries to connect. None: fine; else the reason why not."""


class Report(Struct, frozen=True):
    """Everything that doctor has to say."""

    guarantees: list[Guarantee] = []
    findings: list[Finding] = []
    store: list[tuple[str, str]] = []  # what the ledger says of itself

    @property
    def ok(self) -> bool:
        return not errors(self.findings)


async def report(
    settings: Settings,
    routes: Sequence[RouteFacts],
    guarantees: Sequence[Guarantee],
    ledger: Ledger,
    reaches: Mapping[str, Reach],
) -> Report:
    """Look at everything. `reaches` has a way to try each destination, by its name or its URL.

    Nothing that is found raises: it becomes a finding."""
    findings = check(settings, routes, store_facts(ledger))
    store, of_store = await diagnose(ledger)
    reached = await asyncio.gather(*(_reached(_label(name, settings), reach) for name, reach in reaches.items()))
    return Report(list(guarantees), [*findings, *of_store, *reached], store)


# ---------------------------------------------------------------------------------------------------------- the store


async def diagnose(ledger: Ledger) -> tuple[list[tuple[str, str]], list[Finding]]:
    """What the store says of itself. It judges its own facts: one that begins with "error: " or "warning: " is one."""
    name = ledger.traits.name
    ask: Callable[[], Awaitable[list[tuple[str, str]]]] | None = getattr(ledger, "diagnose", None)
    try:
        pending = await ledger.pending() if isinstance(ledger, Migrates) else []
        facts = await ask() if ask is not None else []
    except (SemelError, OSError) as error:
        change = "see that it is there and can be written, and that it is a ledger of this Semel"
        return [], [Finding("error", f"the ledger cannot be used: {error}", change, "store")]
    if ask is None and not pending:
        return [], [Finding("ok", f"{name} has nothing to tell about itself", check="store")]
    missing = next((value for fact, value in facts if fact == "folder" and value.startswith("error: ")), "")
    if missing:  # the file cannot be opened either, for the same reason
        change = "make the folder, or write another path in ledger"
        return facts, [Finding("error", f"{name}: {missing.removeprefix('error: ')}", change, "store")]
    found = [finding for fact, value in facts if (finding := _judged(f"{name}, {fact}", value)) is not None]
    if pending:  # what the store says about that itself is the same once more
        unready = Finding("error", f"{name} is not ready: {'; '.join(pending)}", MIGRATE, "migrations")
        found = [unready, *[finding for finding in found if "semel migrate" not in finding.what]]
    return facts, found or [Finding("ok", f"{name} can be opened and written", check="store")]


def _judged(what: str, value: str) -> Finding | None:
    for level in BAD:
        if value.startswith(f"{level}: "):
            return Finding(level, f"{what}: {_readable(value.removeprefix(f'{level}: '))}", check="store")
    return None


def _readable(value: str) -> str:
    """A store tells exact bytes, which programs get as they are."""
    return re.sub(r"\b([0-9]{1,3}(?:,[0-9]{3})+) bytes\b", lambda found: size(int(found[1].replace(",", ""))), value)


# ---------------------------------------------------------------------------------------------------- the destinations


def _label(name: str, settings: Settings) -> str:
    """A destination for people. A URL is shortened: the rest of it may hold a key."""
    if name in settings.destinations:
        return f"destination {name} ({shown(settings.destinations[name].url)})"
    return shown(name)


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
    """Guarantees, the store's own facts, then the findings with what to change."""
    if report.guarantees:
        console.print("[bold]What is promised[/]")
        for promise in report.guarantees:
            console.print(str(promise), markup=False, highlight=False, soft_wrap=True)  # a line each, however long
        console.print()
    if report.store:
        console.print("[bold]The ledger[/]")
        console.print(_facts(report.store))
        console.print()
    console.print("[bold]What was looked at[/]", as_table(report), "", conclusion(report), sep="\n")


def _facts(store: Sequence[tuple[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in store:
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
    """The same for programs: {"ok", "guarantees", "store", "findings"}."""
    document = {
        "ok": report.ok,
        "guarantees": [{**msgspec.to_builtins(one), "line": str(one)} for one in report.guarantees],
        "store": dict(report.store),
        "findings": msgspec.to_builtins(report.findings),
    }
    return msgspec.json.encode(document).decode()


def refusal_as_json(error: SemelError) -> str:
    """What programs get when the settings cannot be used at all."""
    problems = error.problems if isinstance(error, SettingsError) else ()
    document = {"ok": False, "error": str(error), "problems": msgspec.to_builtins(list(problems))}
    return msgspec.json.encode(document).decode()
