"""A Cluster under load while its slots move and its masters change: nothing lost, nothing granted twice. And the
positive control: a master that dies before its replica has heard of a grant gives that key away twice, unless strict.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.ledgers.redis.stores import harness_on, with_options
from tests.support.servers.process import NoServer, not_here
from tests.support.servers.valkey_cluster import ValkeyCluster, until

from semel.ledgers.redis import RedisLedger
from semel.ledgers.redis.placement import SLOTS, KeyNames
from semel.testing.harness import Caller, Harness
from semel.values.claim import Claim, Granted, Settled, Settlement
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Done

BATCH = 24
BEFORE, AFTER = 2_000, 500  # keys granted before and after a fault


class Load:
    """Two workers bring the same keys at the same time, batch after batch, and settle what they are granted."""

    def __init__(self, url: str, harness: Harness) -> None:
        self.again: Counter[str] = Counter()
        self.granted: Counter[bytes] = Counter()
        self.claims: list[Claim] = []
        self._url = url
        self._harness = harness
        self._ended = False

    async def during(self, fault: Callable[[], object]) -> object:
        """Run while the fault does, and a little before and after. Returns what the fault returned."""
        workers = [RedisLedger.from_url(self._url, observe=self._count) for _ in range(2)]
        load = asyncio.gather(*[self._work(worker, at) for at, worker in enumerate(workers)])
        try:
            await self._has_granted(BEFORE, load)
            told = await asyncio.to_thread(fault)
            await self._has_granted(AFTER, load)
        finally:
            self._ended = True
            await load
        known = await workers[0].claim(self.claims)
        assert all(verdict == Settled(Done(b"1")) for verdict in known), "every settled key is known"
        for worker in workers:
            await worker.close()
        return told

    async def _has_granted(self, more: int, load: asyncio.Future[list[None]]) -> None:
        """By what was done, not by time: a busy machine does little in a moment."""
        enough = len(self.granted) + more
        async with asyncio.timeout(60):
            while len(self.granted) < enough and not load.done():  # noqa: ASYNC110  the load counts
                await asyncio.sleep(0.01)

    async def _work(self, worker: RedisLedger, at: int) -> None:
        turn = 0
        while not self._ended:
            claims = [self._claim(f"{turn} {number}") for number in range(BATCH)]
            if at == 0:
                self.claims += claims
            verdicts = await worker.claim(claims)
            granted = [verdict for verdict in verdicts if isinstance(verdict, Granted)]
            self.granted.update(verdict.lease.claim.digest for verdict in granted)
            assert all(await worker.settle([Settlement(verdict.lease, Done(b"1")) for verdict in granted]))
            turn += 1
            await asyncio.sleep(0)

    def _claim(self, text: str) -> Claim:
        return self._harness.claim(text, lease_ms=60_000, retention_ms=600_000)

    def _count(self, why: str) -> None:
        self.again[why] += 1

    def assert_every_key_was_granted_once(self) -> None:
        assert len(self.claims) > 10 * BATCH, "too little happened to tell anything"
        assert set(self.granted.values()) == {1}
        assert set(self.granted) >= {claim.digest for claim in self.claims}


@pytest.mark.parametrize("together", ["", "*"], ids=["spread", "together"])
def test_slots_that_move_under_load_lose_and_double_nothing(cluster: ValkeyCluster, together: str) -> None:
    harness = harness_on(cluster.url)
    url = with_options(cluster.url, prefix=f"move{harness.namespace[:8]}", timeout="30", together=together)
    load = Load(url, harness)
    places = KeyNames("any", ["*"], in_cluster=True)
    slots = [SLOTS[places.bucket(harness.claim("any"))]] * 2 if together else SLOTS[::3]

    def reshard() -> int:
        moved = 0
        for slot in slots:
            others = [cluster.master_of(one) for one in (100, 8000, 16000)]
            here = cluster.master_of(slot)
            there = next(node for node in others if node is not here)
            pauses = iter([0.04, 0.04, 0.04])  # half moved: long enough for the load to come by
            moved += cluster.move_slot(slot, there, between=lambda: time.sleep(next(pauses, 0.001)))  # noqa: B023
        return moved

    moved = asyncio.run(load.during(reshard))
    assert isinstance(moved, int)
    assert moved > 100, "slots with keys have moved"
    assert load.again["again: AskError"] + load.again["again: TryAgainError"] > 0, f"nobody met a move: {load.again}"
    load.assert_every_key_was_granted_once()


def test_a_graceful_failover_under_load_loses_and_doubles_nothing(cluster: ValkeyCluster) -> None:
    cluster.wait_until_well()
    harness = harness_on(cluster.url)
    load = Load(with_options(cluster.url, prefix=f"over{harness.namespace[:8]}", timeout="30"), harness)
    masters = {cluster.master_of(slot).port for slot in SLOTS}

    def fail_over() -> None:
        for slot in (SLOTS[0], SLOTS[-1]):
            cluster.fail_over(cluster.master_of(slot))

    asyncio.run(load.during(fail_over))
    assert {cluster.master_of(slot).port for slot in SLOTS} != masters
    assert sum(load.again.values()) > 0, "nobody met the failover"
    load.assert_every_key_was_granted_once()
    cluster.wait_until_well()


# --------------------------------------------------------------------------------------------- the positive control


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[ValkeyCluster]:
    """A Cluster whose masters may be killed."""
    cluster = ValkeyCluster(tmp_path)
    try:
        cluster.start()
    except NoServer as error:
        cluster.stop()
        not_here(error)
    yield cluster
    cluster.stop()


def test_a_master_that_dies_before_its_replica_has_heard_doubles_a_grant_unless_strict(doomed: ValkeyCluster) -> None:
    harness = harness_on(doomed.url, timed=False)
    prefix = f"lost{harness.namespace[:8]}"
    careless = with_options(doomed.url, prefix=prefix, timeout="40")
    strict = with_options(doomed.url, prefix=f"s{prefix}", timeout="2", strict="1")
    also_strict = with_options(doomed.url, prefix=prefix, timeout="1", strict="1")
    slot = SLOTS[0]
    claims = [harness.claim(f"key {at}", lease_ms=600_000) for at in range(400)]
    before, lost, refused, warm, unheard, *_ = [claim for claim in claims if claim.digest[0] % 16 == 0]
    with Caller(lambda: RedisLedger.from_url(careless)) as ledger:
        with Caller(lambda: RedisLedger.from_url(strict)) as stern:
            confirmed = stern.grant(before)
            master = doomed.master_of(slot)
            replica = doomed.replica_of(master)
            ledger.grant(warm)
            replica.pause()
            ledger.do(unheard, b"1")
            with Caller(lambda: RedisLedger.from_url(also_strict)) as fresh:
                with pytest.raises(LedgerUnavailable, match="strict=1"):
                    fresh.claim(unheard)  # a connection that has written nothing: also what it reads must be confirmed
            master.ask("CLIENT", "KILL", "TYPE", "replica")  # what the kernel holds for it would still arrive
            until(lambda: not master.replicas_online, "the link is cut")
            first = ledger.grant(lost)
            with pytest.raises(LedgerUnavailable, match="strict=1"):
                stern.claim(refused)
            with pytest.raises(LedgerUnavailable, match="strict=1"):
                stern.settle(confirmed, Done())
        master.kill()
        replica.resume()
        until(lambda: replica.is_master, "the replica has taken over")
        second = ledger.grant(lost)  # the store has forgotten: two hold a lease on one key
        assert second.attempt == 1, "it does not know of the first grant at all"
        assert second.lease.token > first.lease.token, "tokens do not go back with what was lost"
    url = with_options(doomed.url, prefix=f"s{prefix}", timeout="40")
    with Caller(lambda: RedisLedger.from_url(url)) as stern:
        assert not isinstance(stern.claim(before), Granted), "what strict has confirmed is known after the failover"
        assert stern.grant(refused).attempt == 1, "what it refused was never granted"
        assert stern.settle(confirmed, Done()) is True, "the lease outlived its master"


def test_a_master_that_hangs_is_left_for_the_one_that_takes_its_place(doomed: ValkeyCluster) -> None:
    """It is stopped, not gone: connections stay, and nothing says that it is over."""
    harness = harness_on(doomed.url, timed=False)
    claims = [harness.claim(f"key {at}", lease_ms=600_000, retention_ms=600_000) for at in range(200)]
    known, fresh, *_ = [claim for claim in claims if claim.digest[0] % 16 == 0]
    url = with_options(doomed.url, prefix=f"hang{harness.namespace[:8]}", timeout="1")
    with Caller(lambda: RedisLedger.from_url(f"{url}&strict=1")) as stern:
        stern.do(known, b"1")
    with Caller(lambda: RedisLedger.from_url(url)) as ledger:
        assert ledger.is_done(known, b"1")
        master = doomed.master_of(SLOTS[0])
        replica = doomed.replica_of(master)
        master.pause()
        with pytest.raises(LedgerUnavailable, match="1 s"):
            ledger.claim(fresh)
        until(lambda: replica.is_master, "the replica has taken over")

        def answers() -> bool:
            try:
                return ledger.is_done(known, b"1")
            except LedgerUnavailable:
                return False

        until(answers, "the new master is found, and it knows")
        ledger.grant(fresh)
