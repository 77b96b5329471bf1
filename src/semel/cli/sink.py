"""`semel sink`: counts what arrives, for `semel storm --check`."""

from __future__ import annotations

from typing import Annotated

import typer

from semel.cli.http_load import run


def register(app: typer.Typer) -> None:
    app.command()(sink)


def sink(
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 0,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    keyed: Annotated[
        bool,
        typer.Option(
            "--keyed/--plain",
            help="A repeated Idempotency-Key is answered from memory, without a second effect; or every POST counts.",
        ),
    ] = True,
    fail: Annotated[float, typer.Option(min=0, max=1, help="Share of requests answered with 500, no effect.")] = 0.0,
    drop: Annotated[
        float, typer.Option(min=0, max=1, help="Share of effects whose answer never leaves: the connection ends.")
    ] = 0.0,
    slow: Annotated[float, typer.Option(min=0, max=3600, help="Seconds that an answer takes.")] = 0.0,
    down_after: Annotated[
        int | None, typer.Option(min=0, help="After so many effects it hangs up on everyone, for a while, once.")
    ] = None,
    down_for: Annotated[float, typer.Option(min=0, help="Seconds that it is down.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of the faults: which requests they hit.")] = 0,
) -> None:
    """Run a destination that counts effects, to check a storm against.

    Forward a route to the URL that it prints, with the whole document as the
    body. An effect belongs to the event in the body: its topic, participant,
    session and time, or its id.

    GET /counts tells how many effects there were and which were doubled, GET
    /counts/ids has a line for each event, POST /reset forgets everything. Ends
    quietly on Ctrl-C.
    """
    try:
        from semel.cli import sink_server
    except ModuleNotFoundError as error:
        from semel.values.errors import ConfigError

        raise ConfigError(f"semel sink needs {error.name}: pip install 'semel[service]'") from None
    faults = sink_server.Faults(fail=fail, drop=drop, slow_s=slow, down_after=down_after, down_s=down_for)
    try:
        run(sink_server.serve(host, port, keyed, faults, seed))
    except OSError as error:
        typer.echo(f"semel: cannot listen on {host}:{port}: {error.strerror or error}", err=True)
        raise typer.Exit(2) from None
