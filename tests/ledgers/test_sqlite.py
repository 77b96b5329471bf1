"""SQLite only: the file, its locks, its clock and the writer thread."""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import apsw
import pytest

from semel.ledgers.sqlite import SqliteLedger
from semel.ledgers.sqlite import database as opening
from semel.testing.harness import Caller, FakeClock, Harness
from semel.values.claim import Busy, Claim, Granted, Settled, Settlement
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Done, Retry

HARNESS = Harness(open=lambda: SqliteLedger(":memory:"), namespace="sqlite")
LEASE_MS = 60_000


def claim(text: str, lease_ms: int = LEASE_MS) -> Claim:
    return HARNESS.claim(text, lease_ms=lease_ms, retention_ms=600_000)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


@pytest.fixture
def ledger(path: str) -> Iterator[Caller]:
    with Caller(partial(SqliteLedger, path)) as caller:
        yield caller


# ------------------------------------------------------------------------------------------------------------ opening


def test_processes_that_create_the_file_at_the_same_time_all_get_verdicts(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    processes = [context.Process(target=_make_files, args=(str(tmp_path), barrier, sender)) for _, sender in pipes]
    for process in processes:
        process.start()
    answers = [receiver.recv() for receiver, _ in pipes]
    for process in processes:
        process.join()
    for kinds in zip(*answers, strict=True):
        assert sorted(kinds) == ["Busy", "Granted"]


def _make_files(folder: str, barrier: Barrier, sender: Connection) -> None:
    kinds = []
    try:
        for at in range(20):
            with Caller(partial(SqliteLedger, f"{folder}/{at}.db", synchronous="normal")) as caller:
                barrier.wait(30)
                kinds.append(type(caller.claim(claim("a"))).__name__)
    except BaseException as error:
        barrier.abort()
        kinds.append(repr(error))
    sender.send(kinds)


def test_threads_that_create_the_file_at_the_same_time_all_get_verdicts(tmp_path: Path) -> None:
    for at in range(20):
        barrier = threading.Barrier(8)
        kinds: list[type] = []

        def open_and_claim(path: str, barrier: threading.Barrier, kinds: list[type]) -> None:
            with Caller(partial(SqliteLedger, path, synchronous="normal")) as caller:
                barrier.wait(10)
                kinds.append(type(caller.claim(claim("a"))))

        target = partial(open_and_claim, str(tmp_path / f"{at}.db"), barrier, kinds)
        threads = [threading.Thread(target=target) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(kind.__name__ for kind in kinds) == ["Busy"] * 7 + ["Granted"]


@pytest.mark.parametrize("mark", [(0x12345678, 0), (0x12345678, 7), (0, 7)], ids=["id", "id and version", "version"])
def test_a_file_of_another_application_is_refused_unchanged(path: str, mark: tuple[int, int]) -> None:
    _foreign(path, mark)
    before = Path(path).read_bytes()
    _refused(path, "application")
    assert Path(path).read_bytes() == before
    assert [file.name for file in Path(path).parent.iterdir()] == ["ledger.db"]


def test_a_file_of_a_newer_semel_is_refused_unchanged(path: str) -> None:
    newer = opening.SCHEMA_VERSION + 1
    _foreign(path, (opening.APPLICATION_ID, newer))
    before = Path(path).read_bytes()
    _refused(path, f"version {newer}")
    assert Path(path).read_bytes() == before


def test_a_file_that_is_not_a_database_is_refused_unchanged(path: str) -> None:
    Path(path).write_text("a letter to nobody, in particular not to SQLite\n" * 100)
    before = Path(path).read_bytes()
    _refused(path, "not a database")
    assert Path(path).read_bytes() == before


def test_a_database_with_tables_of_the_handlers_can_become_a_ledger(path: str, ledger: Caller) -> None:
    _foreign(path, (0, 0))
    ledger.do(claim("a"))
    with apsw.Connection(path) as connection:
        assert connection.execute("select count(*) from theirs").fetchall() == [(1,)]


@pytest.mark.parametrize("place", ["no/such/folder/ledger.db", "."])
def test_a_path_that_cannot_be_opened_is_unavailable(tmp_path: Path, place: str) -> None:
    _refused(str(tmp_path / place), str(tmp_path))


def test_a_path_that_cannot_be_written_is_unavailable() -> None:
    _refused("/proc/ledger.db", "/proc/ledger.db")


def test_the_ledger_opens_after_its_folder_was_created(tmp_path: Path) -> None:
    with Caller(partial(SqliteLedger, str(tmp_path / "later" / "ledger.db"))) as caller:
        with pytest.raises(LedgerUnavailable):
            caller.claim(claim("a"))
        (tmp_path / "later").mkdir()
        caller.grant(claim("a"))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system does not list the open files of a process")
def test_the_file_of_another_application_is_not_kept_open(path: str) -> None:
    """A connection that stays referenced by the error would keep its locks."""
    _foreign(path, (4711, 1))
    with pytest.raises(LedgerUnavailable) as refused:
        opening.open_database(path, "full")
    opened = {link.resolve() for link in Path("/proc/self/fd").iterdir()}
    assert Path(path).resolve() not in opened, refused.value


def _foreign(path: str, mark: tuple[int, int]) -> None:
    connection = apsw.Connection(path)
    connection.execute(
        "create table theirs (x); insert into theirs values (1);"
        f"pragma application_id = {mark[0]}; pragma user_version = {mark[1]};"
    )
    connection.close()


def test_opening_a_file_on_a_full_disk_reports_the_full_disk(path: str) -> None:
    with Caller(partial(SqliteLedger, path)) as caller:
        caller.grant(claim("a"))
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_open_when_full, args=(path, sender))
    process.start()
    said = receiver.recv()
    process.join()
    assert path in said
    assert "disk I/O error" in said, "and not what its rollback has come to"


def _open_when_full(path: str, sender: Connection) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with Caller(partial(SqliteLedger, path)) as caller:
        try:
            caller.claim(claim("b"))
        except LedgerUnavailable as error:
            sender.send(str(error))
    sender.close()


def _refused(path: str, why: str) -> None:
    with Caller(partial(SqliteLedger, path)) as caller, pytest.raises(LedgerUnavailable, match=why):
        caller.claim(claim("a"))


# -------------------------------------------------------------------------------------------------------------- clock


def test_a_lease_of_an_earlier_boot_is_over(path: str) -> None:
    with Caller(partial(SqliteLedger, path)) as before:
        before.grant(claim("leased"))
        before.settle(before.grant(claim("waiting")), Retry(600))
        before.do(claim("done"))
    with apsw.Connection(path) as connection:
        assert connection.execute("update semel_meta set value = 'another' where name = 'boot' returning 1").fetchall()
    with Caller(partial(SqliteLedger, path)) as after:
        taken = after.grant(claim("leased"))
        assert (taken.attempt, taken.takeover) == (2, True)
        assert isinstance(after.claim(claim("waiting")), Busy)
        assert after.is_done(claim("done"))


@pytest.mark.parametrize("jump_h", [-24, 24])
def test_a_jump_of_the_wall_clock_ends_no_lease(path: str, jump_h: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Caller(partial(SqliteLedger, path)) as first:
        granted = first.grant(claim("a"))
        jumped_ns = time.time_ns() + jump_h * 3600 * 10**9
        monkeypatch.setattr(time, "time_ns", lambda: jumped_ns)
        with Caller(partial(SqliteLedger, path)) as second:
            for caller in (first, second):
                busy = caller.claim(claim("a"))
                assert isinstance(busy, Busy)
                assert LEASE_MS - 10_000 < busy.after_ms <= LEASE_MS
            assert second.settle(granted, Done()) is True
            assert first.is_done(claim("a"))


# -------------------------------------------------------------------------------------------------------------- locks


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(opening, "BUSY_S", 0.3)
    return 0.3


def test_a_claim_fails_while_another_process_holds_the_write_lock(path: str, impatient: float, ledger: Caller) -> None:
    granted = ledger.grant(claim("mine"))
    blocker = apsw.Connection(path)
    blocker.execute("begin immediate")
    for ask in (
        lambda: ledger.claim(claim("a")),
        lambda: ledger.settle(granted, Done()),
        lambda: ledger.renew(granted.lease),
        lambda: ledger.purge(),
    ):
        began = time.monotonic()
        with pytest.raises(LedgerUnavailable, match=r"\block"):
            ask()
        assert impatient * 0.8 < time.monotonic() - began < impatient + 2
    blocker.execute("rollback")
    blocker.close()
    assert ledger.grant(claim("a")).attempt == 1
    assert isinstance(ledger.claim(claim("mine")), Busy)


def test_a_transaction_cannot_begin_while_another_process_holds_the_write_lock(
    path: str, impatient: float, ledger: Caller
) -> None:
    granted = ledger.grant(claim("a"))
    blocker = apsw.Connection(path)
    blocker.execute("begin immediate")

    async def handle() -> None:
        assert isinstance(ledger.ledger, SqliteLedger)
        async with ledger.ledger.transaction(granted.lease):
            pytest.fail("the handler must not run")

    with pytest.raises(LedgerUnavailable, match=r"\block"):
        ledger.run(handle())
    blocker.close()
    assert ledger.settle(granted, Done()) is True


# --------------------------------------------------------------------------------------------------------------- disk


def test_a_full_disk_is_unavailable_until_there_is_space_again(path: str) -> None:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_fill_up, args=(path, sender))
    process.start()
    sender.close()
    said = receiver.recv()
    process.join()
    assert said["while full"] == "LedgerUnavailable"
    assert said["answered"] > 0
    assert said["lost"] == 0, "what was answered is kept"
    assert said["transaction while full"] == "LedgerUnavailable"
    assert said["after"] == "Granted"


def _fill_up(path: str, sender: Connection) -> None:
    """In its own process: a limit on the size of files is set and then removed."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    said: dict[str, object] = {}
    results: list[Claim] = []
    with Caller(partial(SqliteLedger, path)) as caller:
        granted = caller.grant(claim("in a transaction"))
        assert isinstance(caller.ledger, SqliteLedger)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * 1024 * 1024, hard))
        try:
            for at in range(10_000):
                caller.do(claim(f"key {at}"), b"x" * 30_000)
                results.append(claim(f"key {at}"))
        except LedgerUnavailable as error:
            said["while full"] = type(error).__name__
        said["answered"] = len(results)
        try:
            caller.run(_big_transaction(caller.ledger, granted))
        except LedgerUnavailable as error:
            said["transaction while full"] = type(error).__name__
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        said["lost"] = sum(not caller.is_done(one, b"x" * 30_000) for one in results)
        said["after"] = type(caller.claim(claim("after"))).__name__
        assert isinstance(caller.claim(claim("in a transaction")), Busy)
    sender.send(said)
    sender.close()


async def _big_transaction(ledger: SqliteLedger, granted: Granted) -> None:
    async with ledger.transaction(granted.lease) as transaction:
        transaction.handle.execute("create table big (x)")
        transaction.handle.execute("insert into big values (zeroblob(10000000))")
        assert await transaction.settle(Settlement(granted.lease, Done()))


# ------------------------------------------------------------------------------------------------------- group commit


def test_a_failing_job_does_not_fail_the_other_jobs_of_its_group(path: str) -> None:
    """The jobs wait while a transaction holds the writer, so they form one group."""
    commits: list[str] = []
    unfit = Claim("no digest", "h", "unfit", LEASE_MS, LEASE_MS, fingerprint=object())  # type: ignore[arg-type]

    async def together(ledger: SqliteLedger) -> list[object]:
        (first,) = await ledger.claim([claim("first")])
        assert isinstance(first, Granted)
        async with ledger.transaction(first.lease) as transaction:
            asked = [asyncio.ensure_future(ledger.claim([claim(f"key {at}")])) for at in range(5)]
            asked.insert(2, asyncio.ensure_future(ledger.claim([unfit])))
            await asyncio.sleep(0.05)
            commits.clear()
            assert await transaction.settle(Settlement(first.lease, Done()))
        return list(await asyncio.gather(*asked, return_exceptions=True))

    with Caller(lambda: SqliteLedger(path, observe=commits.append)) as caller:
        assert isinstance(caller.ledger, SqliteLedger)
        answers = caller.run(together(caller.ledger))
        assert isinstance(answers.pop(2), Exception)
        assert all(isinstance(answer, list) and isinstance(answer[0], Granted) for answer in answers)
        # the transaction's own, then the failed group's members one by one
        assert commits.count("after_commit") == 1 + 5
        assert all(isinstance(caller.claim(claim(f"key {at}")), Busy) for at in range(5))


def test_waiting_jobs_are_committed_in_one_group(path: str) -> None:
    commits: list[str] = []

    async def together(ledger: SqliteLedger) -> None:
        (first,) = await ledger.claim([claim("first")])
        assert isinstance(first, Granted)
        async with ledger.transaction(first.lease) as transaction:
            asked = [asyncio.ensure_future(ledger.claim([claim(f"key {at}")])) for at in range(50)]
            await asyncio.sleep(0.05)
            commits.clear()
            assert await transaction.settle(Settlement(first.lease, Done()))
        await asyncio.gather(*asked)

    with Caller(lambda: SqliteLedger(path, observe=commits.append)) as caller:
        assert isinstance(caller.ledger, SqliteLedger)
        caller.run(together(caller.ledger))
        assert commits.count("after_commit") <= 3


def test_the_jobs_of_a_group_that_fails_to_commit_run_again_one_by_one(path: str) -> None:
    """The verdicts of the first run are discarded with its transaction."""
    commits: list[str] = []

    def fail_the_second(boundary: str) -> None:
        commits.append(boundary)
        if commits == ["armed", "before_commit", "after_commit", "before_commit"]:
            commits.append("failed")
            raise apsw.IOError("the disk said no")

    async def together(ledger: SqliteLedger) -> list[object]:
        (first,) = await ledger.claim([claim("first")])
        assert isinstance(first, Granted)
        async with ledger.transaction(first.lease) as transaction:
            asked = [asyncio.ensure_future(ledger.claim([claim("same")])) for _ in range(5)]
            await asyncio.sleep(0.05)
            commits[:] = ["armed"]
            assert await transaction.settle(Settlement(first.lease, Done()))
        return list(await asyncio.gather(*asked, return_exceptions=True))

    with Caller(lambda: SqliteLedger(path, clock=FakeClock(), observe=fail_the_second)) as caller:
        assert isinstance(caller.ledger, SqliteLedger)
        answers = caller.run(together(caller.ledger))
        kinds = sorted(type(answer[0]).__name__ for answer in answers if isinstance(answer, list))
        assert commits.count("failed") == 1
        assert kinds == ["Busy"] * 4 + ["Granted"]


def test_a_closed_event_loop_does_not_block_the_writer(path: str) -> None:
    """The handler of a transaction ends with its event loop."""

    async def leave(ledger: SqliteLedger) -> None:
        (first,) = await ledger.claim([claim("a")])
        assert isinstance(first, Granted)
        left = ledger.transaction(first.lease)
        transaction = await left.__aenter__()
        transaction.handle.execute("create table left_behind (x)")
        keep.append(left)

    keep: list[object] = []
    ledger = SqliteLedger(path)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave(ledger))
    loop.close()
    with Caller(lambda: ledger) as caller:
        assert isinstance(caller.claim(claim("a")), Busy)
    assert apsw.Connection(path).execute("select count(*) from sqlite_schema where name = 'left_behind'").get == 0


def test_a_closed_ledger_opens_again_at_the_next_call(path: str) -> None:
    ledger = SqliteLedger(path)
    with Caller(lambda: ledger) as caller:
        caller.do(claim("a"))
    with Caller(lambda: ledger) as caller:
        assert caller.claim(claim("a")) == Settled(Done())


def test_a_reader_that_opens_after_the_file_was_removed_creates_no_file(tmp_path: Path) -> None:
    """A new file would take the WAL of the file that comes back, with its acknowledged commits."""

    async def story() -> None:
        path = tmp_path / "ledger.db"
        ledger = SqliteLedger(str(path))
        (granted,) = await ledger.claim([mine])
        assert isinstance(granted, Granted)
        away = tmp_path / "away.db"
        path.rename(away)
        for ask in (ledger.counts, ledger.depths):
            with pytest.raises(LedgerUnavailable, match=r"ledger\.db"):
                await ask()
        assert not path.exists()
        away.rename(path)
        assert (await ledger.counts())["leased"] == 1
        await ledger.close()

    mine = Claim(b"k" * 16, "h", "k", 60_000, 60_000)
    asyncio.run(story())
