"""Inbox and catalog on SQLite: query plans, locks, threads and the clock."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.facts import rendered

from semel.ledgers.sqlite import SqliteLedger, database, inbox
from semel.ledgers.sqlite.statements import SQL
from semel.ports import DeadLetters, EntryQuery, Inbox
from semel.testing.harness import FakeClock, Harness, InboxCaller, arrival, lane
from semel.values.errors import LedgerUnavailable
from semel.values.inbox import Finished, GivenUp, Postponed

HARNESS = Harness(open=lambda: SqliteLedger("nowhere"), namespace="inbox")
LANE = lane(HARNESS)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


@pytest.fixture
def ledger(path: str) -> Iterator[InboxCaller]:
    with InboxCaller(partial(SqliteLedger, path)) as clerk:
        yield clerk


def test_sqlite_has_an_inbox_and_dead_letters(ledger: InboxCaller) -> None:
    assert isinstance(ledger.ledger, Inbox)
    assert isinstance(ledger.ledger, DeadLetters)


# -------------------------------------------------------------------------------------------------------------- plans

WELL_PLANNED = {  # a part of the plan of each statement; no other table may be scanned or sorted
    "inbox_keys": "SEARCH q USING PRIMARY KEY (digest=?)",
    "due_inbox_items": "semel_inbox_due (lane=? AND due_ms<?)",
    "is_due": "semel_inbox_due (lane=? AND due_ms<?)",
    "take_inbox_items": "semel_inbox USING INTEGER PRIMARY KEY (rowid=?)",
    "finish_inbox_items": "semel_inbox USING INTEGER PRIMARY KEY (rowid=?)",
    "postpone_inbox_items": "semel_inbox USING INTEGER PRIMARY KEY (rowid=?)",
    "delete_inbox_keys": "semel_inbox_key USING PRIMARY KEY (digest=? AND id=?)",
    "delete_inbox_events": "semel_inbox_event USING INTEGER PRIMARY KEY (rowid=?)",
    "undecided_dead_letter": "semel_record_dead_letters (digest=?)",
    "dead_letter_entries": "semel_record_undecided (outcome=? AND decided_ms=? AND settled_ms>? AND settled_ms<?)",
    "count_dead_letters": "COVERING INDEX semel_record_undecided",
    "records_of_key": "semel_record_dead_letters (digest=?)",
    "inbox_items_of_key": "SEARCH q USING PRIMARY KEY (digest=?)",
    "inbox_depths": "SCAN semel_inbox USING COVERING INDEX semel_inbox_due",
    "known_keys": "SEARCH d USING PRIMARY KEY (digest=?)",
}
SCANS = {
    "inbox_depths": "SCAN semel_inbox USING COVERING INDEX",
    "count_dead_letters": "COVERING INDEX semel_record_undecided",
}
SORTS = {"undecided_dead_letter", "records_of_key", "inbox_items_of_key"}  # the few rows of one key


@pytest.mark.parametrize("name", list(WELL_PLANNED))
def test_no_inbox_statement_scans_a_table(path: str, ledger: InboxCaller, name: str) -> None:
    """The planner has no statistics, so the plan is the same for a million items."""
    ledger.put(arrival(HARNESS, "a"))
    connection = database.open_reader(path, "full")
    connection.create_scalar_function("semel_contains", lambda *texts: True, 2)
    width = 2 if name == "delete_inbox_keys" else 4
    row = f"({','.join('?' * width)})"
    sql = SQL[name].format(keys="?1,?2", rows=f"{row},{row}")
    steps = [row[3] for row in connection.execute(f"explain query plan {sql}", _bindings(sql))]
    connection.close()
    tables = [step for step in steps if re.search(r"(SCAN|SEARCH)", step)]
    assert any(WELL_PLANNED[name] in step for step in tables), steps
    own = [step for step in tables if step.startswith("SCAN") and not re.search(r"SCAN (v|lanes|\d)", step)]
    assert own == [] or all(SCANS.get(name, "nothing") in step for step in own), steps
    assert name in SORTS or not any("TEMP B-TREE" in step for step in steps), steps


def _bindings(sql: str) -> Any:
    if ":since" in sql:
        names = ("handler", "tenant", "reason", "since", "until", "limit", "outcome", "lease_state")
        return dict.fromkeys(names, 1)
    numbered = [int(number) for number in re.findall(r"\?(\d)", sql)]
    return (1,) * (max(numbered) if numbered else sql.count("?"))


def test_every_statement_has_a_name_of_its_own() -> None:
    folder = Path(inbox.__file__).parent
    files = [file for file in folder.glob("*.sql") if file.name != "caller_transaction.sql"]  # which has its own names
    names = [name for file in files for name in re.findall("-- name: (.*)", file.read_text())]
    assert sorted(names) == sorted(SQL)


# -------------------------------------------------------------------------------------------------------------- locks


@pytest.fixture
def locked(path: str, ledger: InboxCaller, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another process holds the write lock."""
    monkeypatch.setattr(database, "BUSY_S", 0.3)
    ledger.put(arrival(HARNESS, "there"))
    blocker = apsw.Connection(path)
    blocker.execute("begin immediate")
    yield
    blocker.close()


