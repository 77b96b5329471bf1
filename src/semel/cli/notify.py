"""`semel notify`: messages to customers. Did they get it, what is in doubt, and what people decide about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semel.cli.notifying import decisions
from semel.cli.notifying.options import (
    BusinessKey,
    InState,
    Kind,
    MaybeId,
    Of,
    OfProvider,
    Reveal,
    To,
    WouldBe,
    sought,
    tell,
)
from semel.cli.options import Config, Json, Ledger, Limit, Since, Tenant, Until, Wide
from semel.values.notification import PRIORITY_MAX, Channel, Policy

SEND = """Put a message into the outbox. A relay sends it.

The same call again is the same notification, and says so: its identity is
tenant, key, kind, recipient and channel. So --key names the fact that it is
about ("order-4711-shipped"), and is never made up for a call. The same one
with another content is a conflict: the first one is kept.

Exit codes: 0, added or known. 1, conflict. 2, the command cannot work as
given, and nothing was done.
"""


def register(app: typer.Typer) -> None:
    notify = typer.Typer(help="Messages to customers: send, look, decide, erase.", no_args_is_help=True)
    notify.command("send", help=SEND)(send)
    notify.command("list")(list_notifications)
    notify.command("show")(show)
    notify.command("status")(status)
    decisions.register(notify)
    app.add_typer(notify, name="notify")


# ------------------------------------------------------------------------------------------------------------ adding


def send(
    key: Annotated[str, typer.Option("--key", help="The fact that it is about: order-4711-shipped.")],
    kind: Annotated[str, typer.Option(help="What sort of message: shipping, reminder.")],
    to: Annotated[str, typer.Option("--to", "--recipient", metavar="WHO", help="A number, an address, an id.")],
    channel: Annotated[Channel, typer.Option(help="By which way.")],
    body: Annotated[str | None, typer.Option(help="What it says; for channel event a JSON document.")] = None,
    body_file: Annotated[Path | None, typer.Option(help="A file that says it; - for standard input.")] = None,
    subject: Annotated[str, typer.Option(help="Of an email.")] = "",
    sender: Annotated[str, typer.Option(help="Who sends; by default as the provider is configured.")] = "",
    template: Annotated[str, typer.Option(help="The provider's id of a template.")] = "",
    data: Annotated[str, typer.Option(metavar="JSON", help="What the template is filled with.")] = "",
    provider: Annotated[str, typer.Option(metavar="NAME", help="By default the first one of the channel.")] = "",
    priority: Annotated[int, typer.Option(min=0, max=PRIORITY_MAX, help="0 goes first, 9 last.")] = 5,
    order: Annotated[str, typer.Option(help="Those with the same order key go one after the other.")] = "",
    not_after: Annotated[
        str, typer.Option(metavar="WHEN", help="Not sent by then, it expires: 2026-03-19T22:00 (UTC), or 2h from now.")
    ] = "",
    guard: Annotated[
        str, typer.Option(metavar="SPAN", help="At most one of its kind to this recipient in: 90s, 24h, 7d.")
    ] = "",
    guard_key: Annotated[str, typer.Option(help="Guard this instead of recipient and kind.")] = "",
    policy: Annotated[Policy | None, typer.Option(help="When nobody knows in time whether it was sent.")] = None,
    tenant: Of = "",
    dry_run: WouldBe = False,
    ledger: Ledger = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    import asyncio

    from semel.cli.notifying import adding, sending_view
    from semel.cli.operating.place import place
    from semel.values.errors import ConfigError
    from semel.values.notification import Notification
    from semel.values.sending import ProviderAccess

    said = Notification(
        key=key,
        kind=kind,
        recipient=to,
        channel=channel,
        body=adding.body_of(body, body_file, channel),
        subject=subject,
        sender=sender,
        template=template,
        data=adding.data_of(data),
        tenant=tenant,
        not_after=adding.not_after_of(not_after),
        priority=priority,
        order=order,
        guard=adding.guard_of(guard, guard_key),
        provider=provider,
        policy=policy,
    )
    access = adding.access_by_settings(config) if ledger is None else ProviderAccess()
    if reason := access.refusal(said):
        raise ConfigError(f"{reason}. Nothing was added")
    makes = ledger is None and adding.has_settings(config) and not dry_run
    put = asyncio.run(adding.put(place(ledger, config), said, dry_run, makes=makes))
    if ledger is None and (why := adding.nobody_sends(access, provider, channel)):
        typer.echo(f"semel: {why}", err=True)
    tell(as_json, sending_view.put_members(put), sending_view.put_text(put, said))
    raise typer.Exit(1 if put.status == "conflict" else 0)


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
    ledger: Ledger = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List notifications, the newest first.

    Recipients are masked and contents are not shown, unless --reveal is given.
    """
    import asyncio

    from msgspec.structs import replace

    from semel.cli.notifying import box, tables
    from semel.cli.operating import ledger_tables, looking
    from semel.cli.operating.place import place
    from semel.values.outbox import Sought

    wanted = replace(
        sought(state or "", recipient, kind, key, provider, tenant, since, until),
        possible_duplicates=possible_duplicates,
        limit=limit,
    )
    where = place(ledger, config)
    if as_json:
        members = asyncio.run(box.listed(where, wanted, lambda one: tables.members(one, reveal)))
        typer.echo(ledger_tables.as_json(members))
        return
    keep = (lambda one: one) if wide else (lambda one: box.without_content(one, reveal))
    found = asyncio.run(box.listed(where, wanted, keep))
    if found:
        ledger_tables.console(wide).print(tables.listing(found, looking.now_ms(), wide, reveal))
        for line in (f"The newest {limit:,}; --limit shows more." if len(found) == limit else "", tables.hint(found)):
            if line:
                typer.echo(line)
    elif replace(wanted, limit=100) == Sought():
        typer.echo("No notifications yet.")
    else:
        unnamed = tenant is None and wanted.tenant == ""
        typer.echo(f"No notifications match{', among those of no tenant: --tenant names one' if unnamed else ''}.")


