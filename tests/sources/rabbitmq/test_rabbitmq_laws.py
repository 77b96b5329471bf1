"""The contract of sources, bound to a quorum queue of a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sources.rabbitmq.places import Place

from semel.testing.source_laws import HoldingSourceLaws, SourceHarness, SourceLaws, WaitingSourceLaws


class TestRabbit(SourceLaws, WaitingSourceLaws, HoldingSourceLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path, place: Place) -> SourceHarness:
        return place.harness(tmp_path)
