"""docs/logs.md lists every log event that the code writes, with its level and its fields."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from semel.core.delivery_log import _LINES
from semel.service.server import NOT_IN_TIME

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "logs.md"
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
# Their arguments are names of log events.
INCIDENTS = ("IncidentLog", "CountedLog")
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")


@cache
def written() -> dict[str, set[str]]:
    """The fields of every name in the code."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            keywords = {keyword.arg for keyword in node.keywords if keyword.arg is not None} - {"exc", "clock", "level"}
            match node.func, node.args:
                case ast.Attribute(ast.Name("log"), method), [ast.Constant(str(name)), *_] if method in LEVELS:
                    found[name] |= keywords
                case ast.Attribute(ast.Name("log"), "write"), [_, ast.Constant(str(name)), *_]:
                    found[name] |= keywords
                case ast.Name("IncidentLog" | "CountedLog"), names:
                    for one in names:
                        if isinstance(one, ast.Constant):
                            found[str(one.value)] |= keywords
                case ast.Name("LogEvent"), [ast.Constant(str(name)), ast.Dict(keys), *_]:
                    found[name] |= {str(key.value) for key in keys if isinstance(key, ast.Constant)}
    for _, name in _LINES.values():
        found[name]
    found[NOT_IN_TIME]
    found["event_lease_lost"]
    return found


def documented() -> dict[str, str]:
    """The line of the table for each name."""
    rows = (line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `"))
    return {row.split("`")[1]: row for row in rows if NAME.fullmatch(row.split("`")[1])}


def test_every_log_event_is_in_the_table_and_nothing_else() -> None:
    assert sorted(written()) == sorted(documented())


def test_the_fields_of_a_log_event_are_in_its_row() -> None:
    rows = documented()
    missing = [
        (name, field) for name, fields in written().items() for field in fields if f"`{field}`" not in rows[name]
    ]
    assert missing == []


def test_names_have_one_form() -> None:
    assert [name for name in written() if not NAME.fullmatch(name) and "_" in name] == []
