"""The process that the storms kill: a worker with a handler for each effect. Its only argument is a `Plan` as JSON."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import msgspec

from semel import Context, Event, Semel
from semel.core.worker import LEDGER_DOWN_S
from semel.ports import Delivery
from semel.testing.folder_source import FolderDelivery, FolderSource
from semel.testing.laws.faults import FINISHED, UNDECIDED, Happened

LEASE_S = 1.5  # longer than the round trips of a slow link, short against a test
HANDLER_S = 0.01  # so that somebody is always in the middle of something
NEVER = 10_000  # attempts: nobody is given up on because a stranger kills processes
AGAIN_S = 0.25  # a source of ours does not wait as long as a worker asks for
BATCH = 8
LANES = 4
LOOK_S = 0.02
TABLE = "create table if not exists call (effect text, event text, key text, token integer, attempt integer, applied)"
INSERT = "insert into call values (?, ?, ?, ?, ?, ?)"  # no unique constraint anywhere: a double would show

Handle = Callable[[Event, Context], Awaitable[int]]
InTransaction = Callable[[Context, str, Happened], Awaitable[None]]


class Plan(msgspec.Struct, frozen=True):
    """What one process is to do."""

    home: str
    ledger: str
    effects: tuple[str, ...]
    lease_s: float = LEASE_S
    source: str = ""
    calls_table: str = "call"


def app_of(plan: Plan) -> Semel:
    app = Semel(plan.ledger, lease=plan.lease_s, concurrency=LANES)
    for effect in plan.effects:
        app.on(effect, effect=effect, name=effect, max_attempts=NEVER)(handler(plan, effect))  # type: ignore[arg-type]
    return app


def handler(plan: Plan, effect: str) -> Handle:
    outside = Path(plan.home) / "calls.db"
    scheme = plan.ledger.partition(":")[0]

    async def handle(event: Event, ctx: Context) -> int:
        call = Happened(effect, event.document["id"], ctx.key, ctx.token, ctx.attempt)
        match effect:
            case "transaction":
                await IN_TRANSACTION[scheme](ctx, plan.calls_table, call)
            case "fenced":
                at_fenced_resource(outside, call)
            case _:
                downstream(outside, call)
        await asyncio.sleep(HANDLER_S)
        return ctx.token

    return handle


async def in_sqlite(ctx: Context, table: str, call: Happened) -> None:
    ctx.tx.execute(TABLE)
    ctx.tx.execute(INSERT, tuple(call))


async def in_postgres(ctx: Context, table: str, call: Happened) -> None:
    await ctx.tx.execute(f"insert into {table} values ($1, $2, $3, $4, $5, $6)", *call)


async def in_dynamodb(ctx: Context, table: str, call: Happened) -> None:
    """A new item for each call: a double would show."""
    ctx.tx.put(table, {"id": uuid4().hex, **call._asdict()})


IN_TRANSACTION: dict[str, InTransaction] = {
    "sqlite": in_sqlite,
    "postgresql": in_postgres,
    "dynamodb": in_dynamodb,
}


def downstream(outside: Path, call: Happened) -> None:
    with closing(connect_outside(outside)) as connection:
        connection.execute(INSERT, tuple(call))


def at_fenced_resource(outside: Path, call: Happened) -> None:
    """It keeps the highest token of each key and refuses lower ones; what it refused is kept too, to be seen."""
    with closing(connect_outside(outside)) as connection:
        connection.execute("begin immediate")
        (highest,) = connection.execute("select max(token) from call where key = ? and applied", (call.key,)).fetchone()
        applied = highest is None or call.token > highest
        connection.execute(INSERT, tuple(call._replace(applied=applied)))
        connection.execute("commit")


def connect_outside(path: Path) -> sqlite3.Connection:
    """Autocommit. No fsync: the calls have to survive a process, not a power cut."""
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("pragma synchronous = off")
    connection.execute(TABLE)
    return connection


def calls_outside(home: Path) -> list[Happened]:
    with closing(connect_outside(home / "calls.db")) as connection:
        rows = connection.execute("select effect, event, key, token, attempt, applied from call order by rowid")
        return [Happened(*row) for row in rows]


class Fed(FolderSource):
    """A folder that is filled while it is read; it has ended when it is empty and somebody says so."""

    async def receive(self, limit: int) -> list[Delivery]:
        while True:
            finished = (self.path.parent / FINISHED).exists()
            deliveries: Sequence[Delivery] = self._take(min(limit, BATCH))
            if deliveries or (finished and not self.left()):
                return [Soon(self, one.name, one.body) for one in deliveries if isinstance(one, FolderDelivery)]
            await asyncio.sleep(LOOK_S)


class Soon(FolderDelivery):
    async def retry(self, after_s: float) -> None:
        if after_s == LEDGER_DOWN_S:
            with (self._source.path.parent / UNDECIDED).open("ab") as undecided:
                undecided.write(b".")
        await super().retry(min(after_s, AGAIN_S))


def tell_where_it_stands() -> None:
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)


async def work(plan: Plan) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell_where_it_stands)
    async with app_of(plan) as app:
        await app.worker(Fed(Path(plan.home) / plan.source)).run()


if __name__ == "__main__":
    asyncio.run(work(msgspec.json.decode(sys.argv[1], type=Plan)))
