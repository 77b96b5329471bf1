"""The contract of a networked store: the promises of its ledger hold through every fault.

A ledger binds the suite in a few lines. `tests/faults` has the handlers and the worker process that all bindings share:

    class TestMyStore(StoreFaultLaws):
        @pytest.fixture
        def harness(self, tmp_path: Path) -> Iterator[FaultHarness]:
            with FaultProxy("127.0.0.1", server.port) as proxy:
                yield FaultHarness(home=tmp_path, proxy=proxy, …)

Every law runs all effects of the store in one load and checks their promises when the load has drained: nothing lost
and nothing doubled for `transaction` and `keyed`, the last token wins for `fenced`, at least once for `retry`, at most
once and listed for `park`. A law whose fault did not land fails.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from semel.testing.harness import Harness
from semel.testing.laws.faults import (
    POLL_S,
    SOON_S,
    FaultApp,
    FaultHarness,
    FaultStorm,
    Happened,
    Killable,
    document,
    inconclusive,
    wait_until,
)
from semel.testing.proxy import BLACK_HOLE, DEAF, PARTITION, Fault, FaultProxy, Seen, Then, Way
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Outcome

__all__ = [
    "FaultBinding",
    "FaultHarness",
    "Happened",
    "Killable",
    "LongStormLaws",
    "LostMessageLaws",
    "NetworkLaws",
    "SilenceLaws",
    "StoreFaultLaws",
    "StoreKillLaws",
    "WorkerKillLaws",
]

STORE_KILLS = 3
WORKER_KILLS = 4
KILLS_S = 60.0  # a kill counts when a worker takes over a started run; a slow store needs many kills
CUT_S = 0.3
LONG_S = 60.0
LONG_FAULT_S = 5.0  # the maximum; some faults end unnoticed, some last longer than leases and timeouts
LATE_S = 2.0  # longer than a lease, so that held requests arrive after a possible takeover
MESSAGES_MAX = 24  # between a worker and the store for one event; more would be too many round trips
HELD = Fault(replies="hold")
SLOW_LINKS = (  # each way: a round trip takes twice as long
    Fault(latency_ms=50, slice_bytes=64),
    Fault(latency_ms=150, slice_bytes=1_000),
)


class FaultBinding:
    """A store's test class overrides `harness`."""

    @pytest.fixture
    def harness(self) -> FaultHarness:
        raise NotImplementedError("bind the laws to a store: override the fixture `harness`")


class StoreKillLaws(FaultBinding):
    """The store is killed by SIGKILL and started again on its data."""

    @pytest.mark.long
    def test_a_store_killed_under_load_comes_back_with_everything_it_answered(self, harness: FaultHarness) -> None:
        if harness.server is None:
            pytest.skip("the server was given by a URL: it is not ours to kill")
        with FaultStorm(harness) as storm:
            for number in range(STORE_KILLS):
                storm.goes_on()
                self._kill(harness, harness.server, amid_an_answer=number % 2 == 1)
                if number == STORE_KILLS - 1:  # the other outages are short, and the ledger may survive them by retries
                    storm.is_undecided()
                harness.server.start()
            storm.goes_on()

    def _kill(self, harness: FaultHarness, server: Killable, *, amid_an_answer: bool) -> None:
        """Returns when a worker has noticed the outage. Replies in transit are held back and never arrive."""
        proxy = harness.proxy
        missed = proxy.seen.unreachable
        if amid_an_answer:
            with proxy.fault(HELD) as before:
                wait_until(lambda: proxy.seen.held > before.held, "an answer in flight")
                server.kill()
                proxy.reset()
        else:
            wait_until(lambda: proxy.open > 0, "a connection to the store that is killed")
            server.kill()
        wait_until(lambda: proxy.seen.unreachable > missed, "a worker that misses the store")


