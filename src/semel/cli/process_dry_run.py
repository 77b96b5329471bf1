"""`--dry-run`: what would be done with each event. Nothing is written, and no ledger is made where there is none."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from semel.app import Semel
from semel.cli.describe import brief_ids, cut, plain, short
from semel.cli.process_input import Document, Input, Splitter, Stream
from semel.cli.process_run import ProcessOptions
from semel.core.routing import Handler, NoKeyStandIn
from semel.ports import Catalog
from semel.values.event import DecodeOptions
from semel.values.outcome import Outcome

NEW = "new"
WITHOUT_KEY = "without key"  # it would be a dead letter of its handler
EVENT_SHOWN_CHARS = 60
AS_DONE = {"done": "duplicate", "dead": "dead already", "uncertain": "uncertain already"}


class Would(Struct, frozen=True):
    """What one handler would do with one document, or why none would."""

    file: str
    line: int
    byte: int
    event: str
    handler: str
    key: str
    state: str  # NEW, WITHOUT_KEY, a state of the ledger, "ignored" or "malformed"
    reason: str = ""


class Asked(Struct):
    """A document as the planner reads it."""

    body: bytes
    tenant: str
    decode_options: DecodeOptions | None
    headers: Mapping[str, str] | None = None
    only: str = ""
    key: bytes = b""


async def would(
    app: Semel, ledger: Catalog | None, inputs: Sequence[Input], options: ProcessOptions, tell: Callable[[Would], None]
) -> Counter[str]:
    """Counts by what would come of them. `ledger`: None where there is none yet."""
    counts: Counter[str] = Counter()
    left = options.most
    for given in inputs:
        for document in _documents(given):
            if left is not None:
                if left == 0:
                    return counts
                left -= 1
            for one in await _of(app, ledger, given.shown, document, options):
                counts[AS_DONE.get(one.state, one.state)] += 1
                tell(one)
    return counts


def _documents(given: Input) -> Iterator[Document]:
    stream = Stream(given)
    try:
        splitter = Splitter(stream.read)
        while (document := splitter.next()) is not None:
            yield document
        if splitter.cut_off is not None:
            yield splitter.cut_off
    finally:
        stream.close()


async def _of(
    app: Semel, ledger: Catalog | None, name: str, document: Document, options: ProcessOptions
) -> list[Would]:
    at = (name, document.line, document.start)
    plan: Any = Outcome("malformed", reason=document.broken)
    if not document.broken:
        plan = app.planner.plan(Asked(document.body, options.tenant, options.decode_options))
    if isinstance(plan, Outcome):
        return [Would(*at, "", "", "", plan.status, plan.reason)]
    return [
        Would(*at, plan.event.id, handler.name, claim.digest.hex(), *await _state(ledger, handler, claim.digest.hex()))
        for handler, claim in zip(plan.handlers, plan.claims, strict=True)
    ]


async def _state(ledger: Catalog | None, handler: Handler, key: str) -> tuple[str, str]:
    """The state, and the reason where the handler would not run."""
    history = await ledger.history(key) if ledger is not None else []
    reason = handler.fn.reason if isinstance(handler.fn, NoKeyStandIn) else ""
    return history[0].state if history else WITHOUT_KEY if reason else NEW, reason


def as_line(one: Would) -> str:
    where = f"{plain(one.file)}:{one.line}"
    if not one.handler:
        return f"{where}  {one.state}: {plain(one.reason)}"
    event = cut(brief_ids(plain(one.event)), EVENT_SHOWN_CHARS)
    what = "would run" if one.state == NEW else f"{one.state} already" if one.state in AS_DONE else one.state
    why = f"  {plain(one.reason)}" if one.reason else ""
    return f"{where}  {what}  {one.handler}  {short(one.key)}  {event}{why}"


def as_json_line(one: Would) -> str:
    return json.dumps({name: getattr(one, name) for name in one.__struct_fields__})
