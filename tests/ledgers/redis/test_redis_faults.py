"""One server and what may happen to it: each fault is proven to have landed."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.facts import rendered
from tests.ledgers.redis.stores import with_options
from tests.support.servers.process import NoServer, not_here
from tests.support.servers.valkey import Valkey
from tests.support.servers.valkey_cluster import until

from semel.ledgers.redis import RedisLedger
from semel.ledgers.redis import ledger as face
from semel.ledgers.redis.ledger import KEYS_MAX
from semel.ledgers.redis.topology import parse_info
from semel.ports import EntryQuery
from semel.testing.harness import Caller, Harness
from semel.values.claim import Busy, Granted, Settlement
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.outcome import Done, Release

Start = Callable[..., Valkey]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Servers of this test's own: they may be killed."""
    servers: list[Valkey] = []

    def start(options: dict[str, str] | None = None, environment: dict[str, str] | None = None) -> Valkey:
        try:
            server = Valkey(tmp_path / str(len(servers)), options, environment=environment)
            server.start()
        except NoServer as error:
            not_here(error)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.kill()


@pytest.fixture
def harness() -> Harness:
    """Only for its claims, which outlast every test."""
    return Harness(open=lambda: pytest.fail("a test opens its own"), unit_ms=60_000)


def opened(server: Valkey, **options: str) -> Callable[[], RedisLedger]:
    return lambda: RedisLedger.from_url(with_options(server.url, **{"timeout": "30"} | options))


# --------------------------------------------------------------------------------------------------------- lost answers


class Wire:
    """A connection in between, which can hang up instead of passing an answer on."""

    def __init__(self, server: Valkey) -> None:
        self._server = server
        self.hang_ups = 0
        self.lost = 0

    async def listen(self) -> tuple[asyncio.Server, str]:
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = listener.sockets[0].getsockname()
        return listener, f"redis://{host}:{port}?timeout=30"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, asks = await asyncio.open_connection(self._server.host, self._server.port)
        cut = asyncio.Event()
        passing = asyncio.create_task(self._pass_on(answers, writer, cut))
        while data := await reader.read(1 << 20):
            if b"EVALSHA" in data and self.hang_ups:
                self.hang_ups -= 1
                cut.set()
            asks.write(data)
        asks.close()
        await passing

    async def _pass_on(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event) -> None:
        while answer := await answers.read(1 << 20):
            if cut.is_set():  # the server has done what it was asked for
                self.lost += 1
                break
            writer.write(answer)
        writer.close()


def test_a_claim_whose_reply_was_lost_finds_its_own_grant(start: Start, harness: Harness) -> None:
    async def lose() -> None:
        wire = Wire(start())
        listener, url = await wire.listen()
        again: Counter[str] = Counter()
        ledger = RedisLedger.from_url(url, observe=lambda why: again.update([why]))
        claims = [harness.claim("a"), harness.claim("a"), harness.claim("b", aliases=["x"], subject="s", position=1)]
        await ledger.claim([harness.claim("warm")])
        wire.hang_ups = 2
        verdicts = await ledger.claim(claims)
        assert (wire.lost, sum(again.values())) == (2, 2), "two answers were lost on the way"
        assert [type(verdict) for verdict in verdicts] == [Granted, Busy, Granted]
        granted = [verdict for verdict in verdicts if isinstance(verdict, Granted)]
        assert all((one.attempt, one.takeover) == (1, False) for one in granted)
        assert all(isinstance(verdict, Busy) for verdict in await ledger.claim(claims)), "another claim is another's"
        wire.hang_ups = 1
        assert await ledger.settle([Settlement(one.lease, Done(b"1")) for one in granted]) == [True, True]
        assert wire.lost == 3
        await ledger.close()
        listener.close()
        await asyncio.sleep(0.05)  # for the connections in between

    asyncio.run(lose())


def test_a_server_that_does_not_reply_is_reported_within_the_deadline(start: Start, harness: Harness) -> None:
    server = start()
    with Caller(opened(server, timeout="0.5")) as ledger:
        granted = ledger.grant(harness.claim("a"))
        server.pause()
        with pytest.raises(LedgerUnavailable, match=f"{server.port}.*0.5 s"):
            ledger.claim(harness.claim("b"))
        server.resume()
        assert ledger.settle(granted, Done(b"1")) is True
        assert not isinstance(ledger.claim(harness.claim("a")), Granted)


def test_queries_and_purges_end_within_the_deadline_too(start: Start) -> None:
    async def run() -> None:
        server = start()
        ledger = RedisLedger.from_url(with_options(server.url, timeout="0.3"))
        assert (await ledger.purge(1), (await ledger.counts())["done"]) == (0, 0)
        server.pause()
        for asked in (ledger.purge(1), ledger.counts(), ledger.entries(EntryQuery()), ledger.history("00" * 16)):
            with pytest.raises(LedgerUnavailable, match=r"0\.3 s"):
                await asyncio.wait_for(asked, 30)
        server.resume()
        assert await ledger.purge(1) == 0
        await ledger.close()

    asyncio.run(run())


