"""A Lambda's life: a cold start, many invocations on one loop and its connections, and a ledger of each kind."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import redis
from tests.aws_lambda.invocations import Clocked, Noting, failures, genesys, kinesis, small, sqs, summary

from semel import ConfigError, Context, Event, MalformedEvent, Semel
from semel.aws_lambda import RecordsFailed
from semel.ports import Migrates
from semel.testing.traffic import storm

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "lambda_app.py"


def ready(store: str) -> str:
    """PostgreSQL and DynamoDB are made ready by whoever may do that, not by the function."""

    async def make() -> None:
        async with Semel(store) as app:
            if isinstance(app.ledger, Migrates):
                await app.ledger.migrate()

    asyncio.run(make())
    return store


def test_a_storm_on_every_ledger(store: str) -> None:
    noting = Noting(ready(store))
    handler = noting.app.lambda_handler()
    deliveries = storm(60, 0.5, seed=3).deliveries
    for first in range(0, len(deliveries), 10):
        batch = deliveries[first : first + 10]
        make: Callable[[list[bytes]], dict[str, object]] = sqs if first % 20 else kinesis
        assert handler(make(batch), Clocked(60)) == failures()
    assert len(set(noting.acted)) == len(noting.acted) == 60
    assert handler(json.loads(deliveries[0]), Clocked(60)) == summary(skipped=1)
    noting.app.close_sync()


def test_a_handler_stopped_at_the_end_of_an_invocation_runs_in_the_next_on_every_ledger(store: str) -> None:
    app = Semel(ready(store), random=lambda: 0.0)
    attempts: list[int] = []

    @app.on("**")
    async def slow_at_first(event: Event, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        await asyncio.sleep(60 if ctx.attempt == 1 else 0)

    handler = app.lambda_handler(margin=10)
    assert handler(sqs([small("1")]), Clocked(11.5)) == failures("message-0")
    assert handler(sqs([small("1")]), Clocked(60)) == failures()
    assert attempts == [1, 2]
    app.close_sync()


def test_all_invocations_run_on_one_loop_and_one_connection(database: str) -> None:
    app = Semel(f"{ready(database)}?transactions=1")
    seen: list[tuple[object, int, int]] = []

    @app.on("**", effect="transaction")
    async def look(event: Event, ctx: Context) -> None:
        backend = await ctx.tx.fetchval("select pg_backend_pid()")
        seen.append((asyncio.get_running_loop(), threading.get_ident(), backend))

    handler = app.lambda_handler()
    for at in range(5):
        assert handler(sqs([genesys(at)]), Clocked(60)) == failures()
    assert len(seen) == 5
    assert len(set(seen)) == 1
    app.close_sync()


def kill_postgres_connections(store: str) -> int:
    async def kill() -> int:
        connection = await asyncpg.connect(store.partition("?")[0])
        killed = await connection.fetch(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        await connection.close()
        return len(killed)

    return asyncio.run(kill())


def kill_redis_connections(store: str) -> int:
    with redis.Redis.from_url(store.partition("?")[0]) as client:
        killed: int = client.execute_command("CLIENT", "KILL", "SKIPME", "yes")
    return killed


@pytest.mark.parametrize(
    ("place", "kill"), [("database", kill_postgres_connections), ("redis_url", kill_redis_connections)]
)
def test_connections_that_died_while_the_process_was_frozen_cost_no_event(
    place: str, kill: Callable[[str], int], request: pytest.FixtureRequest
) -> None:
    """A process that waits for its next event does not see them end."""
    store: str = request.getfixturevalue(place)
    noting = Noting(ready(store))
    handler = noting.app.lambda_handler()
    assert handler(sqs([small("1")]), Clocked(60)) == failures()
    assert kill(store) >= 1
    bodies = [small("1"), small("2")]
    assert handler(sqs(bodies), Clocked(60)) == failures()
    assert noting.acted == ["1", "2"]
    noting.app.close_sync()


def test_an_app_is_closed_on_the_loop_that_has_its_connections_and_can_be_used_again(store: str) -> None:
    noting = Noting(ready(store))
    handler = noting.app.lambda_handler()
    before = set(threading.enumerate())
    for own_id in ("1", "2"):
        assert handler(sqs([small(own_id)]), Clocked(60)) == failures()
        assert noting.app.process_sync(small(own_id)).status == "duplicate"
        noting.app.close_sync()
        noting.app.close_sync()  # nothing is open any more
    assert noting.acted == ["1", "2"]
    assert [one for one in set(threading.enumerate()) - before if one.name == "semel-sync"] == []


def test_an_app_that_was_never_used_can_be_closed() -> None:
    Semel("memory://").close_sync()
    Semel("redis://127.0.0.1:1").close_sync()


def test_two_handlers_of_an_app_share_its_loop() -> None:
    app = Semel("memory://")
    loops: list[object] = []

    @app.on("**")
    async def look(event: Event, ctx: Context) -> None:
        loops.append(asyncio.get_running_loop())

    app.lambda_handler()(sqs([small("1")]), None)
    app.lambda_handler()(sqs([small("2")]), None)
    app.process_sync(json.loads(small("3")))
    assert len(loops) == 3
    assert len(set(loops)) == 1


def test_invocations_go_on_after_one_that_raised() -> None:
    noting = Noting()
    handler = noting.app.lambda_handler()
    broken_ones: list[Any] = [None, {"Records": [{}]}, json.loads(small("1", "breaks")), {}]
    for broken in broken_ones:
        with pytest.raises((MalformedEvent, RecordsFailed)):
            handler(broken, Clocked(60))
    assert handler(sqs([small("2")]), Clocked(60)) == failures()


def test_a_closed_app_can_be_invoked_again() -> None:
    noting = Noting()
    handler = noting.app.lambda_handler()
    handler(sqs([small("1")]), Clocked(60))
    asyncio.run(noting.app.close())
    assert handler(sqs([small("2")]), Clocked(60)) == failures()


def test_inside_an_event_loop_the_error_names_the_alternative() -> None:
    handler = Noting().app.lambda_handler()

    async def call() -> None:
        handler(sqs([small("1")]), None)

    with pytest.raises(ConfigError, match=r"await .*process"):
        asyncio.run(call())


def test_a_cold_start_imports_nothing_heavy() -> None:
    heavy = {
        *("typer", "rich", "uvicorn", "uvloop", "starlette", "aiohttp", "structlog", "prometheus_client", "pydantic"),
        *(
            "opentelemetry",
            "cryptography",
            "apsw",
            "asyncpg",
            "redis",
            "aiobotocore",
            "boto3",
            "botocore",
            "hypothesis",
        ),
    }
    code = (
        "import json, sys, semel; app = semel.Semel('memory://'); handler = app.lambda_handler();"
        f"handler({sqs([small('1')])!r}, None);"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert {"semel", "msgspec", "asyncio"} <= set(loaded)
    assert heavy.intersection(loaded) == set()


@pytest.mark.parametrize("ledger", ["memory://", "dynamodb://semel?region=eu-central-1", "redis://localhost"])
def test_the_handlers_own_modules_are_few(ledger: str) -> None:
    """Time cannot be asserted here; what makes it long can: modules, and those of the service above all."""
    code = (
        f"import sys, semel; semel.Semel({ledger!r}).lambda_handler();"
        "print(*[name for name in sys.modules if name.startswith('semel.')])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "semel.aws_lambda.handler" in loaded
    assert [name for name in loaded if name.startswith(("semel.service", "semel.cli", "semel.testing"))] == []
    assert len(loaded) < 90


def test_the_example_works(tmp_path: Path) -> None:
    code = (
        "import json, runpy; example = runpy.run_path(" + repr(str(EXAMPLE)) + ");"
        f"event = json.loads({genesys(60).decode()!r});"
        "print(example['handler'](event, None)['body']); print(example['handler'](event, None)['body'])"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={"LEDGER": "memory://", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        '{"processed":1,"skipped":0,"errors":0}',
        '{"processed":0,"skipped":1,"errors":0}',
    ]
