"""Tables and JSON documents: the shared forms, and the entries of a ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from semel.cli.breakers import OpenBreaker
from semel.cli.describe import STYLES, age, brief_ids, counted, cut, iso, moment, plain, plain_lines, short
from semel.ports import Entry
from semel.values.attempts import TRIED_MAX
from semel.values.errors import SemelError
from semel.wiring import decode

WIDE_COLUMNS = 10_000  # nothing is cut before that
GAP = "  "
HANDLER_SHOWN_CHARS = 24  # leaves room for the event
REASON_SHOWN_CHARS = 300  # --wide and `show` show all of it
SHOWN_MAX_CHARS = 20_000  # of one document; --raw writes all of it
UNREAD = "not decoded: it was read with an id_path, or by an application"


def console(wide: bool) -> Console:
    return Console(width=WIDE_COLUMNS) if wide else Console()


# ------------------------------------------------------------------------------------------------------ listings


class Listing(Struct, frozen=True):
    """One line for each row, cut at the width of the terminal, and an optional note below it.

    It is no table, because long reasons, which most rows lack, would make the other columns narrow.
    """

    heads: list[str]
    rows: list[list[str]]
    styles: list[str]  # of each row's state
    notes: list[str]

    @classmethod
    def wide(cls, columns: Mapping[str, list[str]], styles: list[str]) -> Listing:
        """Whole values on long lines. Empty columns are omitted."""
        filled = {head: cells for head, cells in columns.items() if any(cells)}
        rows = [list(row) for row in zip(*filled.values(), strict=True)]
        return cls(list(filled), rows, styles, [""] * len(styles))

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
    padded = [set_cell_size(cell, width) for cell, width in zip(cells, widths, strict=True)]
    line = Text(GAP.join(padded).rstrip(), no_wrap=True)
    line.truncate(line_max, overflow="ellipsis")
    return line


def note(facts: Sequence[str], reason: str) -> str:
    """The unusual facts of a row and its reason: "generation 2, 3 attempts: the CRM answered 503"."""
    return ": ".join(filter(None, [", ".join(filter(None, facts)), cut(reason, REASON_SHOWN_CHARS)]))


# -------------------------------------------------------------------------------------------------------- entries


def listing(entries: Sequence[Entry], now_ms: int, wide: bool) -> Listing:
    """Entries with a note below each. Wide: everything on one line."""
    styles = [STYLES.get(entry.state, "") for entry in entries]
    if wide:
        return Listing.wide(
            {
                "key": [entry.key for entry in entries],
                "state": [entry.state for entry in entries],
                "at": [moment(entry.at_ms) for entry in entries],
                "handler": [plain(entry.handler) for entry in entries],
                "tenant": [plain(entry.tenant) for entry in entries],
                "attempts": [str(entry.attempts) for entry in entries],
                "generation": [str(entry.generation) if entry.generation > 1 else "" for entry in entries],
                "event": [plain(entry.text) for entry in entries],
                "reason": [plain(entry.reason) for entry in entries],
            },
            styles,
        )
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
        styles,
        [_note(entry, tenants) for entry in entries],
    )


def _note(entry: Entry, tenants: bool) -> str:
    facts = [
        f"tenant {plain(entry.tenant)}" if tenants and entry.tenant else "",
        f"generation {entry.generation}" if entry.generation > 1 else "",
        counted(entry.attempts, "attempt") if entry.attempts > 1 else "",
    ]
    return note(facts, plain(entry.reason))


# ----------------------------------------------------------------------------------------------------- one entry


def portrait(history: Sequence[Entry], now_ms: int, breaker: OpenBreaker | None = None) -> RenderableType:
    """Everything that is stored about one key: its state, its history, and the event."""
    present = history[0]
    parts: list[RenderableType] = [facts_table(_facts(present, now_ms))]
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
    """One line for each attempt, and one for each gap without a record."""
    lines: list[str] = []
    expected = 1
    for at, failed in enumerate(entry.attempt_log):
        dropped = at == 1 and len(entry.attempt_log) >= TRIED_MAX - 1  # the first one and the newest are kept
        lines += _gap(expected, failed.attempt - 1, "not kept" if dropped else "")
        lines.append(f"attempt {failed.attempt}, {moment(failed.at_ms)}: {plain(failed.reason)}")
        expected = failed.attempt + 1
    return lines if entry.attempts > 1 else []  # the reason of the entry describes a single one


def _gap(first: int, last: int, reason: str) -> list[str]:
    """A line for attempts without a record."""
    if last < first:
        return []
    if first == last:
        return [f"attempt {first}: {reason or 'its process vanished, or lost the ledger'}"]
    return [f"attempts {first} to {last}: {reason or 'each process vanished, or lost the ledger'}"]


def _facts(entry: Entry, now_ms: int) -> dict[str, str]:
    return {
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


def facts_table(facts: Mapping[str, str], styles: Mapping[str, str] = STYLES) -> Table:
    """Names and values. Empty values are omitted."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value:
            table.add_row(name, Text(plain(value), style=styles.get(value, "") if name == "state" else ""))
    return table


def _generations(history: Sequence[Entry]) -> Text:
    """A few lines for each generation: its outcome and the decision about it."""
    lines = []
    for entry in history:
        summary = f"{entry.state}, {moment(entry.at_ms)}, {counted(entry.attempts, 'attempt')}"
        lines.append(f"generation {entry.generation}: {summary}")
        attempt_log = attempts(entry) if entry is not history[0] else []
        reason = "" if attempt_log and entry.attempt_log[-1].reason == entry.reason else entry.reason
        lines += [f"    {line}" for line in (*attempt_log, plain(reason), plain(entry.decision)) if line]
    return Text("\n".join(lines))


def document(raw: bytes) -> str:
    """A stored document, indented. Anything but JSON is shown as text."""
    try:
        text = json.dumps(json.loads(raw), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = raw.decode("utf-8", "backslashreplace")
    return excerpt(text, "--raw")


def excerpt(text: str, all_of_it: str) -> str:
    """The beginning of a long text, and the option that shows all of it."""
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
            {"attempt": failed.attempt, "at": iso(failed.at_ms), "at_ms": failed.at_ms, "reason": failed.reason}
            for failed in entry.attempt_log
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
    """The value of a stored document; its text if it is not JSON."""
    if raw is None:
        return None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "backslashreplace")


def decoded(raw: bytes, tenant: str) -> dict[str, str] | None:
    """The fields of a stored event. None: it was decoded with settings that are not stored with it (an id_path), or by
    an application; or it is no event."""
    try:
        event = decode(raw, tenant=tenant)
        time = "" if event.time is None else event.time.isoformat().replace("+00:00", "Z")
    except (SemelError, ValueError, OverflowError, OSError):  # the time may be beyond the calendar
        return None
    fields = {
        "type": event.type,
        "id": event.id,
        "subject": event.subject,
        "time": time,
        "tenant": event.tenant,
        "origin": event.origin,
        "shape": event.shape,
    }
    return {name: str(value) for name, value in fields.items() if value}
