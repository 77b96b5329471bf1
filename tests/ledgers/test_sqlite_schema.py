"""Schema versions of the file: an older file is migrated completely or not at all, and keeps its contents."""

from __future__ import annotations

import multiprocessing
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.ledgers.later_schema import LATER_VERSION, add_later_step, write_unreleased

from semel.ledgers.sqlite import SqliteLedger, database
from semel.ports import EntryQuery
from semel.testing.harness import FakeClock, Harness, InboxCaller, arrival
from semel.testing.laws.catalog import SWEPT_MS
from semel.values.claim import Busy, Settled
from semel.values.errors import LedgerUnavailable
from semel.values.event import PLAIN
from semel.values.outcome import Done, Reject, Retry

HARNESS = Harness(open=lambda: SqliteLedger("nowhere"), namespace="schema")
KEPT_MS = 600_000

DONE, DEAD, LEASED, WAITING = (
    HARNESS.claim(text, retention_ms=KEPT_MS, lease_ms=10_000) for text in ("done", "dead", "leased", "waits")
)


def fill(path: str, clock: FakeClock) -> None:
    """Write a file of the present version: a done, a dead, a leased and a waiting key."""
    with InboxCaller(lambda: SqliteLedger(path, synchronous="normal", clock=clock)) as clerk:
        assert clerk.settle(clerk.grant(DONE), Done(b"7"))
        assert clerk.settle(clerk.grant(DEAD), Reject("no"), b'{"id":2}')
        clerk.grant(LEASED)
        assert clerk.settle(clerk.grant(WAITING), Retry(10.0, "later"))


def version_and_tables(path: str) -> tuple[int, set[str]]:
    connection = apsw.Connection(path)
    tables = {name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")}
    version = connection.pragma("user_version")
    connection.close()
    return version, tables


def test_an_older_file_is_migrated_and_keeps_its_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, clock = str(tmp_path / "ledger.db"), FakeClock()
    fill(path, clock)
    add_later_step(tmp_path, monkeypatch)
    with InboxCaller(lambda: SqliteLedger(path, clock=clock)) as clerk:
        assert clerk.claim(DONE) == Settled(Done(b"7"))
        assert clerk.claim(DEAD) == Settled(Reject("no"))
        assert [type(clerk.claim(claim)) for claim in (LEASED, WAITING)] == [Busy, Busy]
        counts = {"accepted": 0, "leased": 1, "waiting": 1, "done": 1, "dead": 1, "uncertain": 0}
        assert clerk.run(clerk.store.counts()) == counts
        (dead_letter,) = clerk.run(clerk.store.entries(EntryQuery("dead")))
        assert (dead_letter.event, dead_letter.reason, dead_letter.generation) == (b'{"id":2}', "no", 1)
        assert clerk.accept(arrival(HARNESS, DONE)) == "duplicate: done"
        assert clerk.accept(arrival(HARNESS, LEASED)) == "accepted"
        clock.now_ms += 10_000
        assert [clerk.grant(claim).attempt for claim in (LEASED, WAITING)] == [2, 2]
        assert clerk.replay(DEAD) is True
        (taken,) = clerk.take_all({DEAD.handler: 5}, 1000)
        assert (taken.event, taken.decode_options, taken.only) == (b'{"id":2}', PLAIN, DEAD.handler)
        clock.now_ms += KEPT_MS + SWEPT_MS
        assert clerk.purge() > 0
        assert clerk.grant(DONE).attempt == 1
    assert version_and_tables(path)[0] == LATER_VERSION


def test_a_migrated_file_and_a_new_one_have_the_same_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = str(tmp_path / "old.db"), str(tmp_path / "new.db")
    fill(old, FakeClock())
    add_later_step(tmp_path, monkeypatch)
    found = []
    for path in (old, new):
        database.open_database(path, "normal").close()
        connection = apsw.Connection(path)
        found.append(sorted(connection.execute("select type, name, sql from sqlite_schema"), key=repr))
        assert connection.execute("pragma integrity_check").get == "ok"
        connection.close()
    assert found[0] == found[1]


def test_a_catalog_migrates_an_older_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "ledger.db")
    fill(path, FakeClock())
    add_later_step(tmp_path, monkeypatch)
    with InboxCaller(lambda: SqliteLedger(path, clock=FakeClock())) as clerk:
        assert len(clerk.run(clerk.store.entries(EntryQuery()))) == 4
    assert version_and_tables(path)[0] == LATER_VERSION


def test_a_step_that_fails_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "ledger.db")
    fill(path, FakeClock())
    before = version_and_tables(path)
    add_later_step(tmp_path, monkeypatch)
    with apsw.Connection(path) as connection:  # the last object that the step creates exists already
        connection.execute("create table semel_later_x (x)")
    with (
        InboxCaller(lambda: SqliteLedger(path, clock=FakeClock())) as clerk,
        pytest.raises(LedgerUnavailable, match="already"),
    ):
        clerk.claim(DONE)
    assert version_and_tables(path) == (before[0], before[1] | {"semel_later_x"})
    with apsw.Connection(path) as connection:
        connection.execute("drop table semel_later_x")
    with InboxCaller(lambda: SqliteLedger(path, clock=FakeClock())) as clerk:
        assert clerk.claim(DONE) == Settled(Done(b"7"))


@pytest.mark.parametrize("version", range(database.FIRST_VERSION))
def test_a_file_of_an_unreleased_version_is_refused_unchanged(tmp_path: Path, version: int) -> None:
    path = str(tmp_path / "ledger.db")
    write_unreleased(path, version)
    before = Path(path).read_bytes()
    with (
        InboxCaller(lambda: SqliteLedger(path, clock=FakeClock())) as clerk,
        pytest.raises(LedgerUnavailable, match=f"version {version} of an unreleased Semel.*use another file"),
    ):
        clerk.claim(DONE)
    assert Path(path).read_bytes() == before


def test_processes_that_migrate_at_the_same_time_all_get_verdicts(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    for number in range(10):
        fill(str(tmp_path / f"{number}.db"), FakeClock())
    pipes = [context.Pipe(duplex=False) for _ in range(3)]
    processes = [
        context.Process(target=_migrate, args=(str(tmp_path), role, barrier, sender))
        for role, (_, sender) in zip(("writer", "writer", "reader"), pipes, strict=True)
    ]
    for process in processes:
        process.start()
    answers: list[list[Any]] = [receiver.recv() for receiver, _ in pipes]
    for process in processes:
        process.join()
    assert answers == [["Settled"] * 10, ["Settled"] * 10, [4] * 10]
    assert {version_and_tables(str(tmp_path / f"{number}.db"))[0] for number in range(10)} == {LATER_VERSION}


def _migrate(folder: str, role: str, barrier: Barrier, sender: Connection) -> None:
    answers: list[Any] = []
    own_folder = Path(folder) / f"{role}-{multiprocessing.current_process().pid}"
    own_folder.mkdir()
    try:
        with pytest.MonkeyPatch.context() as monkeypatch:
            add_later_step(own_folder, monkeypatch)
            for number in range(10):
                open_ledger = partial(SqliteLedger, f"{folder}/{number}.db", synchronous="normal", clock=FakeClock())
                with InboxCaller(open_ledger) as clerk:
                    barrier.wait(30)
                    if role == "reader":
                        answers.append(len(clerk.run(clerk.store.entries(EntryQuery()))))
                    else:
                        answers.append(type(clerk.claim(DONE)).__name__)
    except BaseException as error:
        barrier.abort()
        answers.append(repr(error))
    sender.send(answers)
