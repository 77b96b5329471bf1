"""What came of adding, and of sending once more."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins
from rich.console import Group, RenderableType
from rich.text import Text

from semel.cli.notifying.adding import Put
from semel.cli.notifying.masks import Mask
from semel.cli.notifying.meaning import MEANING, short_id
from semel.cli.notifying.tables import asked_of
from semel.cli.operating.ledger_tables import facts_table
from semel.cli.operating.words import plain
from semel.core.resending import Resent
from semel.values.notification import Notification

RELAY = "A relay sends it: the one that runs, or the next `semel relay --once`."


def put_text(put: Put, said: Notification) -> RenderableType:
    """The id stands first, whole: it is what everything else is asked by."""
    mask, facts = Mask(said), {"id": put.id}
    if put.status == "added":
        facts |= {"to": f"{mask.recipient}, by {said.channel}", "content": mask.content}
    if put.dry_run:
        facts |= {"key": plain(mask.name(said.key)), "kind": said.kind, **asked_of(said, mask)}
    told: list[RenderableType] = [Text(_headline(put)), facts_table(facts)]
    if put.ignored and put.status == "known":
        told.append(Text(f"What it asks for is not changed by this call: {_listed(put.ignored)}."))
    return Group(*told)


def _headline(put: Put) -> str:
    match put.status, put.dry_run:
        case "added", False:
            return f"added. {RELAY}"
        case "added", True:
            return "would be added. Nothing was changed."
        case "known", _:
            return f"known: it was added before and is {put.state}, {MEANING.get(put.state, '')}. Nothing was changed."
    what = f" ({_listed(put.differs)})" if put.differs else ""
    return (
        f"conflict: the same key, kind and recipient are known with another content{what}. The first one is kept, "
        f"{put.state}: semel notify show {short_id(put.id)}. Another fact needs another --key."
    )


def _listed(names: list[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)


def put_members(put: Put) -> dict[str, Any]:
    return {
        "id": put.id,
        "status": put.status,
        "state": put.state,
        "dry_run": put.dry_run,
        "differs": put.differs,
        "not_changed": put.ignored,
    }


def resent_text(resent: Resent) -> RenderableType:
    facts = {"id": resent.id, "generation": str(resent.generation)}
    match resent.status:
        case "added":
            return Group(Text(f"added as generation {resent.generation}. {RELAY}"), facts_table(facts))
        case "known":
            meant = MEANING.get(resent.state, "")
            told = f"known: generation {resent.generation} was added before and is {resent.state}, {meant}."
            return Group(Text(f"{told} To repeat that one, name it."), facts_table(facts))
    return Text(f"refused: {plain(resent.reason)}")


def resent_members(resent: Resent) -> dict[str, Any]:
    return to_builtins(resent)  # type: ignore[no-any-return]
