"""`semel run` while its store refuses or is gone: senders are told to come again and no more, the log says why."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from aiobotocore.session import get_session
from tests.service.running import Reply, Running, event, service
from tests.stores.commands import migrated, semel, settings
from tests.stores.test_commands_on_every_store import fill
from tests.support.servers.dynamodb import DynamoServer
from tests.support.servers.postgres import PostgresServer
from tests.support.servers.process import free_port

from semel.cli.token import make_token

INLINE = '[[endpoints]]\nmode = "inline"\n'
ROUTE = '[[routes]]\nname = "all"\ntopics = ["**"]\nconsole = true\n'
LETTERS_APP = "tests.stores.letters_app:app"


def lines(running: Running, words: str) -> list[str]:
    return [line for line in running.log if words in line]


def is_told_nothing(reply: Reply, *internals: str) -> None:
    assert reply.status == 503
    assert int(reply.headers["retry-after"]) >= 1
    assert reply.headers["content-type"] == "application/problem+json"
    assert not any(word in reply.body.decode() for word in internals)


def delete_table(server: DynamoServer, table: str) -> None:
    async def delete() -> None:
        async with get_session().create_client(
            "dynamodb", region_name=server.region, endpoint_url=server.endpoint
        ) as client:
            await client.delete_table(TableName=table)

    asyncio.run(delete())


def test_a_table_that_is_gone_is_503_and_one_line_says_what_to_do(dynamodb: DynamoServer, tmp_path: Path) -> None:
    table = f"semel-{uuid4().hex}"
    url = migrated(dynamodb.url(table))
    token, digest = make_token()
    tokens = f'[[tokens]]\nname = "t"\ndigest = "{digest}"\nscopes = ["claims", "keys"]\n'
    bearer = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    claim = {"items": [{"handler": "h", "key": ["k"]}]}
    with service(tmp_path, f'ledger = "{url}"\n{INLINE}{ROUTE}{tokens}') as running:
        assert running.post("/events", event(1)).status == 200
        assert running.post("/v1/claims", claim, bearer).status == 200
        delete_table(dynamodb, table)
        for number in range(2, 8):
            reply = running.post("/events", event(number))
            is_told_nothing(reply, table, "127.0.0.1", "table")
            assert reply.json["detail"]
        is_told_nothing(running.post("/v1/claims", claim, bearer), table, "127.0.0.1", "table")
        is_told_nothing(running.request("GET", f"/v1/keys/{'0' * 32}", headers=bearer), table, "127.0.0.1", "table")
        running.until(lambda: len(lines(running, "api_unavailable")) == 1, "the API does not say why")
        (line,) = lines(running, "ledger_refused")
        assert "semel migrate" in line
        assert "Traceback" not in "\n".join(running.log)
        migrated(url)
        running.until(lambda: running.post("/events", event(8)).status == 200, "it does not recover")


def test_a_database_that_is_gone_is_said_when_it_begins_and_when_it_is_over(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    """The inbox is asked every second, and /readyz, and the breaker's probes: none of them is a line."""
    name = urlsplit(database).path[1:]
    with service(tmp_path, f'ledger = "{migrated(database)}"\n{ROUTE}') as running:
        assert running.post("/events", event(1)).status == 200
        postgres.execute(
            f'alter database "{name}" allow_connections false',
            f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'",
        )
        running.until(lambda: lines(running, "inbox_unavailable"), "the inbox does not say so")
        running.until(lambda: running.get("/readyz").status == 503, "it calls itself ready")
        for number in range(20):
            reply = running.post("/events", event(f"gone-{number}"))
            is_told_nothing(reply, "PostgreSQL", "127.0.0.1", name)
        is_told_nothing(running.get("/readyz"), "PostgreSQL", "127.0.0.1", name)
        postgres.execute(f'alter database "{name}" allow_connections true')
        running.until(lambda: lines(running, "inbox_recovered"), "the inbox stays as it was")
        running.until(lambda: running.post("/events", event(2)).status == 200, "it does not recover")
        running.until(lambda: running.get("/readyz").status == 200, "it does not call itself ready")
        for begins, over in (
            ("inbox_unavailable", "inbox_recovered"),
            ("ledger_breaker_open", "ledger_breaker_closed"),
            ("not_ready", "ready_again"),
        ):
            running.until(lambda over=over: lines(running, over), f'"{over}" is not said')
            assert len(lines(running, begins)) <= 1 + len(lines(running, over)), "once for each time"
            assert any("PostgreSQL" in line for line in lines(running, begins)), "and why"