def test_scripts_that_a_server_has_lost_are_loaded_again(start: Start, harness: Harness) -> None:
    server = start()
    again: Counter[str] = Counter()
    url = with_options(server.url, timeout="30")
    with Caller(lambda: RedisLedger.from_url(url, observe=lambda why: again.update([why]))) as ledger:
        granted = ledger.grant(harness.claim("a"))
        server.ask("SCRIPT", "FLUSH")
        verdicts = ledger.claim_all(harness.claims(500))
        assert all(isinstance(verdict, Granted) for verdict in verdicts)
        assert again["again: NoScriptError"] > 0
        server.ask("SCRIPT", "FLUSH")
        assert ledger.settle(granted, Done(b"1")) is True
        assert ledger.is_done(harness.claim("a"), b"1")


# ---------------------------------------------------------------------------------------------------- crash and restart


def test_with_fsync_always_a_killed_server_loses_nothing(start: Start, harness: Harness) -> None:
    server = start({"appendonly": "yes", "appendfsync": "always"})
    done, held = harness.claims(300, "done"), harness.claims(50, "held")
    with Caller(opened(server)) as ledger:
        granted = [one for one in ledger.claim_all(done) if isinstance(one, Granted)]
        assert all(ledger.settle_all([Settlement(one.lease, Done(b"1")) for one in granted]))
        leases = [one.lease for one in ledger.claim_all(held) if isinstance(one, Granted)]
        pid = server.pid
        server.kill()
        with pytest.raises(LedgerUnavailable):
            with Caller(opened(server, timeout="0.3")) as impatient:
                impatient.claim(held[0])
        server.start()
        assert server.pid != pid
        assert all(ledger.is_done(claim, b"1") for claim in done)
        assert all(isinstance(verdict, Busy) for verdict in ledger.claim_all(held))
        assert ledger.renew(*leases) == [True] * 50
        newest = max(lease.token for lease in leases)
        assert ledger.grant(harness.claim("later")).lease.token > newest


def test_without_persistence_a_killed_server_loses_keys_and_tokens_still_grow(start: Start, harness: Harness) -> None:
    """What the profile "no persistence" says it loses, it does lose."""
    server = start()
    with Caller(opened(server)) as ledger:
        first = ledger.do(harness.claim("a"), b"1")
        server.kill()
        server.start()
        again = ledger.grant(harness.claim("a"))
        assert again.attempt == 1
        assert again.lease.token > first.lease.token


