"""The store itself: its memory, its names, its placement, what doctor says of it, and its connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from redis.crc import key_slot
from tests.facts import rendered
from tests.ledgers.redis.stores import harness_on, with_options
from tests.support.servers.process import NoServer, not_here
from tests.support.servers.valkey import Valkey
from tests.support.servers.valkey_cluster import ValkeyCluster

from semel.ledgers.redis import RedisLedger, catalog
from semel.ledgers.redis.catalog import HAS_ATTEMPTS
from semel.ledgers.redis.dead_letters import HEAD_BYTES
from semel.ledgers.redis.ledger import MEMORY_BYTES
from semel.ledgers.redis.placement import SLOTS, TAGS
from semel.ports import EntryQuery
from semel.testing.harness import Caller, Harness, altered
from semel.values.attempts import line
from semel.values.claim import Busy, Granted, Settlement
from semel.values.errors import ConfigError
from semel.values.outcome import NOTHING, Reject, Retry


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    try:
        server = Valkey(tmp_path, {"unixsocket": str(tmp_path / "s")})
        server.start()
    except NoServer as error:
        not_here(error)
    yield server
    server.kill()


@pytest.fixture
def harness(server: Valkey) -> Harness:
    return Harness(open=lambda: RedisLedger.from_url(with_options(server.url, timeout="30")), unit_ms=60_000)


@pytest.fixture
def ledger(harness: Harness) -> Iterator[Caller]:
    with Caller(harness.open) as caller:
        yield caller


def test_a_settled_key_takes_no_more_memory_than_is_stated(server: Valkey, harness: Harness, ledger: Caller) -> None:
    claims = [altered(harness.claim(str(uuid4()), fingerprint="1"), tenant="", handler="on_end") for _ in range(2000)]
    for at in range(0, len(claims), 100):
        granted = [one for one in ledger.claim_all(claims[at : at + 100]) if isinstance(one, Granted)]
        assert all(ledger.settle_all([Settlement(one.lease, NOTHING) for one in granted]))
    names = _names(server, b"}k")
    assert len(names) == 2000
    each = [server.ask("MEMORY", "USAGE", name) for name in names[:200]]
    mean = sum(size for size in each if isinstance(size, int)) / 200
    assert 0.7 * MEMORY_BYTES < mean <= MEMORY_BYTES


def test_every_record_expires_and_dead_letters_do_not(server: Valkey, harness: Harness, ledger: Caller) -> None:
    ledger.do(harness.claim("done", aliases=["x"], subject="s", position=1))
    ledger.grant(harness.claim("held", subject="t", position=1))
    ledger.do(harness.claim("plainly done"))
    ledger.grant(harness.claim("plainly held"))
    ledger.settle(ledger.grant(harness.claim("waiting")), Retry(60))
    ledger.settle(ledger.grant(harness.claim("dead")), Reject("no"), b"{}")
    kept_ms = harness.lease_ms + 4 * harness.retention_ms  # what is in doubt is kept longest
    for name in _names(server, b"}k") + _names(server, b"}s"):
        left = server.ask("PTTL", name)
        assert isinstance(left, int)
        assert 0 < left <= kept_ms, name
    assert len(_names(server, b"}k")) == 7
    (dead_letters,) = _names(server, b"}l")
    assert server.ask("PTTL", dead_letters) == -1
    ledger.run(ledger.ledger.discard(harness.claim("dead").digest.hex(), "why", "anna"))  # type: ignore[attr-defined]
    left = server.ask("PTTL", dead_letters)
    assert isinstance(left, int)
    assert left > 0, "what is decided ends by itself too"


def test_a_record_without_an_attempt_log_is_read(server: Valkey, harness: Harness, ledger: Caller) -> None:
    """A record that waits ended with its reason, and a letter had two fields less."""
    waits, dead = harness.claim("waits"), harness.claim("dead")
    ledger.settle(ledger.grant(waits), Retry(0, "later"))
    ledger.settle(ledger.grant(dead), Reject("no"), b"{}")
    (name,) = [name for name in _names(server, b"}k") if name.endswith(waits.digest)]
    record = server.ask("GET", name)
    assert isinstance(record, bytes)
    assert record[0] & HAS_ATTEMPTS
    old = bytes((record[0] - HAS_ATTEMPTS,)) + record[1 : -len(line(1, 0, "later"))] + b"later"
    server.ask("SET", name, old, "KEEPTTL")
    (dead_letters,) = _names(server, b"}l")
    fields = server.ask("HGETALL", dead_letters)
    assert isinstance(fields, list)
    token, stored = fields
    assert isinstance(token, bytes)
    assert isinstance(stored, bytes)
    kept = msgspec.msgpack.encode(msgspec.msgpack.decode(stored[HEAD_BYTES:])[:8])
    server.ask("HSET", dead_letters, token, stored[: HEAD_BYTES - 4] + len(kept).to_bytes(4, "big") + kept)
    assert [(one.reason, one.attempt_log) for one in ledger.entries(waits)] == [("later", ())]
    assert [(one.reason, one.event, one.attempt_log) for one in ledger.entries(dead)] == [("no", b"{}", ())]
    ledger.settle(ledger.grant(waits), Retry(0, "again"))
    assert [(one.attempt, one.reason) for one in ledger.entries(waits)[0].attempt_log] == [(2, "again")]
    assert ledger.run(ledger.ledger.replay(dead.digest.hex(), "why", "anna")) is True  # type: ignore[attr-defined]


def test_a_listing_skips_an_index_entry_without_its_dead_letter(
    server: Valkey, harness: Harness, ledger: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Index and letters are read one after the other, and a purge may come between."""
    monkeypatch.setattr(catalog, "PAGE", 1)
    ledger.settle(ledger.grant(harness.claim("dead")), Reject("no"), b"{}")
    indexes = [name for name in _names(server, b"") if server.ask("TYPE", name) in (b"zset", "zset")]
    assert len(indexes) == 1
    assert server.ask("ZADD", indexes[0], 2**50, bytes(24)) == 1
    listed = ledger.run(ledger.ledger.entries(EntryQuery("dead", 10)))  # type: ignore[attr-defined]
    assert [entry.text for entry in listed] == ["dead"]


