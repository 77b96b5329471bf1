"""`semel notify resolve|cancel|resend|erase`: what people decide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from semel.cli.notifying.options import All, BusinessKey, Contains, Ids, Kind, Of, OfProvider, To, WouldBe, sought, tell
from semel.cli.options import By, Config, DryRun, Json, Ledger, Rate, Since, Tenant, Until, Why, Yes
from semel.values.sending import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.cli.notifying.judging import Ask, Choice, Listed
    from semel.values.outbox import Shown
    from semel.values.sending import Resolution

EXIT_CODES = """
Exit codes: 0, also where it stands so already, which is told. 1, something
failed or was refused. 2, the command cannot work as given, and nothing was
done. 130, it was interrupted: the same command goes on.
"""
RESOLVE = f"""Say what came of uncertain notifications: your word, with a reason.

--sent: the customer has it, so nothing is sent. --not-sent: the customer
does not have it, so it is sent. --give-up: let it be; nothing is sent, and
what the customer got stays unknown.

Name ids, or say --all, or filter. More than one is asked about, or --yes.
Whatever was interrupted goes on when the same command is given again.
{EXIT_CODES}"""
CANCEL = f"""Take back what has not been sent.

Name ids, or say --all, or filter, as for resolve. Where an attempt is in
doubt already, the notification is uncertain then: resolve it.
{EXIT_CODES}"""
RESEND = f"""Send notifications once more: their customers get them again.

Each is added as its next generation, and kept with the reason. The same
command again makes no third message. Refused while it is on its way or
uncertain (say what came of it first: resolve), and where it is erased or its
time is over. Its guard is not asked.

Name ids, or say --all, or filter: failed ones, if --state says nothing else.
A filter leaves alone what was given up in doubt, and what was sent again
already and taken by the provider. Each time it is asked about, or --yes.
Whatever was interrupted goes on when the same command is given again.
{EXIT_CODES}"""
ERASE = """Forget a customer: contents, evidence, and whom they were for.

