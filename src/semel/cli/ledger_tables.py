"""Entries of the ledger for people (tables) and for programs (JSON)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from semel.cli.words import age, counted, iso, moment, plain, plain_lines, short
from semel.ports import Entry

WIDE_COLUMNS = 400  # nothing is cut before that
STYLES = {"dead": "red", "uncertain": "yellow", "done": "green", "leased": "cyan", "waiting": "cyan"}
SHOWN_MAX_CHARS = 20_000  # of one document; --json has all of it


def console(wide: bool) -> Console:
    return Console(width=WIDE_COLUMNS) if wide else Console()


# ------------------------------------------------------------------------------------------------------ listings


def listing(entries: Sequence[Entry], now_ms: int, wide: bool, reasons: bool) -> Table:
    """One line for each entry. Columns that would say the same everywhere, or nothing, are left out."""
    tenants = any(entry.tenant for entry in entries)
    generations = any(entry.generation > 1 for entry in entries)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("key", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("at" if wide else "age", no_wrap=True)
    table.add_column("handler", no_wrap=wide, overflow="fold")
    if tenants:
        table.add_column("tenant", no_wrap=wide, overflow="fold")
    table.add_column("attempts", justify="right", no_wrap=True)
    if generations:
        table.add_column("generation", justify="right", no_wrap=True)
    table.add_column("reason" if reasons else "event", no_wrap=wide, overflow="fold", ratio=None if wide else 1)
    if wide and reasons:
        table.add_column("event", no_wrap=True)
    for entry in entries:
        cells = [
            Text(entry.key if wide else short(entry.key)),
            Text(entry.state, style=STYLES.get(entry.state, "")),
            Text(moment(entry.at_ms) if wide else age(entry.at_ms, now_ms)),
            Text(plain(entry.handler)),
            *([Text(plain(entry.tenant))] if tenants else []),
            Text(str(entry.attempts)),
            *([Text(str(entry.generation))] if generations else []),
            Text(plain(entry.reason if reasons else _what(entry, wide))),
            *([Text(plain(entry.text))] if wide and reasons else []),
        ]
        table.add_row(*cells)
    return table


def _what(entry: Entry, wide: bool) -> str:
    """The key's text and, where something went wrong, why."""
    text = entry.text if wide or len(entry.text) <= 60 else f"{entry.text[:59]}…"
    return f"{text}  {entry.reason}" if entry.reason else text


# ----------------------------------------------------------------------------------------------------- one entry


def portrait(history: Sequence[Entry], now_ms: int) -> RenderableType:
    """Everything that is known of one key: how it stands, how it came there, and the event."""
    present = history[0]
    parts: list[RenderableType] = [_facts(present, now_ms)]
    if present.result is not None:
        parts += [Text("\nresult", style="bold"), Text(document(present.result))]
    if len(history) > 1 or present.decision:
        parts += [Text("\nhistory, the newest first", style="bold"), _generations(history)]
    kept = next((entry.event for entry in history if entry.event is not None), None)
    if kept is not None:
        parts += [Text("\nevent", style="bold"), Text(document(kept))]
    return Group(*parts)


def _facts(entry: Entry, now_ms: int) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in (
        ("key", entry.key),
        ("state", entry.state),
        ("since", f"{moment(entry.at_ms)}, {age(entry.at_ms, now_ms)} ago"),
        ("handler", entry.handler),
        ("tenant", entry.tenant),
        ("text", entry.text),
        ("attempts", str(entry.attempts)),
        ("generation", str(entry.generation)),
        ("reason", entry.reason),
        ("decision", entry.decision),
    ):
        if value:
            table.add_row(name, Text(plain(value), style=STYLES.get(value, "") if name == "state" else ""))
    return table


def _generations(history: Sequence[Entry]) -> Text:
    """What happened, and what people decided about it: a few lines for each generation."""
    lines = []
    for entry in history:
        how = f"{entry.state}, {moment(entry.at_ms)}, {counted(entry.attempts, 'attempt')}"
        lines.append(f"generation {entry.generation}: {how}")
        lines += [f"    {plain(text)}" for text in (entry.reason, entry.decision) if text]
    return Text("\n".join(lines))


def document(raw: bytes) -> str:
    """A stored document, laid out to be read. What is not JSON is shown as the text that it is."""
    try:
        text = json.dumps(json.loads(raw), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = raw.decode("utf-8", "backslashreplace")
    shown = plain_lines(text[:SHOWN_MAX_CHARS])
    return shown if len(text) <= SHOWN_MAX_CHARS else f"{shown}\n… and {len(text) - SHOWN_MAX_CHARS:,} more (--json)"


# ---------------------------------------------------------------------------------------------------------- JSON


def members(entry: Entry) -> dict[str, Any]:
    """An entry without its documents."""
    return {
        "key": entry.key,
        "state": entry.state,
        "at": iso(entry.at_ms),
        "at_ms": entry.at_ms,
        "handler": entry.handler,
        "tenant": entry.tenant,
        "text": entry.text,
        "attempts": entry.attempts,
        "generation": entry.generation,
        "reason": entry.reason,
        "decision": entry.decision,
    }


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2)


def whole(history: Sequence[Entry]) -> dict[str, Any]:
    """A key with its history and its documents."""
    kept = next((entry.event for entry in history if entry.event is not None), None)
    return {
        **members(history[0]),
        "result": _value(history[0].result),
        "event": _value(kept),
        "history": [members(entry) for entry in history],
    }


def _value(raw: bytes | None) -> Any:
    """What a stored document says; its text where it is no JSON."""
    if raw is None:
        return None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "backslashreplace")
