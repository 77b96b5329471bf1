"""Facts about the store, for `semel doctor`. The prefix "error: " or "warning: " of a value is its level."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from semel.ledgers.postgres import migrations
from semel.ledgers.postgres.statements import SCHEMA
from semel.ledgers.postgres.url import Options

if TYPE_CHECKING:
    from semel.ledgers.postgres.pool import Connection

VERSION_MIN = 140_000  # TID range scans, and statistics that inserts keep current
CLOCK_MS = 2_000  # a larger difference is not the duration of the query
CONNECTIONS_MAX = 0.8  # share of the server's connections that one process may use

COMMIT = {
    "on": "on",
    "remote_apply": "remote_apply: a synchronous replica has applied every answered write",
    "remote_write": "warning: remote_write: a replica's operating system has the write, its disk may not: if both "
    "machines lose power, the newest answers may be lost",
    "local": "warning: local: on this server's disk only; a failover may lose the newest answers",
    "off": "error: off may lose the newest answers when the server crashes: set it to on for this database or user",
}

Fact = tuple[str, str]


async def facts(connection: Connection, options: Options) -> list[Fact]:
    """Return the facts on a separate connection, with or without a schema."""
    started = time.time_ns() // 1_000_000
    row = await connection.fetchrow(
        "select current_setting('server_version_num')::integer, current_setting('server_version'), "
        "current_setting('synchronous_commit'), current_setting('fsync'), current_setting('full_page_writes'), "
        "pg_is_in_recovery(), current_setting('max_connections')::integer, "
        "current_setting('synchronous_standby_names'), "
        "floor(extract(epoch from clock_timestamp()) * 1000)::bigint, current_setting('transaction_read_only'), "
        "current_setting('wal_compression'), $1 = any (current_schemas(false))",
        options.schema,
    )
    assert row is not None
    number, version, commit, fsync, pages, standby, most, replicas, now, read_only, packed, in_path = row
    too_old = "" if number >= VERSION_MIN else "error: 14 or later is needed: "
    return [
        ("server", options.where),
        ("PostgreSQL", f"{too_old}{version}"),
        ("writable", _writable(standby, read_only)),
        ("synchronous_commit", COMMIT.get(commit, commit)),
        ("synchronous replicas", replicas or "none: a failover may lose the newest answers"),
        (
            "fsync",
            "on" if fsync == "on" else "error: off: a power loss may destroy the database",
        ),
        ("full_page_writes", "on" if pages == "on" else "error: off: a power loss may destroy the database"),
        ("wal_compression", "off: on makes millions of keys cheaper to write" if packed == "off" else packed),
        ("schema", await _schema(connection, options)),
        ("search path", _search_path(options.schema, in_path)),
        ("clock", _clock(now, started, time.time_ns() // 1_000_000)),
        ("pool", _pool(options, most)),
        *await _sizes(connection, options.schema),
    ]


def _writable(standby: bool, read_only: str) -> str:
    if standby:
        return "error: this server is a replica: connect to the primary (target_session_attrs=primary)"
    return "error: transactions are read only here (default_transaction_read_only)" if read_only == "on" else "yes"


async def _schema(connection: Connection, options: Options) -> str:
    found = await migrations.version(connection, options.schema)
    if found is None:
        return f'error: this user may not use the schema "{options.schema}"'
    if found < len(SCHEMA):
        return f'error: "{options.schema}" has version {found} of {len(SCHEMA)}: run `semel migrate`'
    if found > len(SCHEMA):
        return f'error: "{options.schema}" has version {found}, newer than this Semel ({len(SCHEMA)})'
    return f'"{options.schema}", version {found}'


def _search_path(schema: str, found: bool) -> str:
    if not found:
        return "does not contain the ledger's schema"
    return (
        f'warning: it contains the ledger\'s schema "{schema}": tables that this user creates without a schema go '
        "there, except in ctx.tx. Use another user for the ledger, or schema=NAME in its URL"
    )


def _clock(server: int, before: int, after: int) -> str:
    """Leases use the server's clock. Another time here affects displayed times, and retries on other machines."""
    apart = max(before - server, server - after, 0)
    return f"warning: {apart / 1000:,.1f} s apart from this machine" if apart > CLOCK_MS else "agrees with this machine"


def _pool(options: Options, most: int) -> str:
    ours = options.pool + options.transactions + 5
    warning = "warning: " if ours > most * CONNECTIONS_MAX else ""
    return f"{warning}at most {ours} connections of this process; the server allows {most}"


async def _sizes(connection: Connection, schema: str) -> list[Fact]:
    rows = await connection.fetch(
        "select c.relname, pg_total_relation_size(c.oid), greatest(c.reltuples, 0)::bigint "
        "from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = $1 and c.relkind = 'r' and c.relname in ('key', 'letter', 'inbox') order by 1",
        schema,
    )
    return [(f"table {name}", f"{size:,} bytes, about {count:,} rows") for name, size, count in rows]
