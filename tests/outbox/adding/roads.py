"""Every kind of connection that somebody may have, in one shape: begun, written to, ended."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, TypeAlias

import aiosqlite
import apsw
import asyncpg
import psycopg
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from semel import outbox
from semel.values.notification import Notification
from semel.values.outbox import Added

NO_CHECKPOINTS = "pragma wal_autocheckpoint = 0"


@dataclass
class Customer:
    """A connection in a transaction, with what its driver needs to write and to end it."""

    connection: Any
    sql: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]

    async def write(self, sql: str) -> None:
        await done(self.sql(sql))

    async def add(self, *notifications: Notification) -> list[Added]:
        added: list[Added] = await done(outbox.add_many(self.connection, notifications))
        return added

    async def end(self, *, commit: bool) -> None:
        await done(self.commit() if commit else self.rollback())


Road: TypeAlias = Callable[[str], AbstractAsyncContextManager[Customer]]


async def done(value: Any) -> Any:
    return await value if isawaitable(value) else value


# ------------------------------------------------------------------------------------------------------ PostgreSQL


@asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[Customer]:
    connection = await asyncpg.connect(url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        yield Customer(connection, connection.execute, transaction.commit, transaction.rollback)
    finally:
        await connection.close()


@asynccontextmanager
async def by_asyncpg_pool(url: str) -> AsyncIterator[Customer]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Customer(connection, connection.execute, transaction.commit, transaction.rollback)


@asynccontextmanager
async def by_psycopg(url: str) -> AsyncIterator[Customer]:
    connection: Any = psycopg.connect(url)
    try:
        yield Customer(connection, connection.execute, connection.commit, connection.rollback)
    finally:
        connection.close()


@asynccontextmanager
async def by_psycopg_async(url: str) -> AsyncIterator[Customer]:
    connection: Any = await psycopg.AsyncConnection.connect(url)
    try:
        yield Customer(connection, connection.execute, connection.commit, connection.rollback)
    finally:
        await connection.close()


def by_session(driver: str) -> Road:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Customer]:
        engine = engine_of(driver, url)
        try:
            with Session(engine) as session:
                yield Customer(session, lambda sql: session.execute(text(sql)), session.commit, session.rollback)
        finally:
            engine.dispose()

    return opened


def by_scoped_session(driver: str) -> Road:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Customer]:
        engine = engine_of(driver, url)
        session = scoped_session(sessionmaker(engine))
        try:
            yield Customer(session, lambda sql: session.execute(text(sql)), session.commit, session.rollback)
        finally:
            session.remove()
            engine.dispose()

    return opened


def by_engine(driver: str) -> Road:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Customer]:
        engine = engine_of(driver, url)
        try:
            with engine.connect() as connection:
                run = lambda sql: connection.execute(text(sql))  # noqa: E731
                yield Customer(connection, run, connection.commit, connection.rollback)
        finally:
            engine.dispose()

    return opened


def by_async_session(driver: str) -> Road:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Customer]:
        engine = async_engine_of(driver, url)
        try:
            async with AsyncSession(engine) as session:
                yield Customer(session, lambda sql: session.execute(text(sql)), session.commit, session.rollback)
        finally:
            await engine.dispose()

    return opened


def by_async_engine(driver: str) -> Road:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Customer]:
        engine = async_engine_of(driver, url)
        try:
            async with engine.connect() as connection:
                run = lambda sql: connection.execute(text(sql))  # noqa: E731
                yield Customer(connection, run, connection.commit, connection.rollback)
        finally:
            await engine.dispose()

    return opened


def engine_of(driver: str, url: str, **options: Any) -> Any:
    engine = create_engine(_address(driver, url), **options)
    if driver.startswith("sqlite"):
        event.listen(engine, "connect", _leave_checkpoints)
    return engine


def async_engine_of(driver: str, url: str, **options: Any) -> Any:
    engine = create_async_engine(_address(driver, url), **options)
    if driver.startswith("sqlite"):
        event.listen(engine.sync_engine, "connect", _leave_checkpoints)
    return engine


def _address(driver: str, url: str) -> str:
    return f"{driver}:///{url}" if driver.startswith("sqlite") else url.replace("postgresql:", f"{driver}:", 1)


def _leave_checkpoints(connection: Any, record: object) -> None:
    cursor = connection.cursor()
    cursor.execute(NO_CHECKPOINTS)
    cursor.close()


# ---------------------------------------------------------------------------------------------------------- SQLite


@asynccontextmanager
async def by_apsw(path: str) -> AsyncIterator[Customer]:
    connection = apsw.Connection(path)
    try:
        connection.set_busy_timeout(20_000)
        connection.execute("begin")
        end = connection.execute
        yield Customer(connection, connection.execute, lambda: end("commit"), lambda: end("rollback"))
    finally:
        connection.close()


@asynccontextmanager
async def by_sqlite3(path: str) -> AsyncIterator[Customer]:
    connection = sqlite3.connect(path)
    try:
        connection.execute(NO_CHECKPOINTS)
        yield Customer(connection, connection.execute, connection.commit, connection.rollback)
    finally:
        connection.close()


@asynccontextmanager
async def by_aiosqlite(path: str) -> AsyncIterator[Customer]:
    async with aiosqlite.connect(path) as connection:
        await connection.execute(NO_CHECKPOINTS)
        yield Customer(connection, connection.execute, connection.commit, connection.rollback)


POSTGRES: dict[str, Road] = {
    "asyncpg": by_asyncpg,
    "asyncpg pool": by_asyncpg_pool,
    "psycopg": by_psycopg,
    "psycopg async": by_psycopg_async,
    "session on psycopg": by_session("postgresql+psycopg"),
    "connection on psycopg": by_engine("postgresql+psycopg"),
    "async session on psycopg": by_async_session("postgresql+psycopg"),
    "async session on asyncpg": by_async_session("postgresql+asyncpg"),
    "async connection on asyncpg": by_async_engine("postgresql+asyncpg"),
}
SQLITE: dict[str, Road] = {
    "apsw": by_apsw,
    "sqlite3": by_sqlite3,
    "aiosqlite": by_aiosqlite,
    "session on sqlite3": by_session("sqlite+pysqlite"),
    "scoped session on sqlite3": by_scoped_session("sqlite+pysqlite"),
    "connection on sqlite3": by_engine("sqlite+pysqlite"),
    "async session on aiosqlite": by_async_session("sqlite+aiosqlite"),
    "async connection on aiosqlite": by_async_engine("sqlite+aiosqlite"),
}