def test_the_tags_are_spread_evenly_over_the_slots() -> None:
    """They are part of the data: another tag would forget its keys."""
    assert tuple(key_slot(f"any{{{tag}}}k".encode()) for tag in TAGS) == SLOTS
    assert [slot // 1024 for slot in SLOTS] == list(range(16))


def test_ledgers_with_different_prefixes_are_separate(server: Valkey, harness: Harness) -> None:
    claim = harness.claim("a")
    for prefix in ("one", "one*", "on?", "o[n]e"):
        with Caller(lambda: RedisLedger.from_url(with_options(server.url, prefix=prefix))) as ledger:  # noqa: B023
            ledger.grant(claim)
            assert len(ledger.entries(claim)) == 1
            assert ledger.run(ledger.ledger.counts())["leased"] == 1  # type: ignore[attr-defined]


def test_a_unix_socket_works_like_a_port(server: Valkey, harness: Harness, tmp_path: Path, ledger: Caller) -> None:
    ledger.grant(harness.claim("a"))
    with Caller(lambda: RedisLedger.from_url(f"unix://{tmp_path}/s")) as near:
        assert isinstance(near.claim(harness.claim("a")), Busy)


@pytest.mark.parametrize("has_it", [True, False], ids=["MSETEX", "older servers"])
def test_without_msetex_each_key_is_written_separately(
    server: Valkey, harness: Harness, ledger: Caller, has_it: bool
) -> None:
    if not server.ask("COMMAND", "INFO", "MSETEX"):
        pytest.skip("this server is an older one itself")
    if not has_it:
        server.ask("ACL", "SETUSER", "default", "-msetex")
    granted = [one for one in ledger.claim_all(harness.claims(300)) if isinstance(one, Granted)]
    assert all(ledger.settle_all([Settlement(one.lease, NOTHING) for one in granted]))
    assert all(ledger.is_done(claim) for claim in harness.claims(300)[::17])
    assert len(_names(server, b"}k")) == 300
    told = server.ask("INFO", "commandstats")
    assert isinstance(told, bytes)
    assert (b"cmdstat_set:calls=600" in told or b"cmdstat_set:calls=60" in told) != has_it


# ---------------------------------------------------------------------------------------------------------- placement


def test_another_placement_of_a_handler_is_refused(server: Valkey, harness: Harness, ledger: Caller) -> None:
    claim, moved = harness.claim("a"), altered(harness.claim("b"), handler="moved")
    ledger.grant(claim)
    url = with_options(server.url, together="on_event,moved")
    with Caller(lambda: RedisLedger.from_url(url)) as ledger_of_another_mind:
        with pytest.raises(ConfigError, match=r"'on_event'.*together=on_event"):
            ledger_of_another_mind.claim(claim)
        ledger_of_another_mind.grant(moved)
    with pytest.raises(ConfigError, match=r"'moved'.*together=moved"):
        ledger.claim(moved)
    assert isinstance(ledger.claim(claim), Busy)


def test_one_server_accepts_several_keys_with_any_placement(redis_url: str) -> None:
    for together in ("", "*"):
        harness = harness_on(redis_url, together=together)
        with Caller(harness.open) as ledger:
            ledger.do(harness.claim("a", aliases=["x"], subject="s", position=1), b"1")
            assert ledger.is_done(harness.claim("b", aliases=["x"]), b"1")


def test_a_cluster_node_under_a_single_server_url_is_refused(
    cluster: ValkeyCluster, server: Valkey, harness: Harness
) -> None:
    node = cluster.nodes[0]
    with Caller(lambda: RedisLedger.from_url(f"redis://{node.host}:{node.port}")) as ledger:
        with pytest.raises(ConfigError, match=r"redis\+cluster://"):
            ledger.claim(harness.claim("a"))
    with Caller(lambda: RedisLedger.from_url(f"redis+cluster://{server.host}:{server.port}?timeout=1")) as ledger:
        with pytest.raises(ConfigError, match="redis://"):
            ledger.claim(harness.claim("a"))


# ------------------------------------------------------------------------------------------------------------- doctor


def test_doctor_reports_which_data_may_be_lost(server: Valkey, harness: Harness, ledger: Caller) -> None:
    told = _diagnosed(ledger)
    assert told["version"].startswith("Valkey ")
    assert not told["memory policy"].startswith(("error: ", "warning: "))
    assert told["persistence"].startswith("warning: ")
    assert "appendonly yes" in told["persistence"]
    assert told["replicas"].startswith("0 ")
    assert "min-replicas-to-write 0" in told["replicas"]
    assert "1 dead" not in told["dead_letters"]
    assert not told["clock"].startswith(("error: ", "warning: "))
    ledger.settle(ledger.grant(harness.claim("a")), Reject("no"), b"{}")
    assert "1 dead" in _diagnosed(ledger)["dead_letters"]
    server.ask("CONFIG", "SET", "save", "60 1")
    persistence = _diagnosed(ledger)["persistence"]
    assert persistence.startswith("warning: ")
    assert "save 60 1" in persistence
    server.ask("CONFIG", "SET", "appendonly", "yes")
    persistence = _diagnosed(ledger)["persistence"]
    assert not persistence.startswith("warning: ")
    assert "second" in persistence
    server.ask("CONFIG", "SET", "appendfsync", "always")
    persistence = _diagnosed(ledger)["persistence"]
    assert not persistence.startswith("warning: ")
    assert "always" in persistence
    server.ask("CONFIG", "SET", "appendfsync", "no")
    assert _diagnosed(ledger)["persistence"].startswith("warning: ")
    server.ask("CONFIG", "SET", "maxmemory", "100mb")
    assert _diagnosed(ledger)["memory policy"].startswith("noeviction")
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert _diagnosed(ledger)["memory policy"].startswith("error: allkeys-lru")


def test_doctor_works_without_the_config_command(server: Valkey, harness: Harness, ledger: Caller) -> None:
    server.ask("ACL", "SETUSER", "default", "-config")
    ledger.grant(harness.claim("a"))
    assert _diagnosed(ledger)["persistence"].startswith("warning: ")


def test_doctor_reports_every_master(cluster: ValkeyCluster) -> None:
    cluster.wait_until_well()
    with Caller(lambda: RedisLedger.from_url(with_options(cluster.url, strict="1", timeout="20"))) as ledger:
        told = _diagnosed(ledger)
    assert "3 masters" in told["cluster"]
    assert not told["cluster"].startswith(("error: ", "warning: "))
    assert len([name for name in told if name.startswith("replicas ")]) == 3
    assert all("strict=1" in told[name] for name in told if name.startswith("replicas "))
    assert not any(told[name].startswith(("error: ", "warning: ")) for name in told if name.startswith("replicas "))


def test_doctor_reports_an_unreachable_server(server: Valkey, ledger: Caller) -> None:
    server.kill()
    assert _diagnosed(ledger)["reachable"].startswith("error: ")


def _diagnosed(ledger: Caller) -> dict[str, str]:
    assert isinstance(ledger.ledger, RedisLedger)
    return rendered(ledger.run(ledger.ledger.diagnose()))


def _names(server: Valkey, part: bytes) -> list[bytes]:
    names = server.ask("KEYS", "*")
    assert isinstance(names, list)
    return [name for name in names if isinstance(name, bytes) and part in name]


@pytest.mark.parametrize("masters", [2, 3])
def test_a_purge_continues_after_the_cluster_has_lost_masters(
    redis_url: str, masters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep remembers at which master it stopped; that master may be gone at the next purge."""
    harness = harness_on(redis_url)
    claims = harness.claims(3)
    with Caller(harness.open) as caller:
        for claim in claims:
            caller.do(claim)
        harness.advance(2 * harness.retention_ms)
        topology = caller.ledger._topology  # type: ignore[attr-defined] # only the number of masters is faked
        (master,) = caller.run(topology.all_masters())

        async def all_masters() -> list[object]:
            return [master] * masters

        with monkeypatch.context() as patched:
            patched.setattr(topology, "all_masters", all_masters)
            caller.ledger._scan._node = masters - 1  # type: ignore[attr-defined]
            assert caller.purge(1) == 1
        assert caller.purge() == 2
        assert caller.run(caller.ledger.counts())["done"] == 0  # type: ignore[attr-defined]
