"""The fixtures that all laws share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semel.testing.harness import Caller, Harness


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
