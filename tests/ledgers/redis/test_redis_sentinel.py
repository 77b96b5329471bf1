"""A master, its replica and a Sentinel: the ledger finds the new master when the old one dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.ledgers.redis.stores import with_options
from tests.support.servers.process import NoServer, not_here
from tests.support.servers.valkey import Sentinel, Valkey
from tests.support.servers.valkey_cluster import until

from semel.ledgers.redis import RedisLedger
from semel.ledgers.redis.topology import SentinelMaster
from semel.testing.harness import Caller, Harness
from semel.values.claim import Busy
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Done


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Valkey, Valkey, Sentinel]]:
    with ExitStack() as stack:
        try:
            master = Valkey(tmp_path / "master", {"repl-diskless-sync-delay": "0"})
            stack.callback(master.kill)
            master.start()
            replica = Valkey(tmp_path / "replica", lines=[f"replicaof {master.host} {master.port}"])
            stack.callback(replica.kill)
            replica.start()
            sentinel = Sentinel(tmp_path / "sentinel", "events", master)
            stack.callback(sentinel.kill)
            sentinel.start()
        except NoServer as error:
            not_here(error)
        yield master, replica, sentinel


def test_the_next_master_has_every_write_that_strict_confirmed(watched: tuple[Valkey, Valkey, Sentinel]) -> None:
    master, replica, sentinel = watched
    harness = Harness(open=lambda: pytest.fail("opened below"), unit_ms=60_000)
    until(lambda: b"num-slaves" in _told(sentinel) and _replicas(sentinel) == 1, "the Sentinel knows the replica")
    until(lambda: b"state=online" in _info(master), "the replica follows")
    url = with_options(sentinel.url, timeout="40")
    with Caller(lambda: RedisLedger.from_url(f"{url}&strict=1")) as stern:
        stern.do(harness.claim("done"), b"1")
        held = stern.grant(harness.claim("held"))
    with Caller(lambda: RedisLedger.from_url(url)) as ledger:
        assert ledger.is_done(harness.claim("done"), b"1")
        master.kill()
        later = ledger.grant(harness.claim("later"))
        assert b"role:master" in _info(replica), "another server has answered"
        assert ledger.is_done(harness.claim("done"), b"1")
        assert isinstance(ledger.claim(harness.claim("held")), Busy)
        assert ledger.settle(held, Done()) is True
        assert later.lease.token > held.lease.token


def test_a_master_that_became_a_replica_is_replaced_before_the_deadline(
    watched: tuple[Valkey, Valkey, Sentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Sentinel that was asked first did not know of the failover yet. The replica answers READONLY."""
    master, replica, sentinel = watched
    until(lambda: b"state=online" in _info(master), "the replica follows")
    found: list[int] = []
    discover = SentinelMaster._discover

    async def first_the_replica(self: SentinelMaster) -> tuple[str, int]:
        host, port = await discover(self) if found else (replica.host, replica.port)
        found.append(port)
        return host, port

    monkeypatch.setattr(SentinelMaster, "_discover", first_the_replica)
    harness = Harness(open=lambda: pytest.fail("opened below"), unit_ms=60_000)
    with Caller(lambda: RedisLedger.from_url(with_options(sentinel.url, timeout="20"))) as ledger:
        ledger.do(harness.claim("a"), b"1")
        assert found == [replica.port, master.port]
        assert ledger.is_done(harness.claim("a"), b"1")


def test_a_master_that_no_sentinel_knows_is_reported(watched: tuple[Valkey, Valkey, Sentinel]) -> None:
    sentinel = watched[2]
    harness = Harness(open=lambda: pytest.fail("opened below"))
    url = with_options(sentinel.url.replace("/events/", "/other/"), timeout="0.5")
    with Caller(lambda: RedisLedger.from_url(url)) as ledger:
        with pytest.raises(LedgerUnavailable, match="master"):
            ledger.claim(harness.claim("a"))


def _told(sentinel: Sentinel) -> bytes:
    told = sentinel.ask("SENTINEL", "MASTER", "events")
    assert isinstance(told, list)
    return b" ".join(word for word in told if isinstance(word, bytes))


def _replicas(sentinel: Sentinel) -> int:
    words = _told(sentinel).split()
    return int(words[words.index(b"num-slaves") + 1])


def _info(server: Valkey) -> bytes:
    told = server.ask("INFO", "replication")
    assert isinstance(told, bytes)
    return told
