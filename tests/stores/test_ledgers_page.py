"""docs/ledgers.md, held to the code and to a real server."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.stores.commands import semel
from tests.support.servers.postgres import PostgresServer

from semel import Context, Event, Semel, wiring
from semel.ledgers.dynamodb import url as dynamodb_address
from semel.ledgers.postgres import url as postgres_options
from semel.ledgers.redis import url as redis_address
from semel.settings.loading import load

PAGE = (Path(__file__).parent.parent.parent / "docs" / "ledgers.md").read_text("utf-8")


def section(title: str) -> str:
    """The text below a heading, up to the next one."""
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("title", "options"),
    [
        ("SQLite", ("synchronous",)),
        ("PostgreSQL", ("schema", *postgres_options.LIMITS, *postgres_options.DRIVERS_OWN)),
        ("Redis and Valkey", (*redis_address.KNOWN, *redis_address.TLS)),
        ("DynamoDB", dynamodb_address.OPTIONS),
    ],
)
def test_every_option_of_a_url_is_described(title: str, options: tuple[str, ...]) -> None:
    assert [name for name in options if f"`{name}`" not in section(title)] == []


def test_defaults_are_those_of_the_code() -> None:
    for name in postgres_options.LIMITS:
        default = getattr(postgres_options.Options("dsn"), name)
        assert f"| `{name}` | {default:g} |" in section("PostgreSQL")
    ours = redis_address.parse_url("redis://host")
    for name, default in (("strict", ours.strict), ("timeout", f"{ours.timeout_s:g}"), ("pool", ours.pool)):
        assert f"| `{name}` | {default} |" in section("Redis and Valkey")
    table = dynamodb_address.parse("dynamodb://table")
    assert f"| `concurrency` | {table.concurrency} |" in section("DynamoDB")
    assert f"| `margin_ms` | {table.margin_ms} |" in section("DynamoDB")


def test_every_scheme_is_described() -> None:
    for example in wiring.SCHEMES:
        assert f"{example.partition('://')[0]}://" in PAGE


def test_its_settings_can_be_loaded(tmp_path: Path) -> None:
    environ = {
        "DATABASE_URL": "postgresql://db/app",
        "PGPASSWORD": "x",
        "DEAD_LETTERS_URL": "postgresql://db/dead_letters",
    }
    (tmp_path / "redis-password").write_text("x")
    for block in blocks("toml"):
        lines = [line for line in block.splitlines() if "ledger = " in line]
        for line in lines:
            others = [other for other in block.splitlines() if other not in lines]
            (tmp_path / "semel.toml").write_text("\n".join([line.removeprefix("# "), *others]), "utf-8")
            load(tmp_path / "semel.toml", environ)


def test_the_service_needs_no_more_rights_than_the_page_gives_it(postgres: PostgresServer, database: str) -> None:
    name = database.rpartition("/")[2]
    (sql,) = blocks("sql")
    statements = [statement.strip() for statement in sql.split(";") if statement.strip()]
    roles = ("semel_owner", "semel_service")
    try:
        postgres.execute(*statements, database=name)
        owner, service = (
            re.sub(r"//[^@]*@", f"//{role}:{password}@", database)
            for role, password in zip(roles, ("choose%20one", "choose%20another"), strict=True)
        )
        refused = semel("migrate", "--ledger", service)
        assert refused.code == 2, "a service cannot migrate"
        assert semel("migrate", "--ledger", owner).code == 0
        assert asyncio.run(use(service)) == ["done", "duplicate", "dead"]
        for command in (("status",), ("events", "list"), ("dead", "list"), ("purge",)):
            assert semel(*command, "--ledger", service).code == 0
        replay = ("dead", "replay", "--all", "--reason", "x", "--yes")
        assert semel(*replay, "--ledger", service, "--json").json["replayed"] == 1
        assert semel("status", "--ledger", service, "--json").json["states"]["accepted"] == 1
    finally:
        postgres.execute("drop schema if exists semel cascade", "drop owned by semel_owner", database=name)
        postgres.execute(*[f"drop role if exists {role}" for role in roles], database=name)


async def use(url: str) -> list[str]:
    app = Semel(url, origin="test")

    @app.on("fine", effect="transaction")
    async def fine(event: Event, ctx: Context) -> None:
        await ctx.tx.execute("select 1")

    @app.on("bad", max_attempts=1)
    async def bad(event: Event, ctx: Context) -> None:
        raise ValueError("no")

    async with app:
        kinds = ("fine", "fine", "bad")
        return [(await app.process({"id": kind, "type": kind, "data": {}})).status for kind in kinds]
