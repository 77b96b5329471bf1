"""The SQL statements by name, from the .sql files beside this module.

They are written for a schema named `semel`. Loading them replaces that name by the configured one.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

FILES = ("claim.sql", "settle.sql", "keeping.sql", "inbox.sql", "letters.sql", "catalog.sql", "outbox.sql")
SCHEMA = tuple(sorted(path.name for path in files(__package__).joinpath("schema").iterdir()))
"""The step that leads to version 1, 2, …"""
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)
_OURS = re.compile(r"\bsemel\.(?=[a-z])")


def is_schema_name(name: str) -> bool:
    """True if a name needs no quotes: it is written into statements."""
    return _NAME.fullmatch(name) is not None


@cache  # as many as there are schemas in use
def statements(schema: str = "semel") -> dict[str, str]:
    """Return all statements by name: `statements(schema)["claim"]`."""
    folder = files(__package__)
    parts = "\n".join([folder.joinpath(file).read_text() for file in FILES]).split("-- name: ")[1:]
    found: dict[str, str] = {}
    for name, _, sql in (part.partition("\n") for part in parts):
        assert name not in found, f"two statements have the name {name}"
        found[name] = _in(schema, sql.strip())
    return found


def migration(step: str, schema: str) -> str:
    """Return the text of one step of the schema."""
    return _in(schema, files(__package__).joinpath("schema", step).read_text())


def _in(schema: str, sql: str) -> str:
    assert is_schema_name(schema)
    return _OURS.sub(f'"{schema}".', sql)
