"""`semel relay`: send what is in the outbox, as a process of its own. `semel run` does the same beside the webhooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.options import Json
from semel.values.log import log

if TYPE_CHECKING:
    from rich.console import Console

    from semel.core.relay import Relay
    from semel.service.assembly import BuiltService
    from semel.service.relays import OutboxRelay
    from semel.values.outbox import Backlog

TOLD = ("accepted", "refused", "limited", "unknown", "suppressed", "policy")  # columns; the rest is under "other"


def register(app: typer.Typer) -> None:
    app.command()(relay)


def relay(
    target: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", help="An app written in Python, whose ledger is meant.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="Settings; by default semel.toml, if it is here.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Send what is due now, say what came of it, and end.")] = False,
    as_json: Json = False,
) -> None:
    """Send notifications through the providers of the settings, each of them once.

    Any number of relays may run on one outbox, in any processes: `semel run` is one too, unless relay = false stands in
    its outbox table. SIGTERM ends it gently, also with --once: what is being sent is finished; a second one cuts that
    off. What is left behind is sent by the next relay, where nothing had left, and is uncertain where nobody knows.
    """
    import asyncio
    import os

    from semel.cli.app_importer import find_app
    from semel.service import logging
    from semel.service.assembly import build
    from semel.settings.loading import load
    from semel.values.errors import ConfigError

    if as_json and not once:
        raise ConfigError("--json tells what came of --once: say both, or neither")
    settings = load(config, os.environ)
    if not settings.providers:
        raise ConfigError("there are no [providers.NAME] in the settings, so nothing can be sent (docs/providers.md)")
    built = build(settings, find_app(target) if target is not None else None)
    logging.configure(settings.server.log, settings.server.log_level)  # what goes wrong is told without customers' data
    if once:
        counts, left, sign = asyncio.run(_once(built))
        served = {*built.providers, *(f"@{channel}" for channel, names in built.channels.items() if names)}
        _tell(counts, left, served, as_json)
        raise typer.Exit(128 + sign if sign else 0)
    if sign := asyncio.run(_until_told(built)):
        raise typer.Exit(128 + sign)


async def _once(built: BuiltService) -> tuple[Counter[tuple[str, str]], list[Backlog], int]:
    """What came of it, what is left, and the signal that ended it before, if one did."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from semel.core.resend import needed_outbox
    from semel.core.worker import PURGE_MAX

    counts: Counter[tuple[str, str]] = Counter()
    outbox = needed_outbox(built.app.ledger)
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.completed:,.0f} sent")
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=None)

        class Watch:
            def sent(self, provider: str, seconds: float) -> None:
                """The request ended. Whether the message was accepted is in `became`."""

            def recorded(self, provider: str, outcome: str) -> None:
                counts[provider, outcome] += 1
                if outcome == "accepted":
                    bar.advance(task)

        try:
            await _refuse_broken(built)
            relaying = _relaying(built)
            sign = await _until_done(relaying.relay(Watch()), built.settings.server.drain)
            if not sign:
                await relaying.purge(PURGE_MAX)  # where a timer is all there is, nobody else keeps to the retention
            return counts, await outbox.backlog(), sign
        finally:
            await built.close()
            await built.app.close()


async def _until_done(relay: Relay, drain_s: float) -> int:
    """What is due; or what is in hand, after a signal, which is told. A timer that is stopped leaves nothing in doubt
    that it could have finished."""
    import asyncio

    from semel.service.server import Ending

    ending = Ending(drain_s)
    carrying, told = asyncio.create_task(relay.run_once()), asyncio.create_task(ending.told())
    await asyncio.wait((carrying, told), return_when=asyncio.FIRST_COMPLETED)
    if told.done():
        await ending.end(relay.stop)
    told.cancel()
    if ending.is_at_once:
        carrying.cancel()
    await asyncio.wait([carrying])
    if not carrying.cancelled():
        carrying.result()
    return ending.number


async def _until_told(built: BuiltService) -> int:
    """Returns the signal, where a second one has cut off what was under way."""

    from semel.service.server import Ending

    try:
        await _refuse_broken(built)
        relaying, ending = _relaying(built), Ending(built.settings.server.drain)
        relaying.start()
        log.info("relay_started", providers=", ".join(built.providers))
        await ending.told()
        await ending.end(relaying.stop)
        return ending.number if ending.is_at_once else 0
    finally:
        await built.close()
        await built.app.close()


def _relaying(built: BuiltService) -> OutboxRelay:
    from msgspec.structs import replace

    from semel.core.resend import needed_outbox
    from semel.service.relays import OutboxRelay

    said = replace(built.settings.outbox, relay=True)  # that is what this command is for
    return OutboxRelay(needed_outbox(built.app.ledger), built.providers, built.channels, said)


async def _refuse_broken(built: BuiltService) -> None:
    """Times that do not fit, and a store that a person has to make ready first, are told before anything begins."""
    from semel.cli.doctor import diagnose
    from semel.settings.checks import provider_findings, refuse

    refuse(provider_findings(built.settings))
    _, findings = await diagnose(built.app.ledger)
    refuse(findings)


# ------------------------------------------------------------------------------------------------------------ telling


def _tell(counts: Counter[tuple[str, str]], left: list[Backlog], served: Set[str], as_json: bool) -> None:
    """`served`: the providers and channels of these settings."""
    import json

    from rich.console import Console

    if as_json:
        done = [
            {"provider": name, "outcome": outcome, "count": many} for (name, outcome), many in sorted(counts.items())
        ]
        waits = [{"provider": one.provider, "state": one.state, "count": one.count} for one in left]
        typer.echo(json.dumps({"sent": done, "left": waits}))
        return
    console = Console()
    if counts:
        _table(counts, console)
    else:
        typer.echo("Nothing was due.")
    if any(outcome == "refused" for _, outcome in counts):
        typer.echo("Why it was refused, and what is tried again: `semel notify list`")
    for one in left:
        typer.echo(f"{one.count:,} {_where(one, served)}")


def _where(left: Backlog, served: Set[str]) -> str:
    name = left.provider
    at, is_no = (f"channel {name[1:]}", "no provider here sends") if name[:1] == "@" else (name, "is no provider here")
    nobody = "" if name in served else f", which {is_no}"
    match left.state:
        case "uncertain":
            return f"uncertain at {at}{nobody}: `semel notify list --state uncertain`"
        case "sending":
            return f"in the hands of another relay, at {at}"
        case _:
            return f"waiting for {at}{nobody}: add it, or run what has it" if nobody else f"not due yet at {at}"


def _table(counts: Counter[tuple[str, str]], console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("provider")
    shown = [outcome for outcome in TOLD if any(word == outcome for _, word in counts)]
    other = any(word not in TOLD for _, word in counts)
    for column in (*shown, *(("other",) if other else ())):
        table.add_column(column, justify="right")
    for name in sorted({name for name, _ in counts}):
        row = [f"{counts[name, outcome]:,}" for outcome in shown]
        rest = sum(many for (of, word), many in counts.items() if of == name and word not in TOLD)
        table.add_row(name, *row, *((f"{rest:,}",) if other else ()))
    console.print(table)
