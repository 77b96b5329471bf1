"""The fixtures that all laws share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from semel.ports import Ledger
from semel.testing.bystanders import Bystanders, watch
from semel.testing.harness import Caller, Harness

THREADS = 8
PROCESSES = 4


class Binding:
    """A ledger's test class overrides `harness`."""

    @pytest.fixture
    def harness(self) -> Harness:
        raise NotImplementedError("bind the laws to a ledger: override the fixture `harness`")

    @pytest.fixture(autouse=True)
    def bystanders(self, harness: Harness, request: pytest.FixtureRequest) -> Iterator[None]:
        """Rows of another tenant, which no law may change."""
        # Racing processes use the store's own clock, and a lease from another clock counts as one of an earlier boot.
        by_opener = "opener" in request.fixturenames
        open_ledger: Callable[[], Ledger] = request.getfixturevalue("opener") if by_opener else harness.open
        yield from self.watch_bystanders(harness, open_ledger, request)

    def watch_bystanders(
        self, harness: Harness, open_ledger: Callable[[], Ledger], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """Plant rows before a law and check them after it. Bindings with more kinds of rows override this."""
        return watch(Bystanders(harness), partial(Caller, open_ledger))

    @pytest.fixture
    def ledger(self, harness: Harness) -> Iterator[Caller]:
        with Caller(harness.open) as caller:
            yield caller

    @pytest.fixture
    def other(self, harness: Harness) -> Iterator[Caller]:
        """Another worker on the same store."""
        with Caller(harness.open) as caller:
            yield caller


class RaceBinding(Binding):
    """Every race is run by threads, and by processes (marked `long`) where the store allows it."""

    @pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.long)])
    def how(self, request: pytest.FixtureRequest, harness: Harness) -> str:
        if request.param == "processes" and harness.remote is None:
            pytest.skip("this store does not leave its process: bind OneProcess before the laws")
        return str(request.param)

    @pytest.fixture
    def racers(self, how: str) -> int:
        return THREADS if how == "threads" else PROCESSES

    @pytest.fixture
    def opener(self, how: str, harness: Harness) -> Callable[[], Ledger]:
        """Opens the store. Racing processes use the store's own clock."""
        return harness.open if how == "threads" or harness.remote is None else harness.remote


class OneProcess:
    """Placed before the laws of a store that processes cannot share: races run in threads only."""

    @pytest.fixture(params=["threads"])
    def how(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)
