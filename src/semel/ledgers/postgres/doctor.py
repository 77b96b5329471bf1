"""Facts about the store, for `semel doctor`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from semel.ledgers.postgres import migrations
from semel.ledgers.postgres.url import Options
from semel.ports import Fact

if TYPE_CHECKING:
    from semel.ledgers.postgres.pool import Connection

VERSION_MIN = 140_000  # TID range scans, and statistics that inserts keep current
CLOCK_MS = 2_000  # a larger difference is not the duration of the query
CONNECTIONS_MAX = 0.8  # share of the server's connections that one process may use

COMMIT = {
    "remote_apply": Fact("synchronous_commit", "remote_apply: a synchronous replica has applied every answered write"),
    "remote_write": Fact(
        "synchronous_commit",
        "remote_write: a replica's operating system has the write, its disk may not: if both machines lose power, "
        "the newest answers may be lost",
        "warning",
    ),
    "local": Fact(
        "synchronous_commit", "local: on this server's disk only; a failover may lose the newest answers", "warning"
    ),
    "off": Fact(
        "synchronous_commit",
        "off may lose the newest answers when the server crashes: set it to on for this database or user",
        "error",
    ),
}


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
    too_old = number < VERSION_MIN
    return [
        Fact("server", options.where),
        Fact("PostgreSQL", f"14 or later is needed: {version}", "error") if too_old else Fact("PostgreSQL", version),
        _writable(standby, read_only),
        COMMIT.get(commit) or Fact("synchronous_commit", commit),
        Fact("synchronous replicas", replicas or "none: a failover may lose the newest answers"),
        _must_be_on("fsync", fsync),
        _must_be_on("full_page_writes", pages),
        Fact("wal_compression", "off: on makes millions of keys cheaper to write" if packed == "off" else packed),
        await _schema(connection, options),
        _search_path(options.schema, in_path),
        _clock(now, started, time.time_ns() // 1_000_000),
        _pool(options, most),
        *await _sizes(connection, options.schema),
    ]


def _must_be_on(name: str, setting: str) -> Fact:
    return Fact(name, "on") if setting == "on" else Fact(name, "off: a power loss may destroy the database", "error")


def _writable(standby: bool, read_only: str) -> Fact:
    if standby:
        replica = "this server is a replica: connect to the primary (target_session_attrs=primary)"
        return Fact("writable", replica, "error")
    if read_only == "on":
        return Fact("writable", "transactions are read only here (default_transaction_read_only)", "error")
    return Fact("writable", "yes")


async def _schema(connection: Connection, options: Options) -> Fact:
    number = await migrations.version(connection, options.schema)
    if problem := migrations.problem(number, options.schema):
        return Fact("schema", problem, "error")
    return Fact("schema", f'"{options.schema}", version {number}')


def _search_path(schema: str, found: bool) -> Fact:
    if not found:
        return Fact("search path", "does not contain the ledger's schema")
    return Fact(
        "search path",
        f'it contains the ledger\'s schema "{schema}": tables that this user creates without a schema go there, '
        "except in ctx.tx. Use another user for the ledger, or schema=NAME in its URL",
        "warning",
    )


def _clock(server: int, before: int, after: int) -> Fact:
    """Leases use the server's clock. Another time here affects displayed times, and retries on other machines."""
    apart = max(before - server, server - after, 0)
    if apart > CLOCK_MS:
        return Fact("clock", f"{apart / 1000:,.1f} s apart from this machine", "warning")
    return Fact("clock", "agrees with this machine")


def _pool(options: Options, most: int) -> Fact:
    ours = options.pool + options.transactions + 5
    value = f"at most {ours} connections of this process; the server allows {most}"
    return Fact("pool", value, "warning" if ours > most * CONNECTIONS_MAX else "info")


async def _sizes(connection: Connection, schema: str) -> list[Fact]:
    rows = await connection.fetch(
        "select c.relname, pg_total_relation_size(c.oid), greatest(c.reltuples, 0)::bigint "
        "from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = $1 and c.relkind = 'r' and c.relname in ('key', 'dead_letter', 'inbox') order by 1",
        schema,
    )
    return [Fact(f"table {name}", f"{size:,} bytes, about {count:,} rows") for name, size, count in rows]
