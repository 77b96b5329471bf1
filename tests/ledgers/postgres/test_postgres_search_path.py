"""A role whose name is the ledger's schema finds the ledger's tables through "$user": the user's own stay apart."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.facts import rendered
from tests.ledgers.postgres.opening import connected, opened

from semel import Context, Event, Notification, Semel
from semel.values.errors import ConfigError

SAID: Any = {"kind": "shipping", "recipient": "+4917012345678", "channel": "sms", "body": "On its way"}


@pytest.fixture
def own_schema(empty_database: str) -> str:
    """A schema with the name of the role that uses it, as with postgresql://semel@… and the default schema."""
    return urlsplit(empty_database).username or "postgres"


def test_tables_of_a_handler_are_not_created_in_the_ledgers_schema(empty_database: str, own_schema: str) -> None:
    url = f"{empty_database}?schema={own_schema}"

    async def run() -> None:
        async with opened(url) as ledger:
            await ledger.migrate()
        app = Semel(url)

        @app.on("order", effect="transaction")
        async def handle(event: Event, ctx: Context) -> None:
            await ctx.tx.execute("create table if not exists notification (text text); create table orders (n integer)")
            await ctx.tx.execute("insert into notification values ('mine')")
            ctx.notify(key="order-1", **SAID)

        try:
            outcome = await app.process({"id": "1", "type": "order", "data": {}})
            assert outcome.status == "done", outcome
            shown = await app.outbox.show(Notification(key="order-1", **SAID).id)
            assert shown is not None
        finally:
            await app.close()
        async with connected(empty_database) as connection:
            assert await connection.fetchval("select text from public.notification") == "mine"
            ours = "select count(*) from pg_tables where schemaname = $1 and tablename = 'orders'"
            assert await connection.fetchval(ours, own_schema) == 0
            assert await connection.fetchval(f'select count(*) from "{own_schema}".notification') == 1

    asyncio.run(run())


def test_the_search_path_of_a_handler_is_its_own_where_the_ledger_is_not_in_it(fresh_url: str) -> None:
    async def run() -> None:
        async with connected(fresh_url) as connection:
            name = await connection.fetchval("select current_database()")
            await connection.execute(f'create schema shop; alter database "{name}" set search_path = shop, public')
        app = Semel(fresh_url)
        paths: list[str] = []

        @app.on("order", effect="transaction")
        async def handle(event: Event, ctx: Context) -> None:
            paths.append(await ctx.tx.fetchval("show search_path"))

        try:
            assert (await app.process({"id": "1", "type": "order", "data": {}})).status == "done"
        finally:
            await app.close()
        assert paths == ["shop, public"]

    asyncio.run(run())


def test_every_function_has_a_search_path_of_its_own(fresh_url: str) -> None:
    async def run() -> None:
        async with connected(fresh_url) as connection:
            rows = await connection.fetch(
                "select p.proname, coalesce(array_to_string(p.proconfig, ' '), '') from pg_proc p "
                "join pg_language l on l.oid = p.prolang "
                "where p.pronamespace = 'semel'::regnamespace and l.lanname = 'plpgsql'"
            )
        assert len(rows) > 10
        assert [name for name, settings in rows if "search_path=pg_catalog, pg_temp" not in settings] == []

    asyncio.run(run())


def test_operators_of_the_caller_do_not_change_what_is_added(fresh_url: str) -> None:
    """`=` over bytea that is always true, in front of PostgreSQL's: every notification would be known already."""

    async def run() -> None:
        async with opened(fresh_url) as ledger, connected(fresh_url) as shop:
            first, second = (Notification(key=key, **SAID) for key in ("a", "b"))
            await ledger.outbox.add([first])
            await shop.execute(
                "create function public.always(bytea, bytea) returns boolean language sql as 'select true'; "
                "create operator public.= (leftarg = bytea, rightarg = bytea, function = public.always); "
                "set search_path = public, pg_catalog"
            )
            from semel import outbox

            async with shop.transaction():
                added = await outbox.add_many(shop, [first, second])
            assert [one.status for one in added] == ["known", "added"]
            assert (await ledger.outbox.status("", key="b")).answer == "pending"

    asyncio.run(run())


def test_a_schema_with_other_tables_is_refused(empty_database: str, own_schema: str) -> None:
    async def run() -> None:
        async with connected(empty_database) as connection:
            await connection.execute(
                f'create schema "{own_schema}"; create table "{own_schema}".notification (n integer)'
            )
        async with opened(f"{empty_database}?schema={own_schema}") as ledger:
            with pytest.raises(ConfigError, match=r"\?schema=NAME"):
                await ledger.migrate()
        async with connected(empty_database) as connection:
            assert await connection.fetchval(f'select count(*) from "{own_schema}".notification') == 0

    asyncio.run(run())


def test_the_doctor_warns_if_the_search_path_contains_the_ledgers_schema(empty_database: str, own_schema: str) -> None:
    async def run() -> None:
        for schema, warned in ((own_schema, True), ("semel_apart", False)):
            async with opened(f"{empty_database}?schema={schema}") as ledger:
                await ledger.migrate()
                assert rendered(await ledger.diagnose())["search path"].startswith("warning: ") is warned

    asyncio.run(run())
