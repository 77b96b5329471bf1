"""`semel notify resend`: which one is meant, and asking before the customer gets it again."""

from __future__ import annotations

from semel.cli.notifying.box import named, outbox_at
from semel.cli.notifying.masks import Mask
from semel.cli.notifying.meaning import MEANING
from semel.cli.operating.place import Place
from semel.cli.operating.words import plain
from semel.core.resending import Resent, resend
from semel.values.outbox import Shown
from semel.values.sending import LIVE


async def look(where: Place, id: str) -> Shown:
    async with outbox_at(where) as box:
        return await named(box, id)


def needs_asking(one: Shown) -> bool:
    """What is refused anyway, nobody has to be asked about."""
    return not one.erased and one.state not in LIVE


def question(one: Shown) -> str:
    said = one.notification
    told = f"{plain(said.kind)} to {Mask(said).recipient} is {one.state}: {MEANING[one.state]}."
    return f"{told} Send it once more?"


async def repeat(where: Place, one: Shown, reason: str, by: str) -> Resent:
    async with outbox_at(where) as box:
        return await resend(box, bytes.fromhex(one.id), reason, by)
