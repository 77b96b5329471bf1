"""The transaction of one handler, and the handle that the handler gets as `ctx.tx`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import apsw

from semel.ledgers.sqlite import claims, outbox
from semel.ledgers.sqlite.writer import ENDED_ITSELF
from semel.values.claim import Lease, Settlement
from semel.values.errors import TransactionOver
from semel.values.notification import Notification
from semel.values.outbox import Added

INTERRUPT_S = 0.005  # pause between interrupts of a statement that outlasts its handler's time


class Handle:
    """Lets a handler run SQL on its own tables. Safe to use from the thread of a sync handler.

    The handle is closed when the handler's time is over, so that a handler that continues cannot write into the
    transaction of another handler.
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
        """Lock the connection for the ledger's own writes beside the handler's."""
        with self._lock:
            self._check()
            yield self._connection

    @contextmanager
    def final_write(self) -> Iterator[None]:
        """Close the handle and run the last write of the transaction; refused if the transaction is over."""
        with self._lock:
            self._check()
            self._open = False
            yield

    def close(self) -> None:
        """Refuse further statements. A statement that a thread is still running is interrupted."""
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
            return outbox.add(connection, notifications, self._now())

    async def settle(self, settlement: Settlement) -> bool:
        """Write the settlement beside the handler's writes. The handler cannot write after it."""
        if settlement.lease.token != self._lease.token:
            raise TransactionOver("a transaction settles the lease that it was opened for")
        with self.handle.final_write():
            if not self._connection.in_transaction:
                raise TransactionOver(ENDED_ITSELF)
            if claims.is_held(self._connection, self._lease):  # settled before: these writes would be a second effect
                (self.settled,) = claims.settle(self._connection, [settlement], self._now())
        return self.settled

    def abandon(self) -> None:
        if not self.settled:
            self.handle.close()
            self._end()

    def close(self) -> None:
        self.handle.close()
