"""`semel notify erase`: forget a customer, and keep what the same call again is known by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.text import Text

from semel.cli.notifying.box import every, outbox_at
from semel.cli.notifying.meaning import MEANING
from semel.cli.operating.deciding_view import SHOWN
from semel.cli.operating.place import Place
from semel.cli.operating.words import counted, plain
from semel.core.outboxes import StoredOutbox
from semel.values.masking import masked_recipient
from semel.values.outbox import Shown, Sought


class Erased(Struct, frozen=True):
    """What was forgotten, or would be."""

    erased: int
    cancelled: int  # of these, because they had not been sent
    staying: Sequence[tuple[str, str]]  # ids and states of those that are not over


async def look(where: Place, tenant: str, recipient: str) -> Erased:
    """What would become of them. A relay may take one meanwhile."""
    async with outbox_at(where) as box:
        found = await _kept(box, tenant, recipient)
    staying = [(one.id, one.state) for one in found if one.state in ("sending", "uncertain")]
    return Erased(len(found) - len(staying), sum(one.state == "pending" for one in found), staying)


async def erase(where: Place, tenant: str, recipient: str, reason: str, by: str) -> Erased:
    async with outbox_at(where) as box:
        waiting = {one.id for one in await _kept(box, tenant, recipient) if one.state == "pending"}
        count = await box.erase(tenant, recipient, reason, by)
        staying = [(one.id, one.state) for one in await _kept(box, tenant, recipient)]
    return Erased(count, len(waiting.difference(id for id, _ in staying)), staying)


async def _kept(box: StoredOutbox, tenant: str, recipient: str) -> list[Shown]:
    return [one async for one in every(box, Sought(tenant=tenant, recipient=recipient)) if not one.erased]


def customer(tenant: str, recipient: str) -> str:
    return f"{plain(masked_recipient(recipient))} of {f'tenant {plain(tenant)}' if tenant else 'no tenant'}"


def question(found: Erased) -> str:
    first = f" ({found.cancelled:,} of them are cancelled: they are not sent yet)" if found.cancelled else ""
    return f"Erase {counted(found.erased, 'notification')} for good{first}?"


def as_json(report: Erased, dry_run: bool) -> dict[str, Any]:
    return {
        "erased": report.erased,
        "cancelled": report.cancelled,
        "dry_run": dry_run,
        "staying": [{"id": id, "state": state} for id, state in report.staying],
    }


def as_text(report: Erased, whose: str, dry_run: bool) -> RenderableType:
    if not report.erased and not report.staying:
        return Text(f"Nothing is kept of {whose}.")
    would = "would be erased" if dry_run else "erased"
    first = f", {report.cancelled:,} of them cancelled before they were sent" if report.cancelled else ""
    end = "Nothing was changed." if dry_run else "The same calls are still known, and send nothing."
    lines = [Text(f"{counted(report.erased, 'notification')} of {whose} {would}{first}. {end}")]
    if report.staying:
        lines.append(Text(f"{len(report.staying):,} not over yet; erase again when they are:", style="yellow"))
    lines += [Text(f"  {id}  {state}: {MEANING[state]}") for id, state in report.staying[:SHOWN]]
    return Group(*lines)
