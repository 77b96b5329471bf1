"""The transaction of one handler, and the handle that the handler gets as `ctx.tx`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import apsw

from semel.adapters.ledgers.sqlite import store
from semel.adapters.ledgers.sqlite.outbox import adding
from semel.adapters.ledgers.sqlite.writer import ENDED_ITSELF
from semel.values.claim import Lease, Settlement
from semel.values.errors import TransactionOver
from semel.values.notification import Notification
from semel.values.outbox import Added

INTERRUPT_S = 0.005  # how long a statement may go on at the end of its handler's time


class Handle:
    """What a handler may do: run SQL on its own tables. Safe to use from the thread of a sync handler.

    When the handler's time is over the handle refuses, so that a handler that goes on cannot write into a
    transaction that is no longer its own.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._lock = Lock()
        self._open = True

    def execute(self, sql: str, bindings: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Run one or more statements; returns all rows."""
        with self._lock:
            self._check()
            return self._connection.execute(sql, bindings).fetchall()

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each row of bindings."""
        bindings = list(rows)  # the caller's own code does not run under the lock
        with self._lock:
            self._check()
            self._connection.executemany(sql, bindings).fetchall()

    @contextmanager
    def held(self) -> Iterator[apsw.Connection]:
        """The connection, for what is ours to write beside the handler's own."""
        with self._lock:
            self._check()
            yield self._connection

    @contextmanager
    def last_words(self) -> Iterator[None]:
        """What is written here is the last; refused when the transaction is over already."""
        with self._lock:
            self._check()
            self._open = False
            yield

    def close(self) -> None:
        """Refuse from here on. A statement that a thread is still running is interrupted, and not waited for."""
        while not self._lock.acquire(timeout=INTERRUPT_S):
            self._connection.interrupt()
        try:
            self._open = False
        finally:
            self._lock.release()

    def _check(self) -> None:
        if not self._open:
            raise TransactionOver("ctx.tx was used after its transaction ended")


class SqliteTransaction:
    """One savepoint in the writer's transaction."""

    def __init__(
        self, connection: apsw.Connection, lease: Lease, now: Callable[[], int], end: Callable[[], None]
    ) -> None:
        """`end` makes the writer roll back and continue with other work."""
        self.handle = Handle(connection)
        self.settled = False
        self._connection = connection
        self._lease = lease
        self._now = now
        self._end = end

    async def notify(self, notifications: Sequence[Notification]) -> list[Added]:
        with self.handle.held() as connection:
            return adding.add(connection, notifications, self._now())

    async def settle(self, settlement: Settlement) -> bool:
        """Write the settlement beside the handler's writes. From here on the handler cannot write any more."""
        if settlement.lease.token != self._lease.token:
            raise TransactionOver("a transaction settles the lease that it was opened for")
        with self.handle.last_words():
            if not self._connection.in_transaction:
                raise TransactionOver(ENDED_ITSELF)
            if store.is_held(self._connection, self._lease):  # settled before: these writes would be a second effect
                (self.settled,) = store.settle(self._connection, [settlement], self._now())
        return self.settled

    def abandon(self) -> None:
        if not self.settled:
            self.handle.close()
            self._end()

    def close(self) -> None:
        self.handle.close()