@pytest.mark.parametrize(
    "ask",
    [
        lambda clerk: clerk.store.entries(EntryQuery()),
        lambda clerk: clerk.store.history("00" * 16),
        lambda clerk: clerk.store.counts(),
        lambda clerk: clerk.store.depths(),
    ],
    ids=["entries", "history", "counts", "depths"],
)
@pytest.mark.parametrize("fresh", [False, True], ids=["open", "fresh"])
def test_queries_do_not_wait_for_a_writer(
    path: str, ledger: InboxCaller, locked: None, ask: Callable[[InboxCaller], Any], fresh: bool
) -> None:
    with InboxCaller(partial(SqliteLedger, path)) as other:
        assert (other if fresh else ledger).run(ask(other if fresh else ledger)) is not None
        with pytest.raises(LedgerUnavailable, match=r"\block"):
            other.put(arrival(HARNESS, "a"))


def test_a_write_does_not_wait_for_a_reader(path: str, ledger: InboxCaller) -> None:
    ledger.put(arrival(HARNESS, "a"))
    reader = database.open_reader(path, "full")
    reader.execute("begin")
    assert reader.execute("select count(*) from semel_inbox").get == 1
    ledger.put(arrival(HARNESS, "b"))
    assert reader.execute("select count(*) from semel_inbox").get == 1
    reader.execute("commit")
    assert reader.execute("select count(*) from semel_inbox").get == 2
    reader.close()


def test_a_reader_cannot_write(path: str, ledger: InboxCaller) -> None:
    ledger.put(arrival(HARNESS, "a"))
    reader = database.open_reader(path, "full")
    with pytest.raises(apsw.ReadOnlyError):
        reader.execute("delete from semel_inbox")
    reader.close()


def test_a_worker_at_an_empty_inbox_takes_no_lock(
    path: str, ledger: InboxCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.3)
    assert ledger.take(HARNESS) == []
    with InboxCaller(partial(SqliteLedger, path)) as other:
        other.put(arrival(HARNESS, "a", to="another lane"))
    blocker = apsw.Connection(path)
    blocker.execute("begin immediate")
    assert [ledger.take(HARNESS) for _ in range(3)] == [[], [], []]
    with pytest.raises(LedgerUnavailable, match=r"\block"):
        ledger.take(HARNESS, "another lane")
    blocker.close()
    assert len(ledger.take(HARNESS, "another lane")) == 1


