"""The ledger's statements, by name, out of the .sql files beside this module.

They are written for a schema called `semel`; another name takes its place when they are loaded.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

FILES = ("claim.sql", "settle.sql", "keeping.sql", "inbox.sql", "letters.sql", "catalog.sql", "outbox.sql")
SCHEMA = tuple(sorted(path.name for path in files(__package__).joinpath("schema").iterdir()))
"""What has to be run to come to version 1, 2, …"""

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)
_OURS = re.compile(r"\bsemel\.(?=[a-z])")


def is_schema_name(name: str) -> bool:
    """What can be a schema's name without being quoted: it is written into statements."""
    return _NAME.fullmatch(name) is not None


@cache  # as many as there are schemas in use
def statements(schema: str = "semel") -> dict[str, str]:
    """All statements: `statements(schema)["claim"]`."""
    folder = files(__package__)
    parts = "\n".join([folder.joinpath(file).read_text() for file in FILES]).split("-- name: ")[1:]
    found: dict[str, str] = {}
    for name, _, sql in (part.partition("\n") for part in parts):
        assert name not in found, f"two statements are called {name}"
        found[name] = _in(schema, sql.strip())
    return found


def migration(step: str, schema: str) -> str:
    """The text of one file of the schema."""
    return _in(schema, files(__package__).joinpath("schema", step).read_text())


def _in(schema: str, sql: str) -> str:
    assert is_schema_name(schema)
    return _OURS.sub(f'"{schema}".', sql)
