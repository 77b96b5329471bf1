"""The URL, the schema and its versions, and the facts for the doctor."""

from __future__ import annotations

import asyncio
import re
import sys
from urllib.parse import urlsplit

import asyncpg
import pytest
from tests.facts import rendered
from tests.ledgers.postgres.opening import SOON_S, connected, granted, keys, opened
from tests.support.servers.postgres import PostgresServer
from tests.support.servers.process import free_port

from semel.ledgers.postgres import PostgresLedger, migrations, profiles
from semel.ledgers.postgres.statements import STEPS, statements
from semel.ledgers.postgres.url import LIMITS, parse
from semel.values.claim import Granted, Settlement
from semel.values.errors import ConfigError, LedgerUnavailable, SemelError
from semel.values.outcome import Done

SECRET = "hunter2-hunter2"


# ------------------------------------------------------------------------------------------------------------- URL


def test_options_are_read_from_the_url() -> None:
    options = parse("postgres://me:pw@db.example:5433/shop?pool=3&schema=once&timeout=2.5&sslmode=require")
    assert (options.pool, options.schema, options.timeout) == (3, "once", 2.5)
    assert ("db.example:5433" in options.where, "shop" in options.where) == (True, True)
    assert options.dsn == "postgresql://me:pw@db.example:5433/shop?sslmode=require"


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("polo=3", r"'polo'.*schema.*pool.*sslmode"),
        ("pool=0", r"pool='0'.*\b1\b.*\b1000\b"),
        ("pool=3.5", r"pool='3\.5'"),
        ("pool=", r"pool=''"),
        ("pool=٣", r"pool="),
        ("timeout=nan", r"timeout='nan'"),
        ("schema=public", r"schema='public'"),
        ("schema=pg_x", r"schema='pg_x'"),
        ('schema=a"b', r"schema="),
        ("schema=A", r"schema='A'"),
    ],
)
def test_a_wrong_url_is_explained(query: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        PostgresLedger.from_url(f"postgresql://me:{SECRET}@h/db?{query}")


def test_every_number_has_limits_and_a_default_within_them() -> None:
    defaults = parse("postgresql://h/db")
    for name, (least, most) in LIMITS.items():
        assert least <= getattr(defaults, name) <= most


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@h/db?polo=1",
        f"postgresql://me:{SECRET}@h/db?pool=x",
        f"postgresql://me:{SECRET}@[h/db",
        f"http://me:{SECRET}@h/db",
        f"postgresql://me:{SECRET}@127.0.0.1:CLOSED/db",
        f"postgresql://127.0.0.1:CLOSED/db?user=me&password={SECRET}",
        f"postgresql://me:{SECRET}@127.0.0.1:notaport/db",
        f"postgresql://me:{SECRET}@127.0.0.1/db?sslmode=odd",
        f"postgresql://me:/{SECRET}@h/db",
        f"postgresql://me:a/{SECRET}@h/db",
        f"postgresql://me:1/{SECRET}@h/db?pool=1",
        f"postgresql://me:a?{SECRET}@h/db",
        f"postgresql://me:a#{SECRET}@h/db",
        f"postgresql://me:{SECRET}/db",
        f"postgresql://h/db?{SECRET}=1",
    ],
)
def test_the_password_is_never_shown(url: str) -> None:
    with pytest.raises(SemelError) as caught:
        asyncio.run(_use(url.replace("CLOSED", str(free_port()))))  # workers have to agree on the names of tests
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r}"
        error = error.__cause__


def test_the_password_is_not_in_the_ledgers_name_either(url: str) -> None:
    ledger = PostgresLedger.from_url(f"postgresql://me:{SECRET}@h/db")
    assert SECRET not in f"{ledger!r} {ledger.traits} {ledger._options!r} {ledger._options}"
    wrong = re.sub(r"//[^:]+:[^@]+@", f"//semel:{SECRET}@", url)
    with pytest.raises(LedgerUnavailable, match="password") as caught:
        asyncio.run(_use(wrong))
    assert SECRET not in str(caught.value)


def test_a_missing_database_is_reported(postgres: PostgresServer) -> None:
    with pytest.raises(LedgerUnavailable, match="database"):
        asyncio.run(_use(postgres.url("nowhere")))


async def _use(url: str) -> None:
    async with opened(url) as ledger:
        await ledger.claim([keys().claim("a")])


def test_nothing_is_opened_before_it_is_used() -> None:
    ledger = PostgresLedger.from_url(f"postgresql://127.0.0.1:{free_port()}/db")
    asyncio.run(ledger.close())


def test_a_missing_driver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigError, match=re.escape("semel[postgres]")):
        PostgresLedger.from_url("postgresql://h/db")


