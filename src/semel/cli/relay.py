"""`semel relay`: send what is in the outbox, as a process of its own. `semel run` does the same beside the webhooks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.options import Json

if TYPE_CHECKING:
    from rich.console import Console

    from semel.service.building import Built
    from semel.service.relaying import Relaying
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

    Any number of relays may run on one outbox, in any processes: `semel run` is one too, unless [outbox] says
    relay = false. SIGTERM ends it gently: what is being sent is finished. What a relay leaves behind when it is killed
    is sent by the next one, where nothing had left, and is called uncertain where nobody knows.
    """
    import asyncio
    import os

    from semel.cli.finding import find_app
    from semel.service.building import build
    from semel.settings.loading import load
    from semel.values.errors import ConfigError

    if as_json and not once:
        raise ConfigError("--json tells what came of --once: say both, or neither")
    settings = load(config, os.environ)
    if not settings.providers:
        raise ConfigError("there are no [providers.NAME] in the settings, so nothing can be sent (docs/providers.md)")
    built = build(settings, find_app(target) if target is not None else None)
    if once:
        counts, left = asyncio.run(_once(built))
        _tell(counts, left, as_json)
    else:
        asyncio.run(_until_told(built))


async def _once(built: Built) -> tuple[Counter[tuple[str, str]], list[Backlog]]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from semel.core.outboxes import needed_outbox

    counts: Counter[tuple[str, str]] = Counter()
    outbox = needed_outbox(built.app.ledger)
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.completed:,.0f} sent")
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=None)

        class Watch:
            def sent(self, provider: str, seconds: float) -> None:
                bar.advance(task)

            def became(self, provider: str, outcome: str) -> None:
                counts[provider, outcome] += 1

        try:
            await _refuse_broken(built)
            await _relaying(built).relay(Watch()).run_once()
            return counts, await outbox.backlog()
        finally:
            await built.close()
            await built.app.close()


async def _until_told(built: Built) -> None:
    import asyncio
    import logging
    import signal

    from semel.service import logs

    server = built.settings.server
    logs.configure(server.log, server.log_level)
    try:
        await _refuse_broken(built)
        relaying = _relaying(built)
        told = asyncio.Event()
        for sign in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(sign, told.set)
        relaying.start()
        names = ", ".join(built.providers)
        logging.getLogger("semel").info("relaying by %s", names)
        await told.wait()
        logging.getLogger("semel").info("draining: what is being sent has %g s", server.drain)
        await relaying.stop(server.drain)
    finally:
        await built.close()
        await built.app.close()


def _relaying(built: Built) -> Relaying:
    from msgspec.structs import replace

    from semel.core.outboxes import needed_outbox
    from semel.service.relaying import Relaying

    said = replace(built.settings.outbox, relay=True)  # that is what this command is for
    return Relaying(needed_outbox(built.app.ledger), built.providers, built.channels, said)


async def _refuse_broken(built: Built) -> None:
    """A store that a person has to make ready first says so before anything begins."""
    from semel.cli.doctor_view import diagnose
    from semel.settings.checking import refuse

    _, findings = await diagnose(built.app.ledger)
    refuse(findings)


# ------------------------------------------------------------------------------------------------------------ telling


def _tell(counts: Counter[tuple[str, str]], left: list[Backlog], as_json: bool) -> None:
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
    for one in left:
        typer.echo(f"{one.count:,} {_where(one)}")


def _where(left: Backlog) -> str:
    at = f"of channel {left.provider[1:]}, which no provider here sends" if left.provider[:1] == "@" else left.provider
    match left.state:
        case "uncertain":
            return f"uncertain at {at}: `semel notify list --state uncertain`"
        case "sending":
            return f"in the hands of another relay, at {at}"
        case _:
            return f"not due yet {at}" if left.provider[:1] == "@" else f"not due yet at {at}"


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
