"""The SQL statements by name, from the .sql files beside this module, and the steps of the schema.

They are written for a schema named `semel`. Loading them replaces that name by the configured one.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

FILES = ("claim.sql", "settle.sql", "purge.sql", "inbox.sql", "dead_letters.sql", "catalog.sql", "outbox.sql")
STEPS = {"001_initial": ("001_ledger.sql", "001_inbox.sql", "001_outbox.sql", "001_relay.sql")}
"""The steps that lead to version 1, 2, …, with the files that each one runs."""
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)
_SCHEMA_PREFIX = re.compile(r"\bsemel\.(?=[a-z])")


def is_schema_name(name: str) -> bool:
    """True if a name needs no quotes: it is written into statements."""
    return _NAME.fullmatch(name) is not None


@cache  # as many as there are schemas in use
def statements(schema: str = "semel") -> dict[str, str]:
    """Return all statements by name: `statements(schema)["claim"]`."""
    parts = "\n".join([files(__package__).joinpath(file).read_text() for file in FILES]).split("-- name: ")[1:]
    by_name: dict[str, str] = {}
    for name, _, sql in (part.partition("\n") for part in parts):
        assert name not in by_name, f"two statements have the name {name}"
        by_name[name] = _in_schema(schema, sql.strip())
    return by_name


def step_sql(step: str, schema: str) -> str:
    """Return the statements of one step of the schema."""
    folder = files(__package__).joinpath("schema")
    return _in_schema(schema, "\n".join([folder.joinpath(file).read_text() for file in STEPS[step]]))


def _in_schema(schema: str, sql: str) -> str:
    assert is_schema_name(schema)
    return _SCHEMA_PREFIX.sub(f'"{schema}".', sql)
