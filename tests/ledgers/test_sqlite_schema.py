"""The versions of the file: an old one goes forward and keeps what it knows, all the way or not at all."""

from __future__ import annotations

import multiprocessing
from functools import partial
from importlib.resources import files
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import apsw
import pytest

from semel.ledgers.sqlite import SqliteLedger, database
from semel.testing.harness import START_MS, FakeClock, Harness, InboxCaller, arrival
from semel.testing.laws.catalog import SWEPT_MS
from semel.values.claim import Busy, Settled
from semel.values.errors import LedgerUnavailable
from semel.values.event import PLAIN
from semel.values.outcome import Done, Reject

HARNESS = Harness(open=lambda: SqliteLedger("nowhere"), namespace="schema")
KEPT_MS = 600_000

DONE, DEAD, LEASED, WAITING = (
    HARNESS.claim(text, retention_ms=KEPT_MS) for text in ("done", "dead", "leased", "waits")
)


def write_version_1(path: str, now_ms: int = START_MS) -> None:
    """A file as version 1 left it: its own statements, with the columns that there were."""
    connection = apsw.Connection(path)
    connection.execute("pragma journal_mode = wal")
    connection.execute(files(database.__package__).joinpath("schema", "001_ledger.sql").read_text())
    connection.execute(f"pragma application_id = {database.APPLICATION_ID}; pragma user_version = 1")
    for token, claim, outcome, result in ((1, DONE, 1, b"7"), (2, DEAD, 2, b"no")):
        about = (claim.tenant, claim.handler, claim.text)
        row = (token, claim.digest, None, outcome, result, None, 1, now_ms, now_ms + KEPT_MS, *about)
        connection.execute(f"insert into semel_record values ({','.join('?' * len(row))})", row)
        connection.execute("insert into semel_done values (?, ?, ?)", (claim.digest, token, now_ms + KEPT_MS))
    connection.execute("insert into semel_letter values (2, ?)", (b'{"id":2}',))
    for token, claim, state in ((3, LEASED, 1), (4, WAITING, 2)):
        about = (claim.tenant, claim.handler, claim.text)
        lease = (claim.digest, token, state, now_ms + 10_000, 1, now_ms, 0, None, KEPT_MS, *about)
        connection.execute(f"insert into semel_lease values ({','.join('?' * len(lease))})", lease)
    connection.execute("update semel_meta set value = 4 where name = 'token'")
    connection.close()


def marks(path: str) -> tuple[int, set[str]]:
    """Version and tables."""
    connection = apsw.Connection(path)
    tables = {name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")}
    version = connection.pragma("user_version")
    connection.close()
    return version, tables


def test_a_file_of_version_1_goes_forward_and_keeps_what_it_knows(tmp_path: Path) -> None:
    path, clock = str(tmp_path / "ledger.db"), FakeClock()
    write_version_1(path)
    assert marks(path)[0] == 1
    with InboxCaller(lambda: SqliteLedger(path, clock=clock)) as clerk:
        assert clerk.claim(DONE) == Settled(Done(b"7"))
        assert clerk.claim(DEAD) == Settled(Reject("no"))
        assert [type(clerk.claim(claim)) for claim in (LEASED, WAITING)] == [Busy, Busy]
        counts = {"accepted": 0, "leased": 1, "waiting": 1, "done": 1, "dead": 1, "uncertain": 0}
        assert clerk.run(clerk.store.counts()) == counts
        (dead_letter,) = clerk.run(clerk.store.entries("dead"))
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
    assert marks(path)[0] == database.SCHEMA_VERSION


def test_an_old_file_and_a_new_one_come_to_the_same_schema(tmp_path: Path) -> None:
    old, new = str(tmp_path / "old.db"), str(tmp_path / "new.db")
    write_version_1(old)
    found = []
    for path in (old, new):
        database.open_database(path, "normal").close()
        connection = apsw.Connection(path)
        found.append(sorted(connection.execute("select type, name, sql from sqlite_schema"), key=repr))
        assert connection.execute("pragma integrity_check").get == "ok"
        connection.close()
    assert found[0] == found[1]


def test_a_catalog_takes_an_old_file_forward_too(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.db")
    write_version_1(path)
    with InboxCaller(lambda: SqliteLedger(path, clock=FakeClock())) as clerk:
        assert len(clerk.run(clerk.store.entries())) == 4
    assert marks(path)[0] == database.SCHEMA_VERSION


def test_a_step_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "ledger.db")
    write_version_1(path)
    before = marks(path)
    with apsw.Connection(path) as connection:  # the last thing that the step makes is there already
        connection.execute("create table semel_record_letter_keys (x)")
    with (
        InboxCaller(lambda: SqliteLedger(path, clock=FakeClock())) as clerk,
        pytest.raises(LedgerUnavailable, match="already"),
    ):
        clerk.claim(DONE)
    assert marks(path) == (1, before[1] | {"semel_record_letter_keys"})
    with apsw.Connection(path) as connection:
        connection.execute("drop table semel_record_letter_keys")
    with InboxCaller(lambda: SqliteLedger(path, clock=FakeClock())) as clerk:
        assert clerk.claim(DONE) == Settled(Done(b"7"))


def test_an_older_semel_cannot_write_into_a_file_that_went_forward(tmp_path: Path) -> None:
    """Processes of the version before fail, and lose nothing."""
    path = str(tmp_path / "ledger.db")
    write_version_1(path)
    old = apsw.Connection(path)
    insert = f"insert into semel_lease values ({','.join('?' * 12)})"
    database.open_database(path, "normal").close()
    with pytest.raises(apsw.SQLError, match="15 columns"):
        old.execute(insert, (b"k" * 16, 9, 1, 0, 1, 0, 0, None, 0, "", "", ""))
    old.close()


def test_processes_that_go_forward_at_the_same_moment_all_get_verdicts(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    for at in range(10):
        write_version_1(str(tmp_path / f"{at}.db"))
    pipes = [context.Pipe(duplex=False) for _ in range(3)]
    processes = [
        context.Process(target=_go_forward, args=(str(tmp_path), role, barrier, sender))
        for role, (_, sender) in zip(("writer", "writer", "reader"), pipes, strict=True)
    ]
    for process in processes:
        process.start()
    answers: list[list[Any]] = [receiver.recv() for receiver, _ in pipes]
    for process in processes:
        process.join()
    assert answers == [["Settled"] * 10, ["Settled"] * 10, [4] * 10]


def _go_forward(folder: str, role: str, barrier: Barrier, sender: Connection) -> None:
    answers: list[Any] = []
    try:
        for at in range(10):
            with InboxCaller(
                partial(SqliteLedger, f"{folder}/{at}.db", synchronous="normal", clock=FakeClock())
            ) as clerk:
                barrier.wait(30)
                if role == "reader":
                    answers.append(len(clerk.run(clerk.store.entries())))
                else:
                    answers.append(type(clerk.claim(DONE)).__name__)
    except BaseException as error:
        barrier.abort()
        answers.append(repr(error))
    sender.send(answers)
