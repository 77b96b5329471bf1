"""`semel`: what each command does is imported when it is called, so that `semel --help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semel.cli import (
    dead,
    doctor,
    events,
    guarantees,
    init,
    migrate,
    notify,
    process,
    purge,
    relay,
    run,
    service_bench,
    sink,
    status,
    storm,
    token,
)

app = typer.Typer(
    help="Run your handler's effect once for every contact-centre event.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


def main() -> None:
    """The console entry."""
    from semel.values.errors import SemelError

    try:
        app()
    except SemelError as error:
        typer.echo(f"semel: {error}", err=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        typer.echo("semel: interrupted", err=True)
        raise SystemExit(130) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        from semel import __version__

        typer.echo(f"semel {__version__}")
        raise typer.Exit


@app.callback()
def semel(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    events: Annotated[int, typer.Option(min=10, max=1_000_000, help="Different events to send.")] = 5_000,
    duplicates: Annotated[
        float, typer.Option(min=0, max=10, help="Copies besides: 0.3 is 30 for every 100 events.")
    ] = 0.3,
    kills: Annotated[int, typer.Option(min=0, max=100, help="How often a worker process is killed.")] = 6,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Worker processes that share the ledger.")] = 2,
    seed: Annotated[int, typer.Option(help="Makes the same storm again. The kills fall where they fall.")] = 1,
    db: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Keep the ledger in this new file, to look at afterwards.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Send a storm with duplicates through workers that are killed, and count what came of it.

    Two handlers get every event: one writes a ticket in the ledger's transaction (exactly once), the other appends to a
    file (at least once). Ends with exit code 1 if a ticket is missing or doubled.
    """
    from rich.console import Console

    from semel.cli import demo as show

    report = show.run(events, duplicates, kills, workers, seed, db, Console(stderr=True))
    if as_json:
        typer.echo(show.as_json(report))
    else:
        Console().print(show.as_table(report), show.conclusion(report), sep="\n")
    raise typer.Exit(0 if report.holds else 1)


@app.command()
def bench(
    rounds: Annotated[
        int, typer.Option(min=1, max=100, help="Every scenario is measured once in each; medians are shown.")
    ] = 5,
    keys: Annotated[
        int,
        typer.Option(min=0, max=100_000_000, help="Settled keys in the large ledger; about 300 bytes of disk each."),
    ] = 200_000,
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the work in each round: less certain.")] = False,
    peers: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Python file with the programs to compare with: bench/peers.py."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Where the databases go; by default the system's temporary one."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure Semel on this machine, against bare programs that do the least by hand.

    Targets are ratios wherever a machine's speed would decide otherwise; a missed one says "below" and is no error.
    Name a --folder on a real disk if temporary files are in memory here: commits would cost nothing there.
    """
    from rich.console import Console

    from semel.cli import bench as measuring

    report = measuring.run(rounds, keys, quick, peers, folder, Console(stderr=True))
    if as_json:
        typer.echo(measuring.as_json(report))
        return
    Console().print(measuring.as_table(report))
    typer.echo(measuring.legend(report))


COMMANDS = (
    run,
    process,
    relay,
    init,
    doctor,
    guarantees,
    migrate,
    token,
    status,
    events,
    dead,
    notify,
    purge,
    storm,
    sink,
)

for command in (*COMMANDS, service_bench):
    command.register(app)


if __name__ == "__main__":
    main()