# ---------------------------------------------------------------------------------------------------- for operators


def test_an_app_says_what_it_runs_and_where_its_ledger_is(redis_url: str, tmp_path: Path) -> None:
    env = {"LEDGER": redis_url, "LETTERS": f"sqlite:///{tmp_path}/letters.db", "KNOWN": "k", "EFFECTS": "e"}
    with service(tmp_path, INLINE, LETTERS_APP, env=env) as running:
        said = "\n".join(running.log)
        assert urlsplit(redis_url).netloc.partition("@")[2] in said
        assert f"{tmp_path}/letters.db" in said
        assert any("to-crm" in line and "**" in line and "retry" in line for line in running.log)
        assert "s3cret-of-redis" not in said


def test_letters_elsewhere_are_listed_while_the_ledger_is_out_of_reach(redis_url: str, tmp_path: Path) -> None:
    dead_letters = f"sqlite:///{tmp_path}/letters.db"
    fill(redis_url, dead_letters)
    port = free_port()
    path = settings(tmp_path, f"redis://127.0.0.1:{port}?timeout=1", f'dead_letters = "{dead_letters}"\n{ROUTE}')
    listed = semel("dead", "list", "-c", str(path), "--json")
    assert listed.code == 0
    assert sorted(entry["state"] for entry in listed.json) == ["dead", "dead", "uncertain"]
    assert "ledger" in listed.err
    assert str(port) in listed.err
    none = semel("dead", "list", "--handler", "nobody", "-c", str(path))
    assert "3" in none.out.split()
    assert semel("status", "-c", str(path)).code == 2, "which is about the ledger"


def test_a_store_of_letters_that_cannot_be_used_is_not_called_the_ledger(
    redis_url: str, database: str, tmp_path: Path
) -> None:
    def told(dead_letters: str) -> tuple[list[dict[str, Any]], list[str]]:
        path = str(settings(tmp_path, redis_url, f'dead_letters = "{dead_letters}"\n{ROUTE}'))
        findings = semel("doctor", "-c", path, "--json").json["findings"]
        wrong = [one for one in findings if one["level"] == "error" and one["check"] in ("store", "migrations")]
        commands = [semel(*command, "-c", path).err for command in (("status",), ("dead", "list"))]
        return wrong, commands

    (unready,), commands = told(database)
    assert (unready["check"], "dead_letters" in unready["what"]) == ("migrations", True)
    assert "semel migrate" in unready["change"]
    assert all("dead_letters postgresql://" in line and "semel migrate" in line for line in commands)
    port = free_port()
    (out_of_reach,), commands = told(f"postgresql://127.0.0.1:{port}/app?connect_timeout=1")
    assert (out_of_reach["check"], "dead_letters" in out_of_reach["what"]) == ("store", True)
    assert all(f"dead_letters postgresql://127.0.0.1:{port}/app" in line for line in commands)


def test_doctor_looks_at_a_ledger_alone(store: str) -> None:
    ready = semel("doctor", "--ledger", migrated(store) if not store.startswith("sqlite") else filled(store), "--json")
    assert ready.code == 0
    assert ready.json["store"]
    assert {one["check"] for one in ready.json["findings"]} == {"durability", "dead_letters", "store"}


def filled(store: str) -> str:
    fill(store)
    return store


def test_nothing_is_called_well_of_a_store_that_could_not_be_looked_at() -> None:
    for url in ("postgresql://127.0.0.1:{}/app?connect_timeout=1", "redis://127.0.0.1:{}?timeout=1"):
        report = json.loads(semel("doctor", "--ledger", url.format(free_port()), "--json").out)
        assert report["ok"] is False
        assert [one for one in report["findings"] if one["level"] == "ok"] == []
