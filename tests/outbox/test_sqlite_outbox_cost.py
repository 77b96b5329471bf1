"""The outbox on SQLite: number of statements, and query plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest

from semel.ledgers.sqlite import database, outbox, outbox_queries
from semel.ledgers.sqlite.statements import SQL
from semel.testing import harness as sender
from semel.testing.harness import START_MS, Harness, answered, notification, provider
from semel.values.delivery_state import Accepted, Refused, Unknown
from semel.values.notification import Guard
from semel.values.outbox import Crossed, DeliveryReport, Lane

T = TypeVar("T")

NOW = START_MS
LEASE_MS = 60_000


def nothing() -> Any:
    raise AssertionError("these tests open no ledger")


@pytest.fixture
def harness() -> Harness:
    return Harness(open=nothing)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    opened = database.open_database(str(tmp_path / "semel.db"), "off")
    yield opened
    opened.close()


def counted(connection: apsw.Connection, work: Callable[[], T]) -> tuple[T, list[str]]:
    """Run a function and record the statements that it executes."""
    statements: list[str] = []

    def trace(_: object, sql: str, bindings: object) -> bool:
        statements.append(sql)
        return True

    connection.exec_trace = trace
    try:
        return work(), statements
    finally:
        connection.exec_trace = None


# ----------------------------------------------------------------------------------------------------------- statements

COSTS = {"add": 2, "take": 6, "take at a rate": 9, "cross": 6, "record": 5, "add again": 1, "take nothing": 1}


@pytest.mark.parametrize("size", [1, 100])
def test_a_batch_of_one_and_a_batch_of_a_hundred_run_as_many_statements(
    connection: apsw.Connection, harness: Harness, size: int
) -> None:
    """COSTS lists the statements of each step: 19 from the add to the record, also for a hundred notifications."""
    lanes, limited = ({provider(harness): Lane(1_000, provider(harness), rate)} for rate in (0.0, 1e6))
    spent: dict[str, int] = {}

    def spend(step: str, work: Callable[[], T]) -> T:
        result, statements = counted(connection, work)
        spent[step] = len(statements)
        return result

    notifications = [notification(harness, f"n-{n}", recipient=f"{n}", guard=Guard(window_s=60)) for n in range(size)]
    spend("add", lambda: outbox.add(connection, notifications, NOW))
    spend("add again", lambda: outbox.add(connection, notifications, NOW))
    taken = spend("take", lambda: outbox.take(connection, lanes, LEASE_MS, NOW))
    assert len(taken) == size
    verdicts = spend("cross", lambda: outbox.cross(connection, [sender.crossing(one) for one in taken], NOW))
    assert set(verdicts) == {Crossed()}
    records = [answered(harness, one, Accepted("r")) for one in taken]
    assert all(spend("record", lambda: outbox.record(connection, records, NOW)))
    assert spend("take nothing", lambda: outbox.take(connection, lanes, LEASE_MS, NOW)) == []
    outbox.add(connection, [notification(harness, f"m-{n}") for n in range(size)], NOW)
    assert len(spend("take at a rate", lambda: outbox.take(connection, limited, LEASE_MS, NOW))) == size
    assert spent == COSTS


def test_adding_takes_two_statements(connection: apsw.Connection, harness: Harness) -> None:
    with connection:
        _, statements = counted(connection, lambda: outbox.add(connection, [notification(harness, order="o")], NOW))
    assert [sql.split()[0] for sql in statements] == ["select", "insert"]


# ---------------------------------------------------------------------------------------------------------------- plans


def test_no_statement_of_a_relay_or_a_purge_scans_a_table(connection: apsw.Connection, harness: Harness) -> None:
    lanes, limited = ({provider(harness): Lane(100, provider(harness), rate)} for rate in (0.0, 50.0))
    connection.execute("analyze")  # of empty tables

    def run_every_step() -> None:
        guard = Guard(window_s=60)
        notifications = [notification(harness, f"{n}", order="o", guard=guard, recipient=f"{n}") for n in range(3)]
        outbox.add(connection, notifications, NOW)
        for now, lane in ((NOW, lanes), (NOW + 10 * LEASE_MS, limited)):
            for answer in (Refused("no", final=True), Unknown("?"), Accepted("r")):
                taken = outbox.take(connection, lane, LEASE_MS, now)
                outbox.cross(connection, [sender.crossing(one) for one in taken], now)
                outbox.record(connection, [answered(harness, one, answer) for one in taken], now)
        outbox.apply_reports(connection, [DeliveryReport("delivered", None, provider(harness), "r")], NOW)
        outbox_queries.purge(connection, 0, 0, 100, NOW + 10**9)
        outbox_queries.status(connection, harness.namespace, "0", "shipping", "")
        outbox_queries.status(connection, harness.namespace, "", "", "0")

    _, statements = counted(connection, run_every_step)
    names = ("another_notification_of_reference", "recorded_attempts", "erasable", "open_notification")
    seldom = {SQL[name].replace("{rows}", "(?, ?)") for name in names}
    blocks = {outbox._BLOCK_OF_LANE, outbox._BLOCK_OF_TENANT}
    plans = {sql: _plan(connection, sql) for sql in set(statements) | seldom | blocks}
    assert len(plans) > 25
    scans = {step for steps in plans.values() for step in steps if step.startswith("SCAN")}
    assert {step for step in scans if not step.endswith(OF_THE_BATCH)} == set()


OF_THE_BATCH = (
    "CONSTANT ROW",
    "VALUES CLAUSE",
    "SCAN v",
    "VIRTUAL TABLE INDEX 1:",
    "SCAN near",
    "SCAN examined",
    "SCAN e",
)


def _plan(connection: apsw.Connection, sql: str) -> Sequence[str]:
    marks = [f"?{n}" for n in range(1, 7)]
    bindings = tuple(None for mark in marks if mark in sql) or (None,) * sql.count("?")
    return [row[3] for row in connection.execute(f"explain query plan {sql}", bindings)]


def test_a_take_examines_few_dispatches_if_thousands_wait_behind_one(
    connection: apsw.Connection, harness: Harness
) -> None:
    lanes = {provider(harness): Lane(10, provider(harness))}
    outbox.add(connection, [notification(harness, f"{n}", order="o") for n in range(5_000)], NOW)
    (head,) = outbox.take(connection, {provider(harness): Lane(1, provider(harness))}, LEASE_MS, NOW)
    aside = "select count(*) from semel_dispatch where blocked_due_ms is not null"
    assert connection.execute(aside).get == 0, "one was found at once"
    outbox.add(connection, [notification(harness, "free")], NOW + 1)
    (free,) = outbox.take(connection, lanes, LEASE_MS, NOW + 1)
    assert free.notification.key == "free"
    assert connection.execute(aside).get >= 4_500
    assert outbox.take(connection, lanes, LEASE_MS, NOW + 1) == []
    outbox.cross(connection, [sender.crossing(head)], NOW + 1)
    outbox.record(connection, [answered(harness, head, Accepted("r"))], NOW + 1)
    assert [one.notification.key for one in outbox.take(connection, lanes, LEASE_MS, NOW + 1)] == ["1"]


def test_purge_deletes_guards_attempts_and_notifications(connection: apsw.Connection, harness: Harness) -> None:
    notifications = [notification(harness, f"{n}", recipient=f"{n}", guard=Guard(window_s=60)) for n in range(5)]
    outbox.add(connection, notifications, NOW)
    taken = outbox.take(connection, {provider(harness): Lane(10, provider(harness))}, LEASE_MS, NOW)
    outbox.cross(connection, [sender.crossing(one) for one in taken], NOW)
    outbox.record(connection, [answered(harness, one, Accepted("r")) for one in taken], NOW)

    def left() -> list[int]:
        tables = ("semel_notification", "semel_attempt", "semel_guard", "semel_dispatch")
        return [int(connection.execute(f"select count(*) from {table}").get) for table in tables]

    assert left() == [5, 5, 5, 0]
    assert outbox_queries.purge(connection, 1_000, 50_000, 100, NOW + 50_000) == 10, "what they notifications, and they"
    assert left() == [0, 0, 5, 0], "their guards hold"
    assert outbox_queries.purge(connection, 1_000, 50_000, 100, NOW + 109_999) == 0
    assert outbox_queries.purge(connection, 1_000, 50_000, 3, NOW + 110_000) == 3
    assert outbox_queries.purge(connection, 1_000, 50_000, 3, NOW + 110_000) == 2
    assert left() == [0, 0, 0, 0]