def test_a_clock_that_jumps_back_gives_no_lower_token(start: Start, harness: Harness, tmp_path: Path) -> None:
    found = find_spec("libfaketime")
    if found is None or found.origin is None:
        pytest.skip("libfaketime is not installed")
    library = next(Path(found.origin).parent.rglob("libfaketime*.so*"))
    moved, written = tmp_path / "moved", tmp_path / "written"
    moved.write_text("+0")
    server = start(
        environment={
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(moved),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
    )
    claim = harness.claim("a")
    tokens = []
    with Caller(opened(server)) as ledger:
        for offset_s in (0, -3600, -90000, 0):
            written.write_text(f"{offset_s:+}")
            os.replace(written, moved)  # never half of it
            until(lambda: abs(_server_time(server) - time.time() - offset_s) < 600, "the clock has moved")  # noqa: B023
            granted = ledger.grant(claim)
            tokens.append(granted.lease.token)
            assert ledger.settle(granted, Release()) is True, "the record is gone; only the counter remembers"
    assert tokens == sorted(set(tokens))


def _server_time(server: Valkey) -> int:
    told = server.ask("TIME")
    assert isinstance(told, list)
    assert isinstance(told[0], bytes)
    return int(told[0])


# ------------------------------------------------------------------------------------------------------ failing closed


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
def test_a_server_that_may_evict_is_refused(start: Start, harness: Harness, policy: str) -> None:
    server = start({"maxmemory": "64mb", "maxmemory-policy": policy})
    with Caller(opened(server)) as ledger:
        with pytest.raises(ConfigError, match=f"{policy}.*maxmemory-policy noeviction"):
            ledger.claim(harness.claim("a"))
        facts = rendered(ledger.run(ledger.ledger.diagnose()))  # type: ignore[attr-defined]
        assert facts["reachable"].startswith("error: ")
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        ledger.grant(harness.claim("a"))


def test_a_full_server_grants_nothing_and_evicts_nothing(start: Start, harness: Harness) -> None:
    server = start({"maxmemory": "64mb"})
    with Caller(opened(server)) as ledger:
        ledger.do(harness.claim("a"), b"1")
        server.ask("CONFIG", "SET", "maxmemory", "1mb")
        with pytest.raises(LedgerUnavailable, match="memory"):
            ledger.claim(harness.claim("b"))
        server.ask("CONFIG", "SET", "maxmemory", "0")
        assert ledger.is_done(harness.claim("a"), b"1")
        ledger.grant(harness.claim("b"))


def test_a_server_that_begins_to_evict_is_refused_and_running_leases_are_settled(
    start: Start, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(face, "CHECK_S", 0.0)
    server = start({"maxmemory": "64mb"})
    with Caller(opened(server)) as ledger:
        first = ledger.grant(harness.claim("a"))
        server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        with pytest.raises(ConfigError, match="maxmemory-policy noeviction"):
            ledger.claim(harness.claim("b"))
        assert ledger.settle(first, Done(b"1"))
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        ledger.grant(harness.claim("b"))


def test_grants_of_a_batch_that_fails_on_a_full_server_are_released(start: Start, harness: Harness) -> None:
    """A batch is several scripts: nobody hears of the first one's grants when the second is refused."""
    server = start({"maxmemory": "512mb"})
    with Caller(opened(server)) as ledger:
        ledger.grant(harness.claim("warm"))
        claims = [harness.claim(f"{at} " + "x" * 4000) for at in range(8 * KEYS_MAX)]
        used = parse_info(bytes(server.ask("INFO", "memory")))["used_memory"]  # type: ignore[arg-type]
        server.ask("CONFIG", "SET", "maxmemory", int(used) + 2_500_000)
        with pytest.raises(LedgerUnavailable, match="memory"):
            ledger.run(ledger.ledger.claim(claims))
        told = parse_info(bytes(server.ask("INFO", "commandstats")))["cmdstat_evalsha"]  # type: ignore[arg-type]
        assert 0 < int(told.rpartition("failed_calls=")[2]) < 8, "inconclusive: not only a part of them was refused"
        server.ask("CONFIG", "SET", "maxmemory", "0")
        verdicts = ledger.run(ledger.ledger.claim(claims))
        assert {(type(one), getattr(one, "attempt", 0), getattr(one, "takeover", 0)) for one in verdicts} == {
            (Granted, 1, False)
        }


def test_a_read_only_replica_is_reported(start: Start, harness: Harness) -> None:
    master = start()
    replica = start({"replicaof": f"{master.host} {master.port}"})
    with Caller(opened(replica, timeout="0.5")) as ledger:
        with pytest.raises(LedgerUnavailable, match="replica"):
            ledger.claim(harness.claim("a"))


def test_a_wrong_password_is_reported_at_once_and_not_shown(start: Start, harness: Harness) -> None:
    server = start()
    server.ask("CONFIG", "SET", "requirepass", "right-one")
    for secret in ("wrong-one", ""):
        url = f"redis://:{secret}@{server.host}:{server.port}?timeout=30"
        with Caller(lambda url=url: RedisLedger.from_url(url)) as ledger:  # type: ignore[misc]
            with pytest.raises(LedgerUnavailable, match="password") as told:
                ledger.claim(harness.claim("a"))
            assert "wrong-one" not in f"{told.value!r} {ledger.ledger!r} {vars(ledger.ledger)!r}"
    with Caller(lambda: RedisLedger.from_url(f"redis://:right-one@{server.host}:{server.port}")) as ledger:
        ledger.grant(harness.claim("a"))


def test_strict_without_replicas_refuses_and_releases(start: Start, harness: Harness) -> None:
    server = start()
    with Caller(opened(server, timeout="0.4", strict="1")) as stern:
        with pytest.raises(LedgerUnavailable, match="strict=1"):
            stern.claim(harness.claim("a"))
        told = rendered(stern.run(stern.ledger.diagnose()))  # type: ignore[attr-defined]
        assert told["replicas"].startswith("error: 0")
    with Caller(opened(server)) as ledger:
        assert ledger.grant(harness.claim("a")).attempt == 1, "nobody has to wait for the lease to lapse"


@pytest.mark.parametrize("fsync", ["no", "yes"])
def test_strict_with_its_replica_confirms_every_write(start: Start, harness: Harness, fsync: str) -> None:
    settings = {"appendonly": "yes", "appendfsync": "always", "repl-diskless-sync-delay": "0"}
    master = start(settings)
    replica = start(settings | {"replicaof": f"{master.host} {master.port}"})
    with Caller(opened(master, strict="1", fsync=fsync)) as ledger:
        granted = [one for one in ledger.claim_all(harness.claims(300)) if isinstance(one, Granted)]
        assert all(ledger.settle_all([Settlement(one.lease, Done(b"1")) for one in granted]))
        master.kill()
        replica.ask("REPLICAOF", "NO", "ONE")
    with Caller(opened(replica)) as ledger:
        assert all(ledger.is_done(claim, b"1") for claim in harness.claims(300))


def test_fsync_without_an_append_only_file_is_refused(start: Start, harness: Harness) -> None:
    with Caller(opened(start(), fsync="yes")) as ledger:
        with pytest.raises(ConfigError, match="appendonly"):
            ledger.claim(harness.claim("a"))


def test_a_ledger_belongs_to_one_loop_until_it_is_closed(start: Start, harness: Harness) -> None:
    ledger = RedisLedger.from_url(start().url + "?pool=1")

    async def use() -> None:
        await asyncio.gather(*[ledger.claim([claim]) for claim in harness.claims(5)])

    async def use_and_close() -> None:
        await use()
        await ledger.close()

    with asyncio.Runner() as first:
        first.run(use())
        with pytest.raises(ConfigError, match="event loop"):
            asyncio.run(use())
        first.run(ledger.close())
    asyncio.run(use_and_close())
    asyncio.run(use_and_close())