What has not been sent is cancelled. What is leaving or uncertain stays until
it is over, which is told: erase again then. The same call as before is still
known and sends nothing, and guards hold.
"""


def register(notify: typer.Typer) -> None:
    notify.command("resolve", help=RESOLVE)(resolve)
    notify.command("cancel", help=CANCEL)(cancel)
    notify.command("resend", help=RESEND)(resend)
    notify.command("erase", help=ERASE)(erase)


def resolve(
    ids: Ids = None,
    sent: Annotated[bool, typer.Option("--sent", help="The customer has it.")] = False,
    not_sent: Annotated[bool, typer.Option("--not-sent", help="The customer does not have it: send it.")] = False,
    give_up: Annotated[bool, typer.Option("--give-up", help="Let it be; what the customer got stays unknown.")] = False,
    all_of_them: All = False,
    state: Annotated[
        State | None, typer.Option(help="Which of them; uncertain ones if nothing is said.", show_choices=False)
    ] = None,
    provider: OfProvider = "",
    recipient: To = "",
    kind: Kind = "",
    key: BusinessKey = "",
    tenant: Tenant = None,
    since: Since = "",
    until: Until = "",
    matching: Contains = "",
    reason: Why = "",
    by: By = "",
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    ledger: Ledger = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    from semel.cli.notifying import judging
    from semel.values.errors import ConfigError

    words: dict[Resolution, bool] = {"sent": sent, "not_sent": not_sent, "given_up": give_up}
    said: list[Resolution] = [word for word, is_said in words.items() if is_said]
    if len(said) != 1:
        raise ConfigError("what came of it? Say one of --sent, --not-sent, --give-up")
    ask = judging.Ask(
        says=said[0],
        ids=ids or [],
        every=all_of_them or state is not None,
        sought=sought(state or "uncertain", recipient, kind, key, provider, tenant, since, until),
        matching=matching,
        reason=reason.strip(),
        by=_decider(by),
        rate=rate,
        dry_run=dry_run,
    )
    _judge(ask, yes, ledger, config, as_json)


def cancel(
    ids: Ids = None,
    all_of_them: All = False,
    state: Annotated[State | None, typer.Option(help="pending, if it is said at all.", show_choices=False)] = None,
    provider: OfProvider = "",
    recipient: To = "",
    kind: Kind = "",
    key: BusinessKey = "",
    tenant: Tenant = None,
    since: Since = "",
    until: Until = "",
    matching: Contains = "",
    reason: Why = "",
    by: By = "",
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    ledger: Ledger = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    from semel.cli.notifying import judging

    ask = judging.Ask(
        says="cancelled",
        ids=ids or [],
        every=all_of_them or state is not None,
        sought=sought(state or "pending", recipient, kind, key, provider, tenant, since, until),
        matching=matching,
        reason=reason.strip(),
        by=_decider(by),
        rate=rate,
        dry_run=dry_run,
    )
    _judge(ask, yes, ledger, config, as_json)


def resend(
    ids: Ids = None,
    all_of_them: All = False,
    state: Annotated[
        State | None, typer.Option(help="Which of them; failed ones if nothing is said.", show_choices=False)
    ] = None,
    provider: OfProvider = "",
    recipient: To = "",
    kind: Kind = "",
    key: BusinessKey = "",
    tenant: Tenant = None,
    since: Since = "",
    until: Until = "",
    matching: Contains = "",
    reason: Why = "",
    by: By = "",
    rate: Rate = None,
    dry_run: WouldBe = False,
    yes: Yes = False,
    ledger: Ledger = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    from semel.cli.notifying import judging

    choice = judging.Choice(
        ids=ids or [],
        every=all_of_them or state is not None,
        sought=sought(state or "failed", recipient, kind, key, provider, tenant, since, until),
        matching=matching,
        reason=reason.strip(),
        by=_decider(by),
        rate=rate,
        dry_run=dry_run,
    )
    alone = len(choice.ids) == 1 and not choice.filtered and not dry_run
    (_repeat_one if alone else _repeat_many)(choice, yes, ledger, config, as_json)


def _repeat_one(choice: Choice, yes: bool, ledger: str | None, config: Path | None, as_json: bool) -> None:
    """It is told in other words than many are: which one it is, and what has become of it."""
    import asyncio

    from semel.cli.notifying import repeating, sending_view
    from semel.cli.operating.asking import confirmed
    from semel.cli.operating.deciding import check_words
    from semel.cli.operating.place import place

    check_words(choice.reason, choice.by, dry_run=False)
    where = place(ledger, config)
    one = asyncio.run(repeating.look(where, choice.ids[0]))
    if not yes and repeating.needs_asking(one) and not confirmed(repeating.question(one), "say --yes"):
        _nothing_done()
    resent = asyncio.run(repeating.repeat(where, one, choice.reason, choice.by))
    tell(as_json, sending_view.resent_members(resent), sending_view.resent_text(resent))
    raise typer.Exit(0 if resent.status in ("added", "known") else 1)


def _repeat_many(choice: Choice, yes: bool, ledger: str | None, config: Path | None, as_json: bool) -> None:
    from rich.console import Console

    from semel.cli.notifying import repeating, repeating_view
    from semel.cli.operating.asking import confirmed
    from semel.cli.operating.place import place

    shown = _lister() if choice.dry_run and not as_json else None
    report = repeating.run(place(ledger, config), choice, Console(stderr=True), None if yes else confirmed, shown)
    tell(as_json, repeating_view.as_json(report), repeating_view.as_tables(report))
    raise typer.Exit(0 if report.holds else 1)


# ----------------------------------------------------------------------------------------------------------- erasing


def erase(
    recipient: Annotated[str, typer.Option("--recipient", "--to", metavar="WHO", help="Which customer.")],
    tenant: Of = "",
    reason: Why = "",
    by: By = "",
    dry_run: WouldBe = False,
    yes: Yes = False,
    ledger: Ledger = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    import asyncio

    from semel.cli.notifying import erasing
    from semel.cli.operating.asking import confirmed
    from semel.cli.operating.deciding import check_words
    from semel.cli.operating.place import place

    why, decider = reason.strip(), _decider(by)
    check_words(why, decider, dry_run)
    where = place(ledger, config)
    report = asyncio.run(erasing.look(where, tenant, recipient))
    if report.erased and not dry_run:
        if not yes and not confirmed(erasing.question(report)):
            _nothing_done()
        report = asyncio.run(erasing.erase(where, tenant, recipient, why, decider))
    whose = erasing.customer(tenant, recipient)
    tell(as_json, erasing.as_json(report, dry_run), erasing.as_text(report, whose, dry_run))


def _judge(ask: Ask, yes: bool, ledger: str | None, config: Path | None, as_json: bool) -> None:
    from rich.console import Console

    from semel.cli.notifying import judging, judging_view
    from semel.cli.operating.asking import confirmed
    from semel.cli.operating.place import place

    shown = _lister() if ask.dry_run and not as_json else None
    report = judging.run(place(ledger, config), ask, Console(stderr=True), None if yes else confirmed, shown)
    tell(as_json, judging_view.as_json(report), judging_view.as_tables(report))
    raise typer.Exit(0 if report.holds else 1)


def _lister() -> Listed:
    from rich.console import Console

    from semel.cli.notifying import tables
    from semel.cli.operating import looking

    out = Console()

    def listed(found: Sequence[Shown]) -> None:
        out.print(tables.listing(found, looking.now_ms(), wide=False, reveal=False))

    return listed


def _decider(by: str) -> str:
    from semel.cli.operating.deciding import who

    return by.strip() or who()


def _nothing_done() -> NoReturn:
    from semel.values.errors import ConfigError

    raise ConfigError("nothing was done")