def test_slow_queries_of_operators_do_not_delay_the_inbox(ledger: InboxCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators use another thread. Their query here waits for a take from the inbox."""
    ledger.put(arrival(HARNESS, "a"))

    async def story() -> None:
        looked = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slowly(connection: apsw.Connection) -> dict[str, int]:
            asyncio.run_coroutine_threadsafe(looked.wait(), loop).result(30)
            return {}

        monkeypatch.setattr("semel.ledgers.sqlite.catalog.counts", slowly)
        counting = asyncio.ensure_future(ledger.store.counts())
        await asyncio.sleep(0.05)
        assert len(await ledger.store.take({LANE: 1}, 60_000)) == 1
        assert await ledger.store.take({LANE: 1}, 60_000) == []
        assert len(await ledger.store.depths()) == 1
        assert not counting.done()
        looked.set()
        assert await counting == {}

    ledger.run(story())


def test_purge_deletes_every_row_of_a_dead_letter_with_a_decision(path: str) -> None:
    clock = FakeClock()
    with InboxCaller(lambda: SqliteLedger(path, clock=clock)) as clerk:
        for name in ("by the handler", "discarded", "replayed"):
            claim = HARNESS.claim(name, aliases=[f"{name} alias"])
            if name == "by the handler":
                clerk.die(claim)
            else:
                clerk.put(arrival(HARNESS, claim))
                clerk.finish(GivenUp(clerk.take_one(HARNESS), "no"))
            assert (clerk.replay if name == "replayed" else clerk.discard)(claim) is True
        clerk.finish(Finished(clerk.take_one(HARNESS)))
        clock.now_ms += 2 * HARNESS.retention_ms
        assert clerk.purge() == 3
    with apsw.Connection(path) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")]
        left = {name for name in tables if connection.execute(f"select count(*) from {name}").get}
        assert left == {"semel_meta"}


# ------------------------------------------------------------------------------------------------- threads and files


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_removed_or_replaced_file_is_not_read(path: str, how: str) -> None:
    with InboxCaller(partial(SqliteLedger, path)) as clerk:
        clerk.put(arrival(HARNESS, "a"))
        entries = partial(clerk.store.entries, EntryQuery())
        asks: list[Callable[[], Any]] = [clerk.store.counts, clerk.store.depths, entries]
        for ask in asks:
            clerk.run(ask())
        Path(path).rename(f"{path}.elsewhere")
        if how == "replaced":
            Path(path).write_bytes(b"")
        for ask in asks:
            with pytest.raises(LedgerUnavailable, match=re.escape(path)):
                clerk.run(ask())
        clerk.run(clerk.store.close())
        assert clerk.run(clerk.store.counts())["accepted"] == 0


def test_a_closed_ledger_reads_again_at_the_next_query(path: str) -> None:
    ledger = SqliteLedger(path)
    for number in (1, 2):
        with InboxCaller(lambda: ledger) as clerk:
            clerk.put(arrival(HARNESS, f"key {number}"))
            assert clerk.run(clerk.store.counts())["accepted"] == number
            assert clerk.depth(HARNESS) == (number, 0)


def test_a_query_can_create_the_file(path: str) -> None:
    for _ in range(2):
        with InboxCaller(partial(SqliteLedger, path)) as clerk:
            assert clerk.run(clerk.store.entries(EntryQuery())) == []
            assert clerk.run(clerk.store.depths()) == []
    assert Path(path).exists()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_reader_is_refused_after_a_fork(path: str, ledger: InboxCaller) -> None:
    ledger.run(ledger.store.counts())
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "read"
        try:
            asyncio.new_event_loop().run_until_complete(ledger.store.counts())
        except LedgerUnavailable as error:
            said = str(error)
        finally:
            os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        assert "forked" in told.read()
    os.waitpid(child, 0)
    assert ledger.run(ledger.store.counts())["accepted"] == 0


def test_items_taken_for_a_cancelled_caller_are_released(ledger: InboxCaller, path: str) -> None:
    """No lease has to expire, and no expired lease is counted."""
    for at in range(3):
        ledger.put(arrival(HARNESS, f"key {at}"))

    async def story() -> None:
        blocker = apsw.Connection(path)
        blocker.execute("begin immediate")
        taking = asyncio.ensure_future(ledger.store.take({LANE: 10}, 60_000))
        await asyncio.sleep(0.05)
        taking.cancel()
        await asyncio.sleep(0.05)
        blocker.close()
        with pytest.raises(asyncio.CancelledError):
            await taking

    ledger.run(story())
    assert ledger.depth(HARNESS) == (3, 0)
    taken = ledger.take(HARNESS)
    assert [one.lapses for one in taken] == [0, 0, 0]
    assert min(one.token for one in taken) > 6, "the fault landed: they had been taken before"


# -------------------------------------------------------------------------------------------------------------- clock


def test_items_taken_before_a_reboot_are_due(path: str) -> None:
    with InboxCaller(partial(SqliteLedger, path)) as before:
        before.accept_all([arrival(HARNESS, name, event=name.encode()) for name in ("taken", "later")])
        taken, later = before.take(HARNESS, lease_ms=600_000)
        before.finish(Postponed(later, 600_000))
    with apsw.Connection(path) as connection:
        assert connection.execute("update semel_meta set value = 'another' where name = 'boot' returning 1").fetchall()
    with InboxCaller(partial(SqliteLedger, path)) as reader:
        assert reader.depth(HARNESS) == (1, 1), "nobody has written since: nobody knows yet"
    with InboxCaller(partial(SqliteLedger, path)) as after:
        again = after.take_one(HARNESS)
        assert (again.event, again.lapses) == (b"taken", 1)
        assert after.finish(Finished(taken)) is False


def test_a_clock_that_went_back_between_two_boots_delays_no_inbox_item(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with InboxCaller(partial(SqliteLedger, path)) as before:
        before.put(arrival(HARNESS, "a"))
    with apsw.Connection(path) as connection:
        assert connection.execute("update semel_meta set value = 'another' where name = 'boot' returning 1").fetchall()
    a_year_ago_ns = time.time_ns() - 365 * 86_400 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: a_year_ago_ns)
    with InboxCaller(partial(SqliteLedger, path)) as after:
        taken = after.take_one(HARNESS)
        assert taken.accepted_ms > a_year_ago_ns // 1_000_000 + 300 * 86_400_000, "the clock did go back"


# ---------------------------------------------------------------------------------------------------------- diagnosis


def test_diagnose_reports_a_healthy_store(ledger: InboxCaller, path: str) -> None:
    ledger.put(arrival(HARNESS, "a"))
    assert isinstance(ledger.ledger, SqliteLedger)
    facts = rendered(ledger.run(ledger.ledger.diagnose()))
    assert facts["file"] == path
    assert facts["SQLite"] == apsw.sqlite_lib_version()
    assert (facts["journal"], facts["synchronous"], facts["writable"]) == ("wal", "full", "yes")
    assert (facts["integrity"], facts["schema"]) == ("ok", f"version {database.SCHEMA_VERSION}")
    for name in ("size", "WAL", "free disk"):
        assert re.fullmatch(r"(warning: )?[\d,]+ bytes", facts[name])
    assert not any(text.startswith("error: ") for text in facts.values())


def test_diagnose_reports_a_store_that_cannot_be_written(ledger: InboxCaller, locked: None) -> None:
    assert isinstance(ledger.ledger, SqliteLedger)
    facts = rendered(ledger.run(ledger.ledger.diagnose()))
    assert facts["writable"].startswith("error: ")
    assert "lock" in facts["writable"]
    assert facts["integrity"] == "ok"


def test_diagnose_reports_a_missing_store(tmp_path: Path) -> None:
    with InboxCaller(partial(SqliteLedger, str(tmp_path / "no" / "folder" / "ledger.db"))) as clerk:
        assert isinstance(clerk.ledger, SqliteLedger)
        facts = rendered(clerk.run(clerk.ledger.diagnose()))
    errors = {name for name, text in facts.items() if text.startswith("error: ")}
    assert errors == {"folder", "readable", "writable"}


def test_diagnose_reports_a_damaged_store(path: str) -> None:
    with InboxCaller(lambda: SqliteLedger(path, clock=FakeClock())) as clerk:
        for at in range(200):
            clerk.put(arrival(HARNESS, f"key {at}", event=b"x" * 1000))
            clerk.finish(GivenUp(clerk.take_one(HARNESS), "no"))
    data = bytearray(Path(path).read_bytes())
    page = len(data) // 4096 // 2 * 4096
    data[page : page + 4096] = b"\xff" * 4096
    Path(path).write_bytes(data)
    with InboxCaller(partial(SqliteLedger, path)) as clerk:
        assert isinstance(clerk.ledger, SqliteLedger)
        facts = rendered(clerk.run(clerk.ledger.diagnose()))
        assert facts.get("integrity", facts.get("readable", "")).startswith("error: ")
