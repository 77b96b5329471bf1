"""`semel notify`: adds and looks up messages to customers, and takes decisions of operators about them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace
from rich.console import RenderableType

from semel.cli import find, notification_add, notification_decisions, notification_tables, tables
from semel.cli.bulk_decision import check_reason, confirmed, operator, print_report, run_at_terminal
from semel.cli.ledger_place import place
from semel.cli.notification_decisions import OutboxDecisionRequest
from semel.cli.options import By, Config, DryRun, Json, LedgerUrl, Limit, Rate, Since, Tenant, Until, Why, Wide, Yes
from semel.values.delivery_state import ProviderAccess, Resolution, State
from semel.values.errors import ConfigError
from semel.values.notification import PRIORITY_MAX, Channel, Notification, Policy, matching_note
from semel.values.outbox import NotificationQuery

MaybeId = Annotated[str, typer.Argument(metavar="[ID]", help="The id, or its beginning; or pass --key.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids, or the beginnings of ids.")]
Reveal = Annotated[bool, typer.Option("--reveal", help="Show recipients and contents in full: they are customer data.")]
InState = Annotated[State | None, typer.Option("--state", help="Only in this state.", show_choices=True)]
To = Annotated[str, typer.Option("--recipient", "--to", metavar="WHO", help="Only to this number, address or id.")]
Kind = Annotated[str, typer.Option(help="Only of this kind.")]
BusinessKey = Annotated[str, typer.Option("--key", help="Only of this business key.")]
OfProvider = Annotated[str, typer.Option("--provider", metavar="NAME", help="Only at this provider.")]
Of = Annotated[str, typer.Option("--tenant", help="The tenant, if you use tenants.")]
All = Annotated[bool, typer.Option("--all", help="All that match the filters.")]
Contains = Annotated[
    str, typer.Option("--matching", metavar="TEXT", help="Only notifications whose reason contains TEXT.")
]


def query(
    state: str, recipient: str, kind: str, key: str, provider: str, tenant: str | None, since: str, until: str
) -> NotificationQuery:
    """Recipients and keys are searched within one tenant; without --tenant, among notifications without a tenant."""
    since_ms, until_ms = find.times(since, until)
    return NotificationQuery(
        tenant="" if tenant is None and (recipient or key) else tenant,
        state=state,
        recipient=recipient,
        kind=kind,
        key=key,
        provider=provider,
        since_ms=since_ms,
        until_ms=until_ms,
    )


def write(as_json: bool, members: Mapping[str, Any], text: RenderableType) -> None:
    if as_json:
        typer.echo(tables.as_json(members))
    else:
        tables.console(wide=False).print(text)


SEND = """Put a message into the outbox. A relay sends it.

The same call again is the same notification, which the answer states. Its
identity is tenant, key, kind, recipient and channel. So --key names the fact
that the message is about ("order-4711-shipped"); never generate a key per call.
The same notification with another content is a conflict: the first one is kept.

Exit codes: 0, added or known. 1, conflict. 2, the command cannot work with
these options, and nothing was done.
"""
EXIT_CODES = """
Exit codes: 0, also where the state is so already, which is reported. 1,
something failed or was refused. 2, the command cannot work with these options,
and nothing was done. 130, it was interrupted: run the same command again.
"""
RESOLVE = f"""Resolve uncertain notifications by your decision, with a reason.

--sent: the customer has it, so nothing is sent. --not-sent: the customer
does not have it, so it is sent. --give-up: nothing is sent, and whether the
customer has it stays unknown.

Pass ids, or --all, or filters. More than one needs a confirmation, or --yes.
Run an interrupted command again to continue it.
{EXIT_CODES}"""
CANCEL = f"""Cancel notifications that have not been sent.

Pass ids, or --all, or filters, as for resolve. If an attempt is in doubt
already, the notification becomes uncertain: resolve it.
{EXIT_CODES}"""
RESEND = f"""Send notifications once more: their customers get them again.