class WorkerKillLaws(FaultBinding):
    """Workers are killed by SIGKILL, and others take over."""

    @pytest.mark.long
    def test_workers_killed_under_load_lose_nothing(self, harness: FaultHarness) -> None:
        with FaultStorm(harness) as storm:
            ends = time.monotonic() + KILLS_S
            while storm.kills < WORKER_KILLS or not self._took_over(harness):
                storm.kill_worker()
                if time.monotonic() > ends:
                    inconclusive(f"none of {storm.kills} kills came while a handler ran")
            storm.goes_on()

    def _took_over(self, harness: FaultHarness) -> bool:
        """Whether a worker has run an event again that another worker had started."""
        return any(call.attempt > 1 for call in harness.happened())


class NetworkLaws(FaultBinding):
    """The network fails and recovers."""

    @pytest.mark.long
    def test_a_cut_network_that_comes_back_loses_nothing(self, harness: FaultHarness) -> None:
        with FaultStorm(harness) as storm:
            for long in (False, True):
                storm.goes_on()
                with harness.proxy.fault(Fault(refuse=True)):
                    wait_until(lambda: harness.proxy.reset() > 0, "a connection that is cut")
                    if long:  # longer than the retries of the ledger
                        storm.is_undecided()
                    else:
                        time.sleep(CUT_S)
            storm.goes_on()

    @pytest.mark.long
    def test_a_slow_link_in_small_pieces_loses_nothing(self, harness: FaultHarness) -> None:
        with FaultStorm(harness) as storm:
            for slow in SLOW_LINKS:
                with harness.proxy.fault(slow) as before:
                    wait_until(lambda: self._is_slow(harness.proxy, before), "messages that are delayed and cut up")
                    storm.goes_on()

    def _is_slow(self, proxy: FaultProxy, before: Seen) -> bool:
        return proxy.seen.delayed > before.delayed and proxy.seen.pieces > before.pieces

    @pytest.mark.long
    def test_black_holes_half_open_connections_and_partitions_lose_nothing(self, harness: FaultHarness) -> None:
        """Three faults: no traffic; lost replies to executed requests; held requests that arrive too late."""
        proxy = harness.proxy
        with FaultStorm(harness) as storm:
            for fault in (BLACK_HOLE, DEAF, PARTITION):
                with proxy.fault(fault) as before:
                    self._meets(proxy, before)
                    storm.is_undecided()
                    if fault is PARTITION:
                        time.sleep(LATE_S)
                storm.goes_on()

    def _meets(self, proxy: FaultProxy, before: Seen) -> None:
        silenced = before.swallowed + before.held
        wait_until(lambda: proxy.seen.swallowed + proxy.seen.held > silenced, "a message that gets no answer")

    def test_a_store_that_does_not_answer_is_unavailable_in_time(self, harness: FaultHarness) -> None:
        """A call ends in time on an old and on a new connection, and the next call succeeds."""
        keys = Harness(open=lambda: harness.hasty().ledger)

        async def ask() -> None:
            app = harness.hasty()
            try:
                await app.ledger.claim([keys.claim("before")])
                with harness.proxy.fault(BLACK_HOLE) as before:
                    for number in range(2):
                        async with asyncio.timeout(SOON_S):
                            with pytest.raises(LedgerUnavailable):
                                await app.ledger.claim([keys.claim(f"within {number}")])
                assert harness.proxy.seen.swallowed > before.swallowed
                await _at_last(app.ledger.claim, [keys.claim("after")])
            finally:
                await app.close()

        asyncio.run(ask())

    def test_a_store_that_is_not_there_is_unavailable(self, harness: FaultHarness) -> None:
        keys = Harness(open=lambda: harness.hasty().ledger)

        async def ask() -> None:
            app = harness.hasty()
            try:
                with harness.proxy.fault(Fault(refuse=True)):
                    async with asyncio.timeout(SOON_S):
                        with pytest.raises(LedgerUnavailable):
                            await app.ledger.claim([keys.claim("within")])
                await _at_last(app.ledger.claim, [keys.claim("after")])
            finally:
                await app.close()

        asyncio.run(ask())