def show(
    id: MaybeId = "",
    key: Annotated[str, typer.Option("--key", help="By its business key instead of its id.")] = "",
    tenant: Of = "",
    reveal: Reveal = False,
    ledger: Ledger = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show everything that is known of one notification.

    What it is, each attempt with its evidence, what people decided, and what
    happens next. The recipient is masked and the content not shown, unless
    --reveal is given.
    """
    import asyncio

    from semel.cli.notifying import box, tables
    from semel.cli.operating import ledger_tables, looking
    from semel.cli.operating.place import place
    from semel.values.errors import ConfigError

    if bool(id) == bool(key):
        raise ConfigError("which one? Name its id or its --key, one of them; `semel notify list` shows what there is")
    one, others = asyncio.run(box.known(place(ledger, config), id, key, tenant))
    now_ms = looking.now_ms()
    if as_json:
        typer.echo(ledger_tables.as_json(tables.whole(one, others, now_ms, reveal)))
    else:
        ledger_tables.console(wide=False).print(tables.portrait(one, others, now_ms, reveal))


def status(
    recipient: Annotated[str, typer.Option("--recipient", "--to", metavar="WHO", help="Which customer.")] = "",
    kind: Annotated[str, typer.Option(help="Which kind of message; all kinds if nothing is said.")] = "",
    key: Annotated[str, typer.Option("--key", help="Which business key, instead of a customer.")] = "",
    tenant: Of = "",
    ledger: Ledger = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Did this customer get the message?

    One answer: never, not_sent, pending, sent, unknown or suppressed, with its evidence.
    What was sent says more than what is unknown, that more than what waits.
    """
    import asyncio

    from semel.cli.notifying import box, tables
    from semel.cli.operating import ledger_tables, looking
    from semel.cli.operating.place import place
    from semel.values.errors import ConfigError
    from semel.values.recipients import matching_note

    if bool(recipient) == bool(key) or (key and kind):
        raise ConfigError("whose? Name a --recipient, with or without a --kind, or a --key alone")
    found, shown = asyncio.run(box.asked(place(ledger, config), tenant, recipient, kind, key))
    said = None if shown is None else shown.notification
    note = matching_note(recipient) if recipient else ""
    if as_json:
        typer.echo(ledger_tables.as_json(tables.status_members(found, said, note)))
    else:
        ledger_tables.console(wide=False).print(tables.answer(found, looking.now_ms(), said, note))
