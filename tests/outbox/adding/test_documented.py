"""docs/outbox-sql.md says what works: its SQL is run, and so is its Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.outbox.adding.places import Place
from tests.support.servers.postgres import PostgresServer

from semel import Notification, outbox

PAGE = (Path(__file__).parents[3] / "docs" / "outbox-sql.md").read_text("utf-8")
ORDERS = "create table orders (id integer, shipped boolean); insert into orders values (4711, false), (4712, false)"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


SQL = [block for block in blocks("sql") if "grant" not in block]
GRANTS = [block for block in blocks("sql") if "grant" in block]
CALLS = [
    re.search(r"""(["`])(select id, status from semel\.notify\(.*?\))\1""", block)
    for language in ("java", "js", "go")
    for block in blocks(language)
]


@pytest.fixture
def place(fresh_url: str) -> Place:
    with psycopg.connect(fresh_url) as connection:
        connection.execute(ORDERS)
    return Place(fresh_url, is_postgres=True)


def test_nothing_of_the_page_is_passed_over() -> None:
    assert (len(SQL), len(GRANTS), len(blocks("python"))) == (2, 2, 3)
    assert len(CALLS) == 3
    assert all(CALLS)


def test_its_sql_adds(place: Place) -> None:
    with psycopg.connect(place.url, autocommit=True) as connection:
        for block in SQL:
            connection.execute(block.encode())
    assert place.keys() == ["order-4711-shipped", "order-4712-shipped"]
    assert place.ask("select id from orders where shipped") == [{"id": 4711}]


@pytest.mark.parametrize("call", CALLS, ids=["java", "js", "go"])
def test_the_calls_of_other_languages_add(place: Place, call: re.Match[str]) -> None:
    """As their drivers say it: with values whose types the server has to find out."""
    count = iter(range(1, 100))
    sql = re.sub(r"\?", lambda _: f"${next(count)}", call[2])
    wanted = len(set(re.findall(r"\$\d", sql)))
    last = {"interval": "1 day", "timestamptz": "2100-01-01T00:00:00Z"}.get(sql.rpartition("::")[2].strip(") "), "x")
    body = '"On its way"' if "$5::jsonb" in sql else "On its way"
    values: list[Any] = ["order-1-shipped", "shipping", "+4915112345678", "sms", body, last]
    assert wanted == len(values)
    with psycopg.connect(place.url, cursor_factory=psycopg.RawCursor) as connection:
        row = connection.execute(sql.encode(), values).fetchone()
        assert row is not None
        assert row[1] == "added"
    (kept,) = place.rows("notification")
    assert b"On its way" in bytes(kept["content"])


def test_its_grants_are_enough(place: Place, postgres: PostgresServer) -> None:
    if postgres.is_given:
        pytest.skip("roles of a given server are not ours to make")
    role = f"shop_{place.url.rpartition('/')[2]}"[:60]
    with psycopg.connect(place.url, autocommit=True) as owner:
        for at, (block, add) in enumerate(zip(GRANTS, ("sql", "python"), strict=True)):
            name = f"{role[:58]}_{at}"
            owner.execute(f"create role {name}; {block.replace('to shop', f'to {name}')}".encode())
            try:
                owner.execute(f"begin; set role {name}".encode())
                if add == "sql":
                    owner.execute("select semel.notify('by sql', 'k', 'r', 'sms', '1')")
                else:
                    one = Notification(key="by python", kind="k", recipient="r", channel="sms", body="1")
                    assert outbox.add(owner, one).status == "added"
                owner.execute("commit")
            finally:
                owner.execute(f"rollback; reset role; drop owned by {name}; drop role {name}".encode())
    assert place.keys() == ["by python", "by sql"]


def test_its_python_for_postgres_adds(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [block for block in blocks("python") if "psycopg" in block]
    code = block.replace("postgresql://shop@db/shop", place.url)
    assert code != block
    exec(compile(code, "docs/outbox-sql.md", "exec"), {})
    assert capsys.readouterr().out == "added\n"
    assert (place.keys(), len(place.ask("select 1 from orders where shipped"))) == (["order-4711-shipped"], 1)


def test_its_python_for_sqlite_adds(file: str) -> None:
    place = Place(file, is_postgres=False)
    place.run(ORDERS)
    for block in [block for block in blocks("python") if "shop.db" in block]:
        code = block.replace("sqlite:///shop.db", f"sqlite:///{file}").replace("shop.db", file)
        exec(compile(code, "docs/outbox-sql.md", "exec"), {})
    assert place.keys() == ["order-4711-shipped", "order-4712-shipped"]
    assert len(place.ask("select 1 from orders where shipped")) == 2