def test_without_prepared_statements_it_works_too(url: str) -> None:
    async def run() -> None:
        async with opened(url, "?statement_cache=0") as ledger:
            (one,) = await granted(ledger, [keys().claim("a", aliases=["x"], subject="s")])
            assert await ledger.settle([Settlement(one.lease, Done())]) == [True]

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------------ migrations


def test_a_database_without_our_schema_is_refused_and_can_be_migrated(empty_database: str) -> None:
    async def run() -> None:
        async with opened(empty_database) as ledger:
            with pytest.raises(ConfigError, match="semel migrate"):
                await ledger.claim([keys().claim("a")])
            assert len(await ledger.pending()) == len(STEPS)
            assert [step.split()[-1] for step in await ledger.migrate()] == [*STEPS]
            assert await ledger.pending() == []
            assert await ledger.migrate() == []
            await granted(ledger, [keys().claim("a")])

    asyncio.run(run())


def test_concurrent_migrators_run_every_step_once(empty_database: str) -> None:
    async def migrate() -> list[str]:
        async with opened(empty_database) as ledger:
            return await ledger.migrate()

    async def run() -> None:
        done = [step for steps in await asyncio.gather(*[migrate() for _ in range(5)]) for step in steps]
        assert len(done) == len(set(done)) == len(STEPS)
        async with connected(empty_database) as connection:
            found = await connection.fetch("select version, name from semel.migration order by version")
            assert [tuple(row) for row in found] == list(enumerate(STEPS, 1))

    asyncio.run(run())


def test_a_migration_waits_for_a_table_lock_and_retries(empty_database: str) -> None:
    """Another transaction holds the table for longer than one lock timeout."""

    async def run() -> None:
        async with opened(empty_database) as ledger, connected(empty_database) as other:
            await other.execute("create schema semel; create table semel.migration (version int, name text)")
            blocking = other.transaction()
            await blocking.start()
            await other.execute("lock table semel.migration in access exclusive mode")
            migrating = asyncio.create_task(ledger.migrate())
            await asyncio.sleep(1.3)
            assert not migrating.done()
            await blocking.rollback()
            async with asyncio.timeout(SOON_S):
                assert len(await migrating) == len(STEPS)

    asyncio.run(run())


def test_an_older_schema_is_refused_until_it_is_migrated(fresh_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STEPS, "002_next", ())
    monkeypatch.setattr(migrations, "step_sql", lambda step, schema: f'create table "{schema}".next ()')

    async def run() -> None:
        async with opened(fresh_url) as ledger:
            with pytest.raises(ConfigError, match=r"has version 1, this Semel needs 2: run `semel migrate`"):
                await ledger.claim([keys().claim("a")])
            assert await ledger.pending() == ['schema "semel": 002_next']
            assert await ledger.migrate() == ['schema "semel": 002_next']
            await granted(ledger, [keys().claim("a")])

    asyncio.run(run())


@pytest.mark.parametrize("versions", [1, 8])
def test_a_schema_of_an_unreleased_version_is_refused_with_what_to_do(empty_database: str, versions: int) -> None:
    async def run() -> None:
        async with connected(empty_database) as connection, opened(empty_database) as ledger:
            await connection.execute(
                "create schema semel; create table semel.migration (version integer primary key, name text);"
                "insert into semel.migration values (1, '001_ledger.sql')"
            )
            for version in range(2, versions + 1):
                await connection.execute("insert into semel.migration values ($1, 'x')", version)
            for use in (ledger.claim([keys().claim("a")]), ledger.pending(), ledger.migrate()):
                with pytest.raises(ConfigError, match=r"unreleased.*drop schema \"semel\" cascade.*`semel migrate`"):
                    await use
            facts = rendered(await ledger.diagnose())
            assert facts["schema"].startswith("error: ")
            await connection.execute("drop schema semel cascade")
            await ledger.migrate()
            await granted(ledger, [keys().claim("a")])

    asyncio.run(run())


def test_a_newer_schema_is_refused(fresh_url: str) -> None:
    async def run() -> None:
        async with connected(fresh_url) as connection, opened(fresh_url) as ledger:
            await connection.execute("insert into semel.migration values ($1, 'x')", len(STEPS) + 1)
            for use in (ledger.claim([keys().claim("a")]), ledger.migrate(), ledger.pending()):
                with pytest.raises(ConfigError, match=rf"\b{len(STEPS) + 1}\b"):
                    await use

    asyncio.run(run())


def test_a_user_without_privileges_gets_the_grants_to_run(fresh_url: str, postgres: PostgresServer) -> None:
    async def run() -> None:
        async with connected(fresh_url) as connection:
            await connection.execute("drop role if exists stranger; create role stranger login password 'x'")
        place = urlsplit(fresh_url)
        async with opened(f"postgresql://stranger:x@{place.hostname}:{place.port}{place.path}") as ledger:
            with pytest.raises(ConfigError, match="grant usage"):
                await ledger.claim([keys().claim("a")])

    if postgres.is_given:
        pytest.skip("roles of a given server are not ours to make")
    asyncio.run(run())


