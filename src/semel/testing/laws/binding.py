"""The fixtures that all laws share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from semel.ports import Ledger
from semel.testing.harness import Caller, Harness

THREADS = 8
PROCESSES = 4


class Binding:
    """A ledger's test class overrides `harness`."""

    @pytest.fixture
    def harness(self) -> Harness:
        raise NotImplementedError("bind the laws to a ledger: override the fixture `harness`")

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
    """Every race is run by threads, and by processes where the store allows it."""

    @pytest.fixture(params=["threads", "processes"])
    def how(self, request: pytest.FixtureRequest, harness: Harness) -> str:
        if request.param == "processes" and harness.remote is None:
            pytest.skip("this store does not leave its process")
        return str(request.param)

    @pytest.fixture
    def racers(self, how: str) -> int:
        return THREADS if how == "threads" else PROCESSES

    @pytest.fixture
    def opener(self, how: str, harness: Harness) -> Callable[[], Ledger]:
        """Whoever races by processes lives by the store's own clock."""
        return harness.open if how == "threads" or harness.remote is None else harness.remote
