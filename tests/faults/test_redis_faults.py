"""Redis through every fault: the laws on a server that syncs every answer, and what one without a disk forgets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.faults.bindings import harness_of
from tests.faults.worker_process import Plan, app_of, calls_outside
from tests.support.servers.process import NoServer, given_url, not_here
from tests.support.servers.valkey import Valkey

from semel.testing.fault_laws import FaultHarness, Happened, StoreFaultLaws
from semel.testing.laws.faults import EventRecord, check_kept, document
from semel.testing.proxy import FaultProxy

EFFECTS = ("keyed", "fenced", "retry", "park")
EVENTS = [f"{effect}-{number}" for effect in EFFECTS for number in range(3)]
OPTIONS = "timeout=1"
SYNCED = {"appendonly": "yes", "appendfsync": "always"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey | None]:
    """Everything it answers is on its disk first. None: one was given."""
    if given_url("REDIS") is not None:
        yield None
        return
    try:
        server = Valkey(tmp_path / "valkey", SYNCED)
        server.start()
    except NoServer as error:
        not_here(error)
    yield server
    server.stop()


@pytest.fixture
def url(server: Valkey | None, tmp_path: Path) -> str:
    """With a prefix of its own: a given server may know other things."""
    plain = given_url("REDIS") if server is None else server.url
    return f"{plain}?{OPTIONS}&prefix=faults-{tmp_path.name}-{id(tmp_path)}"


@pytest.fixture
def proxy(url: str) -> Iterator[FaultProxy]:
    place = urlsplit(url)
    with FaultProxy(place.hostname or "127.0.0.1", place.port or 6379) as proxy:
        yield proxy


class TestRedis(StoreFaultLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path, server: Valkey | None, url: str, proxy: FaultProxy) -> FaultHarness:
        return harness_of(
            tmp_path,
            proxy,
            proxy.url(url),
            hasty=proxy.url(url).replace(OPTIONS, "timeout=0.4"),
            server=server,
            effects=EFFECTS,
        )


class TestForgetfulRedis:
    """A server without a disk, killed and started again: what the page of guarantees says of it is what happens."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[Valkey]:
        try:
            server = Valkey(tmp_path / "valkey")
            server.start()
        except NoServer as error:
            not_here(error)
        yield server
        server.stop()

    @pytest.fixture
    def calls(self, tmp_path: Path, server: Valkey) -> list[Happened]:
        """What two deliveries of each event came to, one before and one after the store has forgotten."""
        plan = Plan(str(tmp_path), f"{server.url}?{OPTIONS}", EFFECTS)

        async def deliver() -> set[str]:
            async with app_of(plan) as app:
                return {outcome.status for outcome in await app.process_many([document(event) for event in EVENTS])}

        assert asyncio.run(deliver()) == {"done"}
        assert asyncio.run(deliver()) == {"duplicate"}
        server.kill()
        server.start()
        assert asyncio.run(deliver()) == {"done"}, "inconclusive: nothing was forgotten"
        return calls_outside(tmp_path)

    def test_keyed_is_repeated_with_the_same_key(self, calls: list[Happened]) -> None:
        check_kept("keyed", of("keyed", calls), dict.fromkeys(events_of("keyed"), EventRecord("done", None)))
        assert len(of("keyed", calls)) == 2 * len(events_of("keyed"))

    def test_fenced_is_repeated_with_a_higher_token(self, calls: list[Happened]) -> None:
        """Tokens begin at the server's time, so they do not go back with what is forgotten."""
        for event in events_of("fenced"):
            before, after = [call for call in calls if call.event == event]
            assert after.token > before.token
            assert after.applied

    def test_retry_is_repeated(self, calls: list[Happened]) -> None:
        check_kept("retry", of("retry", calls), dict.fromkeys(events_of("retry"), EventRecord("done", None)))
        assert len(of("retry", calls)) == 2 * len(events_of("retry"))

    def test_park_doubles(self, calls: list[Happened]) -> None:
        """The positive control: it can be lost, and this is what it costs."""
        assert Counter(call.event for call in of("park", calls)) == dict.fromkeys(events_of("park"), 2)


def events_of(effect: str) -> list[str]:
    return [event for event in EVENTS if event.startswith(effect)]


def of(effect: str, calls: list[Happened]) -> list[Happened]:
    return [call for call in calls if call.effect == effect]
