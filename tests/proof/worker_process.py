"""The process that the proofs kill: one worker, one handler, effects that are kept outside the ledger.

Its only argument is a `Plan` as JSON.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from semel import Context, Event, Retry, Semel, keys
from semel.core.crash_points import Observer
from semel.ports import Delivery
from semel.testing.crash import crash_at, stop_at
from semel.testing.folder_source import FolderSource
from semel.values.effect import Effect

IN_HANDLER = "in_handler"  # on the line before ctx.check(), or before the effect where the handler does not call it
NO_KEY_HANDLER = "no_key"
LEASE_S = 0.5  # long against one commit, short against a test
TABLE = "create table if not exists effect (event text, key text, token integer, attempt integer, applied integer)"
INSERT = "insert into effect values (?, ?, ?, ?, ?)"  # no unique constraint anywhere: a double would show


class Plan(msgspec.Struct, frozen=True):
    """What one process is to do, and how it is to die."""

    home: str
    effect: Effect
    source: str = "source"
    crash: tuple[str, int] | None = None  # boundary, hit
    stop: tuple[str, int] | None = None  # a boundary, or IN_HANDLER
    sync: bool = False  # the handler is a plain function, which runs in a thread
    check: bool = False  # the handler calls ctx.check() on the line before its effect
    probe: bool = False  # of `park`: it looks for the effect
    no_key: bool = False  # a second handler, whose key cannot be computed for any event
    uvloop: bool = False
    poison: str = ""  # the handler of this event kills its process
    lease_s: float = LEASE_S
    handler_s: float = 0.0
    concurrency: int = 32
    at_most: int = 100
    max_attempts: int = 8
    answers: str = ""  # a file that gets one line for each answer to the source


def app_of(plan: Plan, observe: Observer = lambda boundary: None) -> Semel:
    home = Path(plan.home)
    app = Semel(f"sqlite:///{home / 'ledger.db'}", lease=plan.lease_s, concurrency=plan.concurrency, observe=observe)
    options: dict[str, Any] = {"probe": _probe(plan)} if plan.probe else {}
    app.on("proof", effect=plan.effect, name="act", max_attempts=plan.max_attempts, **options)(_handler(plan, observe))
    if plan.no_key:
        app.on("proof", key=keys.fields("missing"), name=NO_KEY_HANDLER)(_handler(plan, observe))
    return app


def _probe(plan: Plan) -> Callable[[Event, Context], int]:
    """Whether the effect is there: truthful, and of that moment only."""

    def look(event: Event, ctx: Context) -> int:
        with closing(connect_outside(Path(plan.home) / "effects.db")) as connection:
            (token,) = connection.execute("select max(token) from effect where key = ?", (ctx.key,)).fetchone()
        if token is None:
            raise Retry
        return int(token)

    return look


def _handler(plan: Plan, observe: Observer) -> Callable[[Event, Context], Any]:
    act = {"transaction": _in_transaction, "fenced": _at_fenced_resource}.get(plan.effect, _downstream)
    outside = Path(plan.home) / "effects.db"

    def handle_sync(event: Event, ctx: Context) -> int:
        observe(IN_HANDLER)
        if plan.check:
            ctx.check()
        act(outside, event.document["id"], ctx)
        return ctx.token

    async def handle(event: Event, ctx: Context) -> int:
        name = event.document["id"]
        handle_sync(event, ctx)
        if name == plan.poison:
            os.kill(os.getpid(), signal.SIGKILL)
        if plan.handler_s:
            await asyncio.sleep(plan.handler_s)
        return ctx.token

    return handle_sync if plan.sync else handle


def _in_transaction(_: Path, event: str, ctx: Context) -> None:
    ctx.tx.execute(TABLE)
    ctx.tx.execute(INSERT, (event, ctx.key, ctx.token, ctx.attempt, 1))


def _downstream(outside: Path, event: str, ctx: Context) -> None:
    with closing(connect_outside(outside)) as connection:
        connection.execute(INSERT, (event, ctx.key, ctx.token, ctx.attempt, 1))


def _at_fenced_resource(outside: Path, event: str, ctx: Context) -> None:
    """It keeps the highest token of each key and refuses lower ones; what it refused is kept too, to be seen."""
    with closing(connect_outside(outside)) as connection:
        connection.execute("begin immediate")
        (highest,) = connection.execute(
            "select max(token) from effect where key = ? and applied", (ctx.key,)
        ).fetchone()
        applied = highest is None or ctx.token > highest
        connection.execute(INSERT, (event, ctx.key, ctx.token, ctx.attempt, applied))
        connection.execute("commit")


def connect_outside(path: Path) -> sqlite3.Connection:
    """Autocommit. No fsync: the effects have to survive a process, not a power cut."""
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("pragma synchronous = off")
    connection.execute(TABLE)
    return connection


class Noted:
    """A source that keeps a record of how its deliveries were answered."""

    def __init__(self, source: FolderSource, answers: Path) -> None:
        self._source = source
        self._answers = answers

    async def receive(self, limit: int) -> Sequence[Delivery]:
        return [NotedDelivery(delivery, self._answers) for delivery in await self._source.receive(limit)]


class NotedDelivery(Delivery):
    def __init__(self, delivery: Delivery, answers: Path) -> None:
        self.body = delivery.body
        self.tenant = delivery.tenant
        self._delivery = delivery
        self._answers = answers

    async def ack(self) -> None:
        await self._delivery.ack()
        self._note("ack")

    async def retry(self, after_s: float) -> None:
        await self._delivery.retry(after_s)
        self._note("retry")

    async def reject(self, reason: str) -> None:
        await self._delivery.reject(reason)
        self._note("reject")

    def _note(self, answer: str) -> None:
        with self._answers.open("a") as file:
            file.write(f"{answer}\n")


async def work(plan: Plan) -> None:
    home = Path(plan.home)
    source: Any = FolderSource(home / plan.source, at_most=plan.at_most)
    if plan.answers:
        source = Noted(source, home / plan.answers)
    observe: Observer = lambda boundary: None  # noqa: E731 - most processes are left alone
    if plan.crash is not None:
        observe = crash_at(*plan.crash, marker=home / "landed")
    elif plan.stop is not None:
        observe = stop_at(*plan.stop, marker=home / "landed")
    async with app_of(plan, observe) as app:
        await app.worker(source).run()


def main(plan: Plan) -> None:
    if plan.uvloop:
        import uvloop

        uvloop.run(work(plan))
    else:
        asyncio.run(work(plan))


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Plan))
