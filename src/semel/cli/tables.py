"""Entries of the ledger for people (tables) and for programs (JSON)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, to_builtins
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from semel.cli.breakers import OpenBreaker
from semel.cli.describe import age, brief_ids, counted, cut, iso, moment, plain, plain_lines, short
from semel.ports import Entry
from semel.values.attempts import TRIED_MAX
from semel.values.errors import SemelError
from semel.values.event import Event
from semel.wiring import decode

WIDE_COLUMNS = 10_000  # nothing is cut before that
STYLES = {"dead": "red", "uncertain": "yellow", "done": "green", "leased": "cyan", "waiting": "cyan"}
GAP = "  "
HANDLER_SHOWN_CHARS = 24  # the event should have its place too
REASON_SHOWN_CHARS = 300  # --wide and `show` have all of it
SHOWN_MAX_CHARS = 20_000  # of one document; --raw has all of it
UNREAD = "what it says is not told by its bytes alone: it was read with an id_path, or by a program of its own"


def console(wide: bool) -> Console:
    return Console(width=WIDE_COLUMNS) if wide else Console()


# ------------------------------------------------------------------------------------------------------ listings


def listing(entries: Sequence[Entry], now_ms: int, wide: bool) -> Listing:
    """For a terminal: below an entry stands what is unusual about it. Wide: everything on its line, and whole."""
    return _wide(entries) if wide else _narrow(entries, now_ms)


class Listing(Struct, frozen=True):
    """A line for each entry, cut where the terminal ends, and perhaps a note below it.

    Not a table, whose columns would squeeze each other: a reason is long, and most entries have none."""

    heads: list[str]
    rows: list[list[str]]
    styles: list[str]  # of each row's state
    notes: list[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max(cell_len(cell) for cell in column) for column in zip(self.heads, *self.rows, strict=True)]
        line_max = options.max_width
        yield Text.assemble((_line(self.heads, widths, line_max).plain, "bold"), no_wrap=True)
        yield Text("─" * min(line_max, sum(widths) + len(GAP) * (len(widths) - 1)))
        second = widths[0] + len(GAP)
        for row, style, note in zip(self.rows, self.styles, self.notes, strict=True):
            line = _line(row, widths, line_max)
            line.stylize(style, second, second + len(row[1]))
            yield line
            if note:
                yield Padding(Text(note, overflow="fold"), (0, 0, 0, second), expand=False)


def _line(cells: Sequence[str], widths: Sequence[int], line_max: int) -> Text:
    """Cells side by side."""
    padded = [set_cell_size(cell, width) for cell, width in zip(cells, widths, strict=True)]
    line = Text(GAP.join(padded).rstrip(), no_wrap=True)
    line.truncate(line_max, overflow="ellipsis")
    return line


def _narrow(entries: Sequence[Entry], now_ms: int) -> Listing:
    tenants = len({entry.tenant for entry in entries}) > 1
    return Listing(
        ["key", "state", "age", "handler", "event"],
        [
            [
                short(entry.key),
                entry.state,
                age(entry.at_ms, now_ms),
                cut(plain(entry.handler), HANDLER_SHOWN_CHARS),
                brief_ids(plain(entry.text)),
            ]
            for entry in entries
        ],
        [STYLES.get(entry.state, "") for entry in entries],
        [_note(entry, tenants) for entry in entries],
    )


def _note(entry: Entry, tenants: bool) -> str:
    """What is unusual: "generation 2, 3 attempts: the CRM answered 503"."""
    facts = [
        f"tenant {plain(entry.tenant)}" if tenants and entry.tenant else "",
        f"generation {entry.generation}" if entry.generation > 1 else "",
        counted(entry.attempts, "attempt") if entry.attempts > 1 else "",
    ]
    parts = [", ".join(filter(None, facts)), cut(plain(entry.reason), REASON_SHOWN_CHARS)]
    return ": ".join(filter(None, parts))


def _wide(entries: Sequence[Entry]) -> Listing:
    """Columns that would say nothing are left out."""
    columns = {
        "key": [entry.key for entry in entries],
        "state": [entry.state for entry in entries],
        "at": [moment(entry.at_ms) for entry in entries],
        "handler": [plain(entry.handler) for entry in entries],
        "tenant": [plain(entry.tenant) for entry in entries],
        "attempts": [str(entry.attempts) for entry in entries],
        "generation": [str(entry.generation) if entry.generation > 1 else "" for entry in entries],
        "event": [plain(entry.text) for entry in entries],
        "reason": [plain(entry.reason) for entry in entries],
    }
    told = {head: cells for head, cells in columns.items() if any(cells)}
    rows = [list(row) for row in zip(*told.values(), strict=True)]
    return Listing(list(told), rows, [STYLES.get(entry.state, "") for entry in entries], [""] * len(entries))


# ----------------------------------------------------------------------------------------------------- one entry


def portrait(history: Sequence[Entry], now_ms: int, breaker: OpenBreaker | None = None) -> RenderableType:
    """Everything that is known of one key: how it stands, how it came there, and the event."""
    present = history[0]
    parts: list[RenderableType] = [_facts(present, now_ms)]
    if breaker is not None:
        parts.append(Text(plain(str(breaker)), style="bold red"))
    if present.result is not None:
        parts += [Text("\nresult", style="bold"), Text(document(present.result))]
    if lines := attempts(present):
        parts += [Text("\nattempts", style="bold"), Text("\n".join(lines))]
    if len(history) > 1 or present.decision:
        parts += [Text("\nhistory, the newest first", style="bold"), _generations(history)]
    kept = _kept(history)
    if kept is not None:
        facts = decoded(kept, present.tenant)
        parts += [Text("\nthe event", style="bold"), facts_table(facts or {"": UNREAD})]
        parts += [Text("\nas it came", style="bold"), Text(document(kept))]
    return Group(*parts)


def _kept(history: Sequence[Entry]) -> bytes | None:
    return next((entry.event for entry in history if entry.event is not None), None)


def attempts(entry: Entry) -> list[str]:
    """What came of each attempt, a line for each; and that some have left nothing."""
    lines: list[str] = []
    expected = 1
    for at, one in enumerate(entry.attempt_log):
        dropped = at == 1 and len(entry.attempt_log) >= TRIED_MAX - 1  # the first one and the newest are kept
        lines += _gap(expected, one.attempt - 1, "not kept" if dropped else "")
        lines.append(f"attempt {one.attempt}, {moment(one.at_ms)}: {plain(one.reason)}")
        expected = one.attempt + 1
    return lines if entry.attempts > 1 else []  # of a single one the reason tells


def _gap(first: int, last: int, why: str) -> list[str]:
    """Attempts of which nothing was recorded."""
    if last < first:
        return []
    which, whose = f"attempts {first} to {last}", "each process"
    if first == last:
        which, whose = f"attempt {first}", "its process"
    return [f"{which}: {why or f'{whose} vanished, or lost the ledger'}"]


def _facts(entry: Entry, now_ms: int) -> Table:
    told = {
        "key": entry.key,
        "state": entry.state,
        "since": f"{moment(entry.at_ms)}, {age(entry.at_ms, now_ms)} ago",
        "handler": entry.handler,
        "tenant": entry.tenant,
        "event": entry.text,
        "attempts": str(entry.attempts),
        "generation": str(entry.generation),
        "reason": entry.reason,
        "decision": entry.decision,
    }
    return facts_table(told)


def facts_table(facts: Mapping[str, str], styles: Mapping[str, str] = STYLES) -> Table:
    """Names and values; what has no value is left out."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value:
            table.add_row(name, Text(plain(value), style=styles.get(value, "") if name == "state" else ""))
    return table


