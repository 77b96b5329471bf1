"""What a type checker makes of `outbox.add`: an answer where the connection is sync, else an awaitable of one."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable
from typing import Any, assert_type, get_overloads

import aiosqlite
import apsw
import asyncpg
import psycopg
from asyncpg.pool import PoolConnectionProxy
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session
from tests.outbox.adding.places import notification

from semel import outbox
from semel.values.outbox import Added


def at_once(
    a: apsw.Connection, b: sqlite3.Connection, c: psycopg.Connection[dict[str, Any]], d: Session, e: Connection
) -> None:
    """Never run: mypy reads it."""
    assert_type(outbox.add(a, notification()), Added)
    assert_type(outbox.add(b, notification()), Added)
    assert_type(outbox.add(c, notification()), Added)
    assert_type(outbox.add(d, notification()), Added)
    assert_type(outbox.add_many(e, [notification()]), list[Added])


async def awaited(
    a: asyncpg.Connection,
    b: PoolConnectionProxy,
    c: psycopg.AsyncConnection,
    d: aiosqlite.Connection,
    e: AsyncSession,
    f: AsyncConnection,
) -> None:
    """Never run: mypy reads it."""
    assert_type(outbox.add(a, notification()), Awaitable[Added])
    assert_type(await outbox.add(b, notification()), Added)
    assert_type(await outbox.add(c, notification()), Added)
    assert_type(await outbox.add(d, notification()), Added)
    assert_type(await outbox.add(e, notification()), Added)
    assert_type(await outbox.add_many(f, [notification()]), list[Added])


def test_each_road_is_told_apart() -> None:
    assert len(get_overloads(outbox.add)) == len(get_overloads(outbox.add_many)) == 2
