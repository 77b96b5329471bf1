"""What is special about adding in the ledger's own file: its lock, its clock, and the libraries that open it."""

from __future__ import annotations

import asyncio
import random
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from tests.outbox.adding.places import EVERYTHING, Place, notification
from tests.outbox.adding.roads import NO_CHECKPOINTS, SQLITE, engine_of

from semel import ConfigError, outbox
from semel.ledgers.sqlite import SqliteLedger, caller_transaction
from semel.values.outbox import Added, Lane

OLD = sqlite3.sqlite_version_info < caller_transaction.SOUND
WAIT_S = 60.0
RACERS = 4


@pytest.fixture
def place(file: str) -> Place:
    return Place(file, is_postgres=False)


@pytest.fixture
def connection(file: str) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(file)
    yield connection
    connection.close()


def opened(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute(NO_CHECKPOINTS)
    return connection


# ---------------------------------------------------------------------------------------------------------- at once


@pytest.mark.parametrize("commit", [True, False], ids=["the first commits", "the first rolls back"])
def test_of_two_at_once_the_second_waits_for_what_becomes_of_the_first(
    place: Place, connection: apsw.Connection, commit: bool
) -> None:
    """Also where its transaction was begun without a lock: the first thing that it does is to write."""
    met = threading.Event()
    answers: list[str] = []

    def wait(tries: int) -> bool:
        met.set()
        time.sleep(0.005)
        return tries < WAIT_S / 0.005

    def second() -> None:
        with closing(apsw.Connection(place.url)) as other:
            other.set_busy_handler(wait)
            other.execute("begin")
            answers.append(outbox.add(other, notification()).status)
            other.execute("commit")

    connection.execute("begin immediate")
    assert outbox.add(connection, notification()).status == "added"
    thread = threading.Thread(target=second)
    thread.start()
    assert met.wait(WAIT_S), "inconclusive: the second never met the first"
    connection.execute("commit" if commit else "rollback")
    thread.join()
    assert answers == ["known" if commit else "added"]
    assert place.keys() == ["order-1"]


def test_of_many_at_once_each_gets_an_answer_and_one_has_added_it(place: Place) -> None:
    ones = [notification(f"n-{n}") for n in range(20)]
    ready = threading.Barrier(RACERS)

    def racer(seed: int) -> list[tuple[str, str]]:
        with closing(apsw.Connection(place.url)) as connection:
            connection.set_busy_timeout(int(1000 * WAIT_S))
            answers: list[tuple[str, str]] = []
            ready.wait()
            for one in random.Random(seed).sample(ones, len(ones)):
                with connection:
                    answers.append((one.key, outbox.add(connection, one).status))
            return answers

    with ThreadPoolExecutor(RACERS) as pool:
        answers = [answer for one in pool.map(racer, range(RACERS)) for answer in one]
    assert len(answers) == RACERS * len(ones)
    assert sorted(key for key, status in answers if status == "added") == sorted(one.key for one in ones)
    assert {status for _, status in answers} == {"added", "known"}
    assert len(place.keys()) == len(ones)


def test_what_sqlalchemy_says_of_an_error_names_nobody(place: Place) -> None:
    engine = engine_of("sqlite+pysqlite", place.url, connect_args={"timeout": 0})
    with closing(opened(place.url)) as other, Session(engine) as session:
        other.execute("begin immediate")
        with pytest.raises(OperationalError, match="locked") as caught:
            outbox.add(session, notification(recipient="+4915199999"))
        assert "+4915199999" not in str(caught.value)
    engine.dispose()


def test_a_file_that_is_busy_is_the_drivers_to_tell_and_the_transaction_goes_on(
    place: Place, connection: apsw.Connection
) -> None:
    connection.execute("begin immediate")
    with closing(apsw.Connection(place.url)) as other:
        other.execute("begin")
        with pytest.raises(apsw.BusyError):
            outbox.add(other, notification())
        connection.execute("rollback")
        assert outbox.add(other, notification()).status == "added"
        other.execute("commit")
    assert place.keys() == ["order-1"]


def test_a_transaction_that_has_read_before_somebody_wrote_is_the_callers_to_repeat(
    place: Place, connection: apsw.Connection
) -> None:
    connection.execute("begin")
    connection.execute("select count(*) from semel_notification").fetchall()
    with closing(apsw.Connection(place.url)) as other, other:
        outbox.add(other, notification())
    with pytest.raises(apsw.BusyError):
        outbox.add(connection, notification())
    connection.execute("rollback")
    with connection:
        assert outbox.add(connection, notification()).status == "known"


# ------------------------------------------------------------------------------------------------------- libraries


@pytest.mark.parametrize("road", ["sqlite3", "aiosqlite", "session on sqlite3", "async session on aiosqlite"])
def test_two_libraries_on_one_file_in_one_process_are_refused(place: Place, tmp_path: Path, road: str) -> None:
    async def story() -> None:
        elsewhere = SqliteLedger(str(tmp_path / "other.db"))
        await elsewhere.purge(1)
        async with SQLITE[road](place.url) as customer:
            assert [one.status for one in await customer.add(notification("with another"))] == ["added"]
            await customer.end(commit=True)
        await elsewhere.close()
        async with place.ledger() as ledger, SQLITE[road](place.url) as customer:
            await ledger.outbox.take({}, 1_000)  # it is open
            with pytest.raises(ConfigError, match="process"):
                await customer.add(notification("beside"))
            await customer.end(commit=False)
        async with SQLITE[road](place.url) as customer:
            assert [one.status for one in await customer.add(notification("after"))] == ["added"]
            await customer.end(commit=True)

    asyncio.run(story())
    assert place.keys() == ["after", "with another"]


def test_a_connection_of_the_callers_own_counts_as_well(place: Place, connection: apsw.Connection) -> None:
    """Neither library sees the locks of the other: both would write at once."""
    with closing(opened(place.url)) as other:
        with pytest.raises(ConfigError, match="process"):
            outbox.add(other, notification())
        connection.close()
        assert outbox.add(other, notification()).status == "added"


def test_the_ledgers_own_library_may_be_used_beside_it(place: Place) -> None:
    async def story() -> None:
        async with place.ledger() as ledger, SQLITE["apsw"](place.url) as customer:
            await ledger.outbox.take({}, 1_000)
            await customer.add(notification(provider="one"))
            await customer.end(commit=True)
            (taken,) = await ledger.outbox.take({"one": Lane(1)}, 1_000)
            assert taken.notification == notification(provider="one")

    asyncio.run(story())


def first_of(asked: caller_transaction.Conversation) -> tuple[str, tuple[Any, ...]]:
    """What is asked first, besides which file it is: other tests may have ledgers open in this process."""
    first = next(asked)
    return asked.send([]) if first[0] == "pragma database_list" else first


@pytest.mark.parametrize("library", ["3.40.1", "3.51.2", "3.7.0"])
def test_a_library_that_can_corrupt_the_file_must_leave_checkpoints_alone(library: str) -> None:
    asked = caller_transaction.adding([notification()], library)
    assert first_of(asked) == ("pragma wal_autocheckpoint", ())
    told = rf"{re.escape(library)}.*3\.51\.3.*pragma wal_autocheckpoint = 0"
    with pytest.raises(ConfigError, match=told):
        asked.send([(1000,)])
    asked = caller_transaction.adding([notification()], library)
    first_of(asked)
    assert asked.send([(0,)])[0].startswith("insert")


@pytest.mark.parametrize("library", ["3.51.3", "3.52.0", "4.0", ""])
def test_a_sound_library_is_asked_nothing(library: str) -> None:
    assert first_of(caller_transaction.adding([notification()], library))[0].startswith("insert")


@pytest.mark.skipif(not OLD, reason=f"sqlite3 of this Python is sound: {sqlite3.sqlite_version}")
@pytest.mark.parametrize("by", ["sqlite3", "sqlalchemy"])
def test_an_old_library_is_refused_before_anything_is_written(place: Place, by: str) -> None:
    with closing(sqlite3.connect(place.url)) as connection:
        if by == "sqlite3":
            with pytest.raises(ConfigError, match="wal_autocheckpoint"):
                outbox.add(connection, notification())
            assert not connection.in_transaction
        else:
            engine = engine_of("sqlite+pysqlite", place.url)
            with Session(engine) as session:
                session.connection().exec_driver_sql("pragma wal_autocheckpoint = 1000")
                with pytest.raises(ConfigError, match="wal_autocheckpoint"):
                    outbox.add(session, notification())
            engine.dispose()
    assert place.keys() == []


# ------------------------------------------------------------------------------------------------------ setting up


@pytest.mark.parametrize("road", list(SQLITE))
def test_a_file_without_the_outbox_is_told_and_the_transaction_goes_on(tmp_path: Path, road: str) -> None:
    path = str(tmp_path / "business.db")

    async def story() -> None:
        async with SQLITE[road](path) as customer:
            await customer.write("create table orders (name text)")
            await customer.write("insert into orders values ('4711')")
            with pytest.raises(ConfigError, match="outbox"):
                await customer.add(notification())
            await customer.end(commit=True)

    asyncio.run(story())
    assert Place(path, is_postgres=False).orders() == ["4711"]


def test_a_ledger_beside_the_callers_file_is_not_enough(tmp_path: Path, place: Place) -> None:
    """A transaction over two files in WAL mode is two when the power fails."""
    with closing(apsw.Connection(str(tmp_path / "business.db"))) as connection:
        connection.execute("attach ? as ledger", (place.url,))
        with connection, pytest.raises(ConfigError, match="outbox"):
            outbox.add(connection, notification())
    assert place.keys() == []


def test_there_are_no_schemas(connection: apsw.Connection) -> None:
    with connection, pytest.raises(ConfigError, match=r"'other'.*SQLite"):
        outbox.add(connection, notification(), schema="other")


def test_another_driver_of_sqlalchemy_is_told_what_it_can_use(place: Place) -> None:
    engine = engine_of("sqlite+pysqlite", place.url)
    engine.dialect.driver = "pysqlcipher"
    told = r"sqlite\+pysqlcipher.*docs/outbox-sql\.md"
    with Session(engine) as session, pytest.raises(ConfigError, match=told):
        outbox.add(session, notification())
    engine.dispose()


# -------------------------------------------------------------------------------------------------- rows and times


@pytest.mark.parametrize("road", ["apsw", "sqlite3", "aiosqlite"])
def test_what_the_caller_wants_of_rows_and_texts_does_not_matter(place: Place, road: str) -> None:
    one, other = notification(**EVERYTHING), notification(**{**EVERYTHING, "body": "something else"})

    async def story() -> list[Added]:
        async with SQLITE[road](place.url) as customer:
            if road == "apsw":
                customer.connection.row_trace = lambda cursor, row: "a row"
            else:
                customer.connection.row_factory = lambda cursor, row: "a row"
                customer.connection.text_factory = bytes
            answers = [*await customer.add(one), *await customer.add(one, other)]
            await customer.end(commit=True)
            return answers

    answers = asyncio.run(story())
    assert [one.status for one in answers] == ["added", "known", "conflict"]
    assert [one.state for one in answers] == ["pending"] * 3
    (row,) = place.rows("notification")
    assert row["content"] == one.content


@pytest.mark.parametrize("road", ["apsw", "sqlite3"])
def test_times_are_told_by_the_ledgers_clock_and_not_by_the_wall(place: Place, road: str) -> None:
    """It never jumps: a wall clock that was corrected since the boot is not looked at."""
    hour = 3_600_000
    if not place.ask("select 1 from semel_meta where name = 'boot_offset'"):
        pytest.skip("no time since boot here: the wall clock is the only one that processes share")
    place.ask(f"update semel_meta set value = value - {hour} where name = 'boot_offset'")

    async def story() -> None:
        async with SQLITE[road](place.url) as customer:
            await customer.add(notification(provider="one"))
            await customer.end(commit=True)

    asyncio.run(story())
    ((added,),) = [tuple(row.values()) for row in place.ask("select added_ms from semel_notification")]
    assert abs(time.time() * 1000 - hour - added) < hour / 2
    (taken,) = place.with_ledger(lambda ledger: ledger.outbox.take({"one": Lane(1)}, 1_000))
    assert taken.id == notification(provider="one").id


def test_before_a_ledger_was_opened_since_the_boot_the_wall_clock_is_right(
    place: Place, connection: apsw.Connection
) -> None:
    place.ask("update semel_meta set value = 'an earlier boot' where name = 'boot'")
    place.ask("update semel_meta set value = 5 where name = 'boot_offset'")
    with connection:
        outbox.add(connection, notification(provider="one"))
    connection.close()
    ((added,),) = [tuple(row.values()) for row in place.ask("select added_ms from semel_notification")]
    assert abs(time.time() * 1000 - added) < 600_000
    (taken,) = place.with_ledger(lambda ledger: ledger.outbox.take({"one": Lane(1)}, 1_000))
    assert taken.id == notification(provider="one").id
