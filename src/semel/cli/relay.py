"""`semel relay`: sends the notifications in the outbox, in a separate process. `semel run` sends them too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.options import Json
from semel.values.log import log

if TYPE_CHECKING:
    from rich.table import Table

    from semel.core.relay import Relay
    from semel.service.assembly import BuiltService
    from semel.service.relays import OutboxRelay
    from semel.values.outbox import Backlog

COLUMNS = ("accepted", "refused", "limited", "unknown", "suppressed", "policy")  # other outcomes are in "other"


def register(app: typer.Typer) -> None:
    app.command()(relay)


def relay(
    target: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", help="An app written in Python, whose ledger is used.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="Settings file; by default semel.toml in this folder.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Send what is due now, print the results, and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Send notifications through the providers of the settings, each of them once.

    Any number of relays can share an outbox. `semel run` is a relay too, unless its outbox table has relay = false.
    After SIGTERM, sends in progress are finished; a second signal interrupts them. The next relay sends the remaining
    notifications. An interrupted send is uncertain if the message may have left.
    """
    import asyncio
    import os

    from semel.cli.app_importer import find_app
    from semel.service import logging
    from semel.service.assembly import build
    from semel.settings.loading import load
    from semel.values.errors import ConfigError

    if as_json and not once:
        raise ConfigError("--json prints the results of --once: pass both, or neither")
    settings = load(config, os.environ)
    if not settings.providers:
        raise ConfigError("the settings have no [providers.NAME], so nothing can be sent (docs/providers.md)")
    built = build(settings, find_app(target) if target is not None else None)
    logging.configure(settings.server.log, settings.server.log_level)
    if once:
        counts, backlog, signal = asyncio.run(_run_once(built))
        served = {*built.providers, *(f"@{channel}" for channel, names in built.channels.items() if names)}
        _report(counts, backlog, served, as_json)
        raise typer.Exit(128 + signal if signal else 0)
    if signal := asyncio.run(_run(built)):
        raise typer.Exit(128 + signal)


async def _run_once(built: BuiltService) -> tuple[Counter[tuple[str, str]], list[Backlog], int]:
    """Send what is due. Returns the outcomes, the remaining backlog, and the signal that stopped it, or 0."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from semel.core.resend import needed_outbox
    from semel.core.worker import PURGE_MAX

    counts: Counter[tuple[str, str]] = Counter()
    outbox = needed_outbox(built.app.ledger)
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.completed:,.0f} sent")
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=None)

        class Watch:
            def sent(self, provider: str, seconds: float) -> None:
                """Only `recorded` has the outcome."""

            def recorded(self, provider: str, outcome: str) -> None:
                counts[provider, outcome] += 1
                if outcome == "accepted":
                    progress.advance(task)

        try:
            await _refuse_broken(built)
            outbox_relay = _outbox_relay(built)
            signal = await _until_done(outbox_relay.relay(Watch()), built.settings.server.drain)
            if not signal:
                await outbox_relay.purge(PURGE_MAX)  # a timer may be the only relay
            return counts, await outbox.backlog(), signal
        finally:
            await built.close()
            await built.app.close()


async def _until_done(relay: Relay, drain_s: float) -> int:
    """Run until nothing is due, or until a signal; then finish the sends in progress. Returns the signal, or 0."""
    import asyncio

    from semel.service.server import Ending

    ending = Ending(drain_s)
    sending, signalled = asyncio.create_task(relay.run_once()), asyncio.create_task(ending.told())
    await asyncio.wait((sending, signalled), return_when=asyncio.FIRST_COMPLETED)
    if signalled.done():
        await ending.end(relay.stop)
    signalled.cancel()
    if ending.is_at_once:
        sending.cancel()
    await asyncio.wait([sending])
    if not sending.cancelled():
        sending.result()
    return ending.number


async def _run(built: BuiltService) -> int:
    """Run until a signal. Returns the signal if a second one interrupted sends in progress, or 0."""
    from semel.service.server import Ending

    try:
        await _refuse_broken(built)
        outbox_relay, ending = _outbox_relay(built), Ending(built.settings.server.drain)
        outbox_relay.start()
        log.info("relay_started", providers=", ".join(built.providers))
        await ending.told()
        await ending.end(outbox_relay.stop)
        return ending.number if ending.is_at_once else 0
    finally:
        await built.close()
        await built.app.close()


def _outbox_relay(built: BuiltService) -> OutboxRelay:
    from msgspec.structs import replace

    from semel.core.resend import needed_outbox
    from semel.service.relays import OutboxRelay

    settings = replace(built.settings.outbox, relay=True)  # relay = false applies to `semel run` only
    return OutboxRelay(needed_outbox(built.app.ledger), built.providers, built.channels, settings)


async def _refuse_broken(built: BuiltService) -> None:
    """Refuse to start with timeouts that do not fit together, or with a store that is not ready."""
    from semel.cli.doctor import diagnose
    from semel.settings.checks import provider_findings, refuse

    refuse(provider_findings(built.settings))
    _, findings = await diagnose(built.app.ledger)
    refuse(findings)


# ------------------------------------------------------------------------------------------------------------- output


def _report(counts: Counter[tuple[str, str]], backlog: list[Backlog], served: Set[str], as_json: bool) -> None:
    """`served`: the providers and channels of these settings."""
    import json

    from rich.console import Console

    if as_json:
        sent = [{"provider": name, "outcome": outcome, "count": n} for (name, outcome), n in sorted(counts.items())]
        left = [{"provider": row.provider, "state": row.state, "count": row.count} for row in backlog]
        typer.echo(json.dumps({"sent": sent, "left": left}))
        return
    if counts:
        Console().print(_table(counts))
    else:
        typer.echo("Nothing was due.")
    if any(outcome == "refused" for _, outcome in counts):
        typer.echo("`semel notify list` shows the reasons of refusals, and what is retried.")
    for row in backlog:
        typer.echo(f"{row.count:,} {_remaining(row, served)}")


def _remaining(row: Backlog, served: Set[str]) -> str:
    name = row.provider
    if name[:1] == "@":
        at, unserved = f"channel {name[1:]}", ", for which these settings have no provider"
    else:
        at, unserved = name, ", which is not in these settings"
    if name in served:
        unserved = ""
    if row.state == "uncertain":
        return f"uncertain at {at}{unserved}: `semel notify list --state uncertain`"
    if row.state == "sending":
        return f"being sent by another relay, at {at}"
    return f"waiting for {at}{unserved}: add it, or run a relay that has it" if unserved else f"not due yet at {at}"


def _table(counts: Counter[tuple[str, str]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("provider")
    columns = [column for column in COLUMNS if any(outcome == column for _, outcome in counts)]
    others = any(outcome not in COLUMNS for _, outcome in counts)
    for column in (*columns, *(["other"] if others else [])):
        table.add_column(column, justify="right")
    for provider in sorted({name for name, _ in counts}):
        row = [f"{counts[provider, column]:,}" for column in columns]
        if others:
            rest = sum(n for (name, outcome), n in counts.items() if name == provider and outcome not in COLUMNS)
            row.append(f"{rest:,}")
        table.add_row(provider, *row)
    return table
