"""`semel storm`: realistic traffic over HTTP, and what the service made of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


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
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to send: http://127.0.0.1:8080/events")],
    events: Annotated[int, typer.Option(min=1, max=10_000_000, help="Different events to send.")] = 10_000,
    duplicates: Annotated[
        float, typer.Option(min=0, max=10, help="Copies besides: 0.3 is 30 for every 100 events.")
    ] = 0.3,
    reorder: Annotated[bool, typer.Option(help="Neighbours swap places.")] = True,
    burst: Annotated[
        bool,
        typer.Option("--burst", help="Events come in bursts that share a millisecond; --rate keeps them together."),
    ] = False,
    shape: Annotated[ShapeName, typer.Option(help="How events are spelled.")] = ShapeName.eventbridge,
    connections: Annotated[int, typer.Option(min=1, max=1_000, help="Requests at a time.")] = 64,
    rate: Annotated[
        float | None, typer.Option(min=0.1, max=1_000_000, help="Deliveries a second; by default as fast as answered.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Makes the same bytes again. By default new events each time.")
    ] = None,
    scheme: Annotated[SchemeName | None, typer.Option(help="Sign the deliveries like this sender.")] = None,
    secret: Annotated[
        str,
        typer.Option(
            envvar="SEMEL_STORM_SECRET",
            help="What to sign with: env:NAME, file:path, or the secret itself (for basic, user:password).",
        ),
    ] = "",
    header: Annotated[str, typer.Option(help="Its name, where the scheme's usual one is not wanted.")] = "",
    timeout: Annotated[float, typer.Option(min=0.01, max=3600, help="Seconds to wait for an answer.")] = 10.0,
    attempts: Annotated[int, typer.Option(min=1, max=1_000, help="Tries of one delivery before it is given up.")] = 20,
    check: Annotated[
        str | None, typer.Option(metavar="URL", help="A counting sink (semel sink) that the service forwards to.")
    ] = None,
    settle: Annotated[
        float,
        typer.Option(min=0, max=86_400, help="Seconds without a new event at the sink, until what is missing is lost."),
    ] = 60.0,
    i_own_this_target: Annotated[
        bool, typer.Option("--i-own-this-target", help="Send to another machine than this one.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Send realistic Genesys traffic: duplicated, late, out of order, in bursts.

    Copies are redeliveries with the same bytes, producer's retries under a new
    EventBridge id, and late ones of both. What is answered with 408, 409, 425,
    429 or 5xx, or not at all, is sent again after Retry-After or a growing
    pause, so that a restart of the service is survived.

    Exit codes: 0, every delivery was taken, and with --check every event had
    its effect once. 1, a delivery was refused or never answered, or the sink
    found an effect lost or doubled. 2, the command cannot work as given.
    """
    from random import SystemRandom

    from rich.console import Console

    from semel.cli.load import storm_report, storm_run

    wish = storm_run.Wish(
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
    report = storm_run.run(wish, Console(stderr=True))
    if as_json:
        typer.echo(storm_report.as_json(report))
    else:
        console = Console()
        console.print(storm_report.as_table(report))
        console.print(storm_report.conclusion(report), markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if report.holds else 1)