def test_several_ledgers_share_a_database_in_their_own_schemas(empty_database: str) -> None:
    async def run() -> None:
        claim = keys().claim("a")
        for name in ("one", "two"):
            async with opened(empty_database, f"?schema={name}") as ledger:
                await ledger.migrate()
                assert isinstance((await ledger.claim([claim]))[0], Granted)
        async with connected(empty_database) as connection:
            assert await connection.fetchval("select count(*) from pg_namespace where nspname = 'semel'") == 0
            tables = "select count(*) from pg_tables where schemaname in ('public', 'one', 'two') group by schemaname"
            assert len(await connection.fetch(tables)) == 2, "nothing stands in anybody else's schema"

    asyncio.run(run())


def test_nothing_depends_on_the_search_path_or_on_the_users_defaults(fresh_url: str) -> None:
    async def run() -> None:
        async with connected(fresh_url) as connection:
            name = await connection.fetchval("select current_database()")
            await connection.execute(f'alter database "{name}" set search_path = nowhere')
            await connection.execute(f"alter database \"{name}\" set default_transaction_isolation = 'serializable'")
        async with opened(fresh_url) as ledger:
            claims = [keys().claim("a", aliases=["x"], subject="s"), *keys().claims(3)]
            leases = [one.lease for one in await granted(ledger, claims)]
            assert all(await ledger.settle([Settlement(lease, Done()) for lease in leases]))
            await ledger.purge(10)
            assert (await ledger.counts())["done"] == 4

    asyncio.run(run())


def test_every_statement_can_be_prepared(url: str) -> None:
    async def run() -> None:
        async with connected(url) as connection:
            for name, sql in statements().items():
                try:
                    await connection.prepare(sql)
                except asyncpg.PostgresError as error:
                    raise AssertionError(f"{name}: {error}") from error

    asyncio.run(run())


# ---------------------------------------------------------------------------------------------------------- doctor


def test_the_doctor_reports_wrong_server_settings(url: str, postgres: PostgresServer) -> None:
    ((fsync,),) = postgres.execute("show fsync")

    async def run() -> None:
        async with opened(url) as ledger:
            facts = rendered(await ledger.diagnose())
            assert facts["fsync"].startswith("error: ") == (fsync == "off")
            assert facts["writable"] == "yes"
            assert facts["synchronous_commit"] == "on"
            assert ("semel" in facts["schema"], str(len(STEPS)) in facts["schema"]) == (True, True)
            assert not facts["clock"].startswith(("error: ", "warning: "))
            assert "table key" in facts
        async with opened(url, "?pool=1000") as ledger:
            assert rendered(await ledger.diagnose())["pool"].startswith("warning: ")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("setting", "fact", "told"),
    [
        ("synchronous_commit = off", "synchronous_commit", "error: off"),
        ("synchronous_commit = local", "synchronous_commit", "warning: local"),
        ("default_transaction_read_only = on", "writable", "error: "),
    ],
)
def test_the_doctor_sees_settings_of_the_database(fresh_url: str, setting: str, fact: str, told: str) -> None:
    async def run() -> None:
        async with connected(fresh_url) as connection:
            name = await connection.fetchval("select current_database()")
            await connection.execute(f'alter database "{name}" set {setting}')
        async with opened(fresh_url) as ledger:
            assert rendered(await ledger.diagnose())[fact].startswith(told)

    asyncio.run(run())


def test_the_doctor_reports_a_missing_schema_and_a_missing_server(empty_database: str) -> None:
    async def run() -> None:
        async with opened(empty_database) as ledger:
            assert "semel migrate" in rendered(await ledger.diagnose())["schema"]
        async with opened(f"postgresql://127.0.0.1:{free_port()}/db") as ledger:
            assert rendered(await ledger.diagnose())["readable"].startswith("error: ")

    asyncio.run(run())


def test_a_read_only_database_is_unavailable(fresh_url: str) -> None:
    async def run() -> None:
        async with connected(fresh_url) as connection:
            name = await connection.fetchval("select current_database()")
            await connection.execute(f'alter database "{name}" set default_transaction_read_only = on')
        async with opened(fresh_url) as ledger:
            with pytest.raises(LedgerUnavailable, match="read"):
                await ledger.claim([keys().claim("a")])

    asyncio.run(run())


def test_profiles_name_what_may_be_lost() -> None:
    alone, replicated, forgetful = profiles()
    assert alone.loses.failover
    assert alone.loses.tokens_go_back
    assert not replicated.loses.failover
    assert not replicated.loses.tokens_go_back
    assert forgetful.loses.power_loss
    assert forgetful.caveat
    assert len({traits.name for traits in profiles()}) == 3