class LostMessageSweep(FaultBinding):
    """Loses each message between a worker and the store once: the first, the second, … until the event is processed.

    A lost request never reaches the store. A lost reply hides a grant or a settle that the store has executed. The
    messages include claims, settles and commits of every protocol."""

    def _sweep(self, harness: FaultHarness, what: Way, then: Then) -> None:
        storm = FaultStorm(harness)  # only for its checks; no worker runs
        asyncio.run(self._lose_each(harness, storm, what, then))
        storm.check()

    async def _lose_each(self, harness: FaultHarness, storm: FaultStorm, what: Way, then: Then) -> None:
        app = harness.hasty()
        try:
            landed = dict.fromkeys(harness.effects, 0)
            for effect in harness.effects:
                for nth in range(1, MESSAGES_MAX):
                    event = f"{effect}-{what}-{nth:02}"
                    storm.events += [f"{effect}-warm-{nth:02}", event]
                    await _process(app, storm.events[-2])  # opens connections and prepares statements
                    harness.proxy.lose(what, nth, then)
                    await _process(app, event)
                    if harness.proxy.disarm():
                        break
                    landed[effect] += 1
            few = {effect: count for effect, count in landed.items() if count < 2}
            if few:
                inconclusive(f"less than a claim and a settle were lost: {few}")
        finally:
            await app.close()


class LostMessageLaws(LostMessageSweep):
    """The connection is reset together with the loss."""

    @pytest.mark.parametrize("what", ["request", "reply"])
    def test_no_single_lost_message_loses_or_doubles_an_effect(self, harness: FaultHarness, what: Way) -> None:
        self._sweep(harness, what, "reset")


class SilenceLaws(LostMessageSweep):
    """A lost reply leaves the connection open and silent."""

    def test_a_reply_that_leaves_only_silence_loses_and_doubles_nothing(self, harness: FaultHarness) -> None:
        """Tests only the strongest effect of the store, because each silence lasts until the timeout of the ledger."""
        harness.effects = harness.effects[:1]
        self._sweep(harness, "reply", "silence")

    @pytest.mark.long
    def test_no_silence_loses_or_doubles_an_effect(self, harness: FaultHarness) -> None:
        self._sweep(harness, "reply", "silence")


class LongStormLaws(FaultBinding):
    """All faults in random order."""

    @pytest.mark.long
    def test_a_long_storm_of_every_fault_loses_and_doubles_nothing(self, harness: FaultHarness) -> None:
        dice = random.Random("a long storm")
        proxy, server = harness.proxy, harness.server

        def kill_store() -> None:
            assert server is not None
            server.kill()
            time.sleep(dice.uniform(0, LONG_FAULT_S))
            server.start()

        def during(fault: Fault) -> Callable[[], None]:
            def last() -> None:
                with proxy.fault(fault):
                    time.sleep(dice.uniform(0, LONG_FAULT_S))

            return last

        with FaultStorm(harness) as storm:
            faults: list[Callable[[], object]] = [storm.kill_worker, proxy.reset]
            faults += [during(fault) for fault in (Fault(refuse=True), BLACK_HOLE, DEAF, PARTITION, *SLOW_LINKS)]
            faults += [kill_store] if server is not None else []
            ends, landed = time.monotonic() + LONG_S, Counter[int]()
            while time.monotonic() < ends or len(landed) < len(faults):
                chosen = dice.randrange(len(faults))
                faults[chosen]()
                landed[chosen] += 1
                storm.goes_on()


async def _process(app: FaultApp, event: str) -> Outcome:
    """Process one event to its end. Deliver it again until it is acknowledged."""
    ends = time.monotonic() + SOON_S
    while True:
        try:
            outcome = await app.process(document(event))
        except LedgerUnavailable as error:
            outcome = Outcome("busy", reason=str(error), after=POLL_S)
        if outcome.final:
            return outcome
        assert time.monotonic() < ends, f"{event} is not finished: {outcome}"
        await asyncio.sleep(min(outcome.after or POLL_S, 0.2))


async def _at_last(ask: Any, *arguments: Any) -> Any:
    """Wait until calls succeed again. Each broken connection may fail once more."""
    ends = time.monotonic() + SOON_S
    while True:
        try:
            return await ask(*arguments)
        except LedgerUnavailable:
            assert time.monotonic() < ends
            await asyncio.sleep(POLL_S)


class StoreFaultLaws(StoreKillLaws, WorkerKillLaws, NetworkLaws, LostMessageLaws, SilenceLaws, LongStormLaws):
    """All laws of a networked store."""
