"""Two real stores, and a crash between any two of the steps that they take together."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from semel.core.dead_letter_store import LedgerWithDeadLetterStore
from semel.ledgers.dynamodb import DynamoLedger
from semel.ledgers.redis import RedisLedger
from semel.ledgers.sqlite import SqliteLedger
from semel.ports import Migrates
from semel.testing.harness import FakeClock, Harness, InboxCaller
from semel.values.errors import LedgerUnavailable

DAY_MS = 86_400_000
MARGIN_MS = 1_000  # DynamoDB allows for clocks that differ


class Crash(BaseException):
    """The process is gone: nothing after this line happens."""


async def crash() -> None:
    raise Crash


async def out_of_reach() -> None:
    raise LedgerUnavailable("out of reach, as the test wants it")


class Interruptions:
    """Of a real store. At one step, before or after it is done, something else happens; `landed` counts how often."""

    where = ""
    landed = 0
    what: Callable[[], Awaitable[Any]] = staticmethod(crash)

    def interrupt(self, where: str, what: Callable[[], Awaitable[Any]] = crash) -> None:
        """`where` is "before keep", "after settle", …; nothing: it goes well from here on."""
        self.where, self.what = where, what

    async def at(self, step: str, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            await self._perhaps(f"before {step}")
        except BaseException:
            work.close()
            raise
        answer = await work
        await self._perhaps(f"after {step}")
        return answer

    async def _perhaps(self, where: str) -> None:
        if where == self.where:
            self.landed += 1
            await self.what()


def interrupted(store: type[Any]) -> type[Any]:
    """The class of a store whose steps can be interrupted."""

    def step(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        own = getattr(store, name)

        async def taken(self: Any, *arguments: Any, **options: Any) -> Any:
            return await self.at(name, own(self, *arguments, **options))

        return taken

    steps = [name for name in ("settle", "renew", "keep", "withdraw", "replay", "discard") if hasattr(store, name)]
    return type(f"Interrupted{store.__name__}", (Interruptions, store), {name: step(name) for name in steps})


LEDGERS = {
    "sqlite": interrupted(SqliteLedger),
    "redis": interrupted(RedisLedger),
    "dynamodb": interrupted(DynamoLedger),
}


class Scene:
    """A deployment: a worker whose stores may be interrupted, and another one. Its letters are in SQLite."""

    def __init__(self, folder: Path, kind: str, url: str) -> None:
        self._folder, self._kind, self._url = folder, kind, url
        self.clock = FakeClock()
        self.clock.now_ms = time.time_ns() // 1_000_000 + DAY_MS  # DynamoDB sweeps by its own, which must be behind
        self.ledger, self.dead_letter_store = self._stores()
        self.harness = Harness(open=lambda: LedgerWithDeadLetterStore(*self._stores()), clock=self.clock)
        self.worker = InboxCaller(lambda: LedgerWithDeadLetterStore(self.ledger, self.dead_letter_store))
        self.other = InboxCaller(self.harness.open)
        if isinstance(self.ledger, Migrates):
            self.worker.run(self.ledger.migrate())

    def _stores(self) -> tuple[Any, Any]:
        kept = LEDGERS["sqlite"](str(self._folder / "letters.db"), synchronous="normal", clock=self.clock)
        if self._kind == "sqlite":
            return LEDGERS["sqlite"](str(self._folder / "ledger.db"), synchronous="normal", clock=self.clock), kept
        return LEDGERS[self._kind].from_url(self._url, clock=self.clock), kept

    def interrupt(self, where: str, what: Callable[[], Awaitable[Any]] = crash) -> Any:
        """`where` names the store too: "after keep in letterbox"."""
        step, _, name = where.partition(" in ")
        store = self.ledger if name == "ledger" else self.dead_letter_store
        store.interrupt(step, what)
        return store

    def lapse(self) -> None:
        self.harness.advance(self.harness.lease_ms + MARGIN_MS)

    @property
    def both(self) -> LedgerWithDeadLetterStore:
        assert isinstance(self.worker.ledger, LedgerWithDeadLetterStore)
        return self.worker.ledger

    def close(self) -> None:
        for clerk in (self.worker, self.other):
            clerk.close()