Each is added as its next generation, and stored with the reason. The same
command again makes no third message. Refused while the notification is being
sent or uncertain (resolve it first), and where it is erased or its time is
over. Its guard is not checked.

Pass ids, or --all, or filters; without --state, failed ones. A filter leaves
out messages that were given up in doubt, and messages that were resent
already and accepted by the provider. Always needs a confirmation, or --yes.
Run an interrupted command again to continue it.
{EXIT_CODES}"""
ERASE = """Erase a customer's data: contents, evidence and recipients.

Unsent notifications are cancelled. Notifications that are being sent or
uncertain stay until they are finished, which is reported: erase again then.
The same call as before is still known and sends nothing, and guards hold.
"""


def register(app: typer.Typer) -> None:
    notify = typer.Typer(
        help="Send and look up messages to customers, and decide about uncertain ones.", no_args_is_help=True
    )
    notify.command("send", help=SEND)(send)
    notify.command("list")(list_notifications)
    notify.command("show")(show)
    notify.command("status")(status)
    notify.command("resolve", help=RESOLVE)(resolve)
    notify.command("cancel", help=CANCEL)(cancel)
    notify.command("resend", help=RESEND)(resend)
    notify.command("erase", help=ERASE)(erase)
    app.add_typer(notify, name="notify")


# ------------------------------------------------------------------------------------------------------------ adding


def send(
    key: Annotated[str, typer.Option("--key", help="The fact that the message is about: order-4711-shipped.")],
    kind: Annotated[str, typer.Option(help="The kind of message: shipping, reminder.")],
    to: Annotated[str, typer.Option("--to", "--recipient", metavar="WHO", help="A number, an address, an id.")],
    channel: Annotated[Channel, typer.Option(help="The channel.")],
    body: Annotated[str | None, typer.Option(help="The text; for the channel event a JSON document.")] = None,
    body_file: Annotated[Path | None, typer.Option(help="A file with the body; - for standard input.")] = None,
    subject: Annotated[str, typer.Option(help="Subject of an email.")] = "",
    sender: Annotated[str, typer.Option(help="The sender; by default as the provider is configured.")] = "",
    template: Annotated[str, typer.Option(help="The provider's template id.")] = "",
    data: Annotated[str, typer.Option(metavar="JSON", help="Values of the template.")] = "",
    provider: Annotated[
        str, typer.Option(metavar="NAME", help="The provider; by default the first of the channel.")
    ] = "",
    priority: Annotated[int, typer.Option(min=0, max=PRIORITY_MAX, help="0 goes first, 9 last.")] = 5,
    order: Annotated[str, typer.Option(help="Messages with the same order key are sent one after the other.")] = "",
    not_after: Annotated[
        str, typer.Option(metavar="WHEN", help="It expires if unsent by then: 2026-03-19T22:00 (UTC), or 2h from now.")
    ] = "",
    guard: Annotated[
        str, typer.Option(metavar="SPAN", help="At most one of its kind to this recipient in: 90s, 24h, 7d.")
    ] = "",
    guard_key: Annotated[str, typer.Option(help="Guard this instead of recipient and kind.")] = "",
    policy: Annotated[Policy | None, typer.Option(help="The final step if it stays uncertain.")] = None,
    tenant: Of = "",
    dry_run: DryRun = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    notification = Notification(
        key=key,
        kind=kind,
        recipient=to,
        channel=channel,
        body=notification_add.body_of(body, body_file, channel),
        subject=subject,
        sender=sender,
        template=template,
        data=notification_add.data_of(data),
        tenant=tenant,
        not_after=notification_add.not_after_of(not_after),
        priority=priority,
        order=order,
        guard=notification_add.guard_of(guard, guard_key),
        provider=provider,
        policy=policy,
    )
    access = notification_add.access_by_settings(config) if ledger is None else ProviderAccess()
    if reason := access.refusal(notification):
        raise ConfigError(f"{reason}. Nothing was added")
    create = ledger is None and notification_add.has_settings(config) and not dry_run
    result = asyncio.run(notification_add.add(place(ledger, config), notification, dry_run, create=create))
    if ledger is None and (why := notification_add.missing_provider(access, provider, channel)):
        typer.echo(f"semel: {why}", err=True)
    write(as_json, notification_tables.add_members(result), notification_tables.add_text(result, notification))
    raise typer.Exit(1 if result.status == "conflict" else 0)


# ----------------------------------------------------------------------------------------------------------- looking


def list_notifications(
    state: InState = None,
    recipient: To = "",
    kind: Kind = "",
    key: BusinessKey = "",
    provider: OfProvider = "",
    possible_duplicates: Annotated[
        bool, typer.Option("--possible-duplicates", help="Only those that may have been sent twice.")
    ] = False,
    tenant: Tenant = None,
    since: Since = "",
    until: Until = "",
    limit: Limit = 100,
    wide: Wide = False,
    reveal: Reveal = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List notifications, the newest first.

    Recipients are masked and contents are not shown, unless --reveal is passed.
    """
    wanted = replace(
        query(state or "", recipient, kind, key, provider, tenant, since, until),
        possible_duplicates=possible_duplicates,
        limit=limit,
    )
    where = place(ledger, config)
    if as_json:
        members = asyncio.run(
            find.list_notifications(where, wanted, lambda view: notification_tables.members(view, reveal))
        )
        typer.echo(tables.as_json(members))
        return
    keep = (lambda view: view) if wide else (lambda view: find.without_content(view, reveal))
    found = asyncio.run(find.list_notifications(where, wanted, keep))
    if found:
        tables.console(wide).print(notification_tables.listing(found, find.now_ms(), wide, reveal))
        for line in (
            f"The newest {limit:,}; --limit shows more." if len(found) == limit else "",
            notification_tables.hint(found),
        ):
            if line:
                typer.echo(line)
    elif replace(wanted, limit=100) == NotificationQuery():
        typer.echo("No notifications yet.")
    else:
        unnamed = tenant is None and wanted.tenant == ""
        typer.echo(f"No notifications match{', among those of no tenant: --tenant names one' if unnamed else ''}.")


