"""What the processes do that the laws and the storm kill: work on one source until they die."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from semel import Context, Event, Retry, Semel
from semel.ports import Source
from semel.sources.sqs_queue import SqsSource
from semel.testing.crash import crash_at
from semel.testing.folder_source import FolderSource
from semel.testing.source_laws import AGAIN, TOPIC
from semel.values.effect import Effect

TABLE = "create table if not exists effect (event text, key text)"
INSERT = "insert into effect values (?, ?)"  # no unique constraint anywhere: a double would show
NEVER = 10_000  # attempts: nobody is given up on because a stranger kills processes
EMPTY_S = 0.02
KILLED_LEASE_S = 0.5  # who comes after one that was killed does not wait for long


class Plan(msgspec.Struct, frozen=True):
    """What one process is to do, and how it is to die."""

    home: str
    effect: Effect = "transaction"
    folder: str = ""  # of a folder source
    queue: str = ""  # of SQS
    dead_letters: str = ""
    endpoint: str = ""
    region: str = ""
    visibility: int = 1
    pollers: int = 2
    step: str = ""
    marker: str = ""


def app_of(plan: Plan, observe: Callable[[str], None] | None = None) -> Semel:
    app = Semel(f"sqlite:///{plan.home}/ledger.db", lease=KILLED_LEASE_S, observe=observe)
    act = in_transaction if plan.effect == "transaction" else keyed_sink(Path(plan.home) / "sink.db")

    async def handle(event: Event, ctx: Context) -> None:
        await act(event, ctx)
        if event.body.get(AGAIN) and ctx.attempt == 1:
            raise Retry(after=0)

    app.on(TOPIC, effect=plan.effect, name="handle", max_attempts=NEVER)(handle)
    return app


async def in_transaction(event: Event, ctx: Context) -> None:
    ctx.tx.execute(TABLE)
    ctx.tx.execute(INSERT, (event.id, ctx.key))


def keyed_sink(path: Path) -> Callable[[Event, Context], Awaitable[None]]:
    """A downstream that honours the key, as a provider with idempotency keys does, and nothing else."""

    async def act(event: Event, ctx: Context) -> None:
        with closing(connected(path)) as sink:
            sink.execute("begin immediate")
            if sink.execute("select 1 from effect where key = ?", (ctx.key,)).fetchone() is None:
                sink.execute(INSERT, (event.id, ctx.key))
            sink.execute("commit")

    return act


def connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("pragma synchronous = off")
    connection.execute(TABLE)
    connection.execute("create index if not exists by_key on effect (key)")
    return connection


def happened(path: Path) -> list[str]:
    """The events that had their effect, once for each time."""
    with closing(connected(path)) as connection:
        return [event for (event,) in connection.execute("select event from effect order by rowid")]


def source_of(plan: Plan, observe: Callable[[str], None] | None) -> Source:
    if plan.folder:
        return FolderSource(plan.folder, patience_s=1.0)
    options: dict[str, Any] = {"endpoint": plan.endpoint, "region": plan.region, "visibility": plan.visibility}
    return SqsSource(
        plan.queue, dead_letters=plan.dead_letters, wait=1, pollers=plan.pollers, observe=observe, **options
    )


async def work(plan: Plan) -> None:
    observe = crash_at(plan.step, marker=Path(plan.marker)) if plan.step else None
    async with app_of(plan, observe) as app:
        source = source_of(plan, observe)
        while True:
            await app.worker(source).run()
            await asyncio.sleep(EMPTY_S)  # a folder ends when it is empty