def _generations(history: Sequence[Entry]) -> Text:
    """What happened, and what people decided about it: a few lines for each generation."""
    lines = []
    for entry in history:
        how = f"{entry.state}, {moment(entry.at_ms)}, {counted(entry.attempts, 'attempt')}"
        lines.append(f"generation {entry.generation}: {how}")
        attempt_log = attempts(entry) if entry is not history[0] else []
        told = [] if attempt_log and entry.attempt_log[-1].reason == entry.reason else [entry.reason]
        lines += [f"    {line}" for line in (*attempt_log, *(plain(text) for text in (*told, entry.decision) if text))]
    return Text("\n".join(lines))


def document(raw: bytes) -> str:
    """A stored document, laid out to be read. What is not JSON is shown as the text that it is."""
    try:
        text = json.dumps(json.loads(raw), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = raw.decode("utf-8", "backslashreplace")
    return excerpt(text, "--raw")


def excerpt(text: str, all_of_it: str) -> str:
    """As much of it as people read, and what shows all of it."""
    shown = plain_lines(text[:SHOWN_MAX_CHARS])
    more = len(text) - SHOWN_MAX_CHARS
    return shown if more <= 0 else f"{shown}\n… and {more:,} more ({all_of_it})"


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
        "attempt_log": [
            {"attempt": one.attempt, "at": iso(one.at_ms), "at_ms": one.at_ms, "reason": one.reason}
            for one in entry.attempt_log
        ],
    }


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2)


def whole(history: Sequence[Entry], breaker: OpenBreaker | None = None) -> dict[str, Any]:
    """A key with its history and its documents."""
    kept = _kept(history)
    return {
        **members(history[0]),
        "result": _value(history[0].result),
        "decoded": None if kept is None else decoded(kept, history[0].tenant),
        "event": _value(kept),
        "history": [members(entry) for entry in history],
        "breaker": None if breaker is None else to_builtins(breaker),
    }


def _value(raw: bytes | None) -> Any:
    """What a stored document says; its text where it is no JSON."""
    if raw is None:
        return None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "backslashreplace")


# What a kept event says, as far as its bytes alone tell it.

NAMES = ("type", "id", "subject", "time", "tenant", "origin", "shape")


def decoded(raw: bytes, tenant: str) -> dict[str, str] | None:
    """The event's own facts, those that it has. None: it was read with settings that are not kept beside it (an
    id_path), or by a program of its own; or it is no event at all."""
    try:
        event = decode(raw, tenant=tenant)
        return {name: value for name in NAMES if (value := _told(event, name))}
    except (SemelError, ValueError, OverflowError, OSError):  # a time may be none that a calendar has
        return None


def _told(event: Event, name: str) -> str:
    value: object = getattr(event, name)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return "" if value is None else str(value)