def show(
    id: MaybeId = "",
    key: Annotated[str, typer.Option("--key", help="By its business key instead of its id.")] = "",
    tenant: Of = "",
    reveal: Reveal = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show one notification: its state, each attempt with its evidence, decisions, and the next step.

    The recipient is masked and the content is not shown, unless --reveal is passed.
    """
    if bool(id) == bool(key):
        raise ConfigError("which one? Pass either its id or its --key; `semel notify list` lists them")
    view, generations = asyncio.run(find.notification_with_generations(place(ledger, config), id, key, tenant))
    now_ms = find.now_ms()
    if as_json:
        typer.echo(tables.as_json(notification_tables.whole(view, generations, now_ms, reveal)))
    else:
        tables.console(wide=False).print(notification_tables.portrait(view, generations, now_ms, reveal))


def status(
    recipient: Annotated[str, typer.Option("--recipient", "--to", metavar="WHO", help="The customer.")] = "",
    kind: Annotated[str, typer.Option(help="The kind of message; all kinds by default.")] = "",
    key: Annotated[str, typer.Option("--key", help="The business key, instead of a customer.")] = "",
    tenant: Of = "",
    ledger: LedgerUrl = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Did this customer get the message?

    One answer: never, not_sent, pending, sent, unknown or suppressed, with its evidence.
    If several messages match, a sent one decides the answer, then an unknown one, then a pending one.
    """
    if bool(recipient) == bool(key) or (key and kind):
        raise ConfigError("which message? Pass --recipient, with or without --kind, or --key alone")
    found, view = asyncio.run(find.message_status(place(ledger, config), tenant, recipient, kind, key))
    notification = None if view is None else view.notification
    note = matching_note(recipient) if recipient else ""
    if as_json:
        typer.echo(tables.as_json(notification_tables.status_members(found, notification, note)))
    else:
        tables.console(wide=False).print(notification_tables.answer(found, find.now_ms(), notification, note))


# --------------------------------------------------------------------------------------------------------- deciding


def resolve(
    ids: Ids = None,
    sent: Annotated[bool, typer.Option("--sent", help="The customer has it.")] = False,
    not_sent: Annotated[bool, typer.Option("--not-sent", help="The customer does not have it: send it.")] = False,
    give_up: Annotated[bool, typer.Option("--give-up", help="Send nothing; the result stays unknown.")] = False,
    all_of_them: All = False,
    state: Annotated[
        State | None, typer.Option(help="Notifications in this state; uncertain by default.", show_choices=False)
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
    ledger: LedgerUrl = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    options: dict[Resolution, bool] = {"sent": sent, "not_sent": not_sent, "given_up": give_up}
    resolutions: list[Resolution] = [resolution for resolution, passed in options.items() if passed]
    if len(resolutions) != 1:
        raise ConfigError("which result? Pass one of --sent, --not-sent, --give-up")
    request = OutboxDecisionRequest(
        decision=resolutions[0],
        names=ids or [],
        every=all_of_them or state is not None,
        query=query(state or "uncertain", recipient, kind, key, provider, tenant, since, until),
        matching=matching,
        reason=reason.strip(),
        by=by.strip() or operator(),
        rate=rate,
        dry_run=dry_run,
    )
    _decide(request, yes, ledger, config, as_json)


def cancel(
    ids: Ids = None,
    all_of_them: All = False,
    state: Annotated[
        State | None, typer.Option(help="Only pending is possible, which is the default.", show_choices=False)
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
    ledger: LedgerUrl = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    request = OutboxDecisionRequest(
        decision="cancelled",
        names=ids or [],
        every=all_of_them or state is not None,
        query=query(state or "pending", recipient, kind, key, provider, tenant, since, until),
        matching=matching,
        reason=reason.strip(),
        by=by.strip() or operator(),
        rate=rate,
        dry_run=dry_run,
    )
    _decide(request, yes, ledger, config, as_json)


def resend(
    ids: Ids = None,
    all_of_them: All = False,
    state: Annotated[
        State | None, typer.Option(help="Notifications in this state; failed by default.", show_choices=False)
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
    ledger: LedgerUrl = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    request = OutboxDecisionRequest(
        decision="resent",
        names=ids or [],
        every=all_of_them or state is not None,
        query=query(state or "failed", recipient, kind, key, provider, tenant, since, until),
        matching=matching,
        reason=reason.strip(),
        by=by.strip() or operator(),
        rate=rate,
        dry_run=dry_run,
    )
    _decide(request, yes, ledger, config, as_json)


def _decide(request: OutboxDecisionRequest, yes: bool, ledger: str | None, config: Path | None, as_json: bool) -> None:
    decision = notification_decisions.decision_for(place(ledger, config), request)
    run_at_terminal(decision, yes, as_json)
    print_report(decision, as_json)
    raise typer.Exit(0 if decision.report.succeeded else 1)


# ----------------------------------------------------------------------------------------------------------- erasing


def erase(
    recipient: Annotated[str, typer.Option("--recipient", "--to", metavar="WHO", help="The customer.")],
    tenant: Of = "",
    reason: Why = "",
    by: By = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    why, decider = reason.strip(), by.strip() or operator()
    check_reason(why, decider, dry_run)
    where = place(ledger, config)
    report = asyncio.run(notification_decisions.preview_erasure(where, tenant, recipient))
    if report.erased and not dry_run:
        if not yes and not confirmed(notification_decisions.erasure_question(report)):
            raise ConfigError("nothing was done")
        report = asyncio.run(notification_decisions.erase(where, tenant, recipient, why, decider))
    whose = notification_decisions.customer(tenant, recipient)
    write(
        as_json,
        notification_decisions.erasure_as_json(report, dry_run),
        notification_decisions.erasure_as_text(report, whose, dry_run),
    )
