"""The contract of sources, bound to a folder and to SQS (an emulator, by real HTTP)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.sources.places import Queue, folder_harness

from semel.testing.laws.sources import AnswerLaws
from semel.testing.source_laws import HoldingSourceLaws, OrderedSourceLaws, SourceHarness, SourceLaws, WaitingSourceLaws


class TestFolder(SourceLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> SourceHarness:
        return folder_harness(tmp_path)


class TestSqs(SourceLaws, WaitingSourceLaws, HoldingSourceLaws):
    fifo = False

    @pytest.fixture
    def harness(self, tmp_path: Path, new_queue: Callable[..., Queue], request: pytest.FixtureRequest) -> SourceHarness:
        law = request.function.__name__
        if hasattr(AnswerLaws, law) or hasattr(OrderedSourceLaws, law):  # they end when all is done
            request.getfixturevalue("quick_end")
        return new_queue(fifo=self.fifo).harness(tmp_path)


class TestSqsFifo(TestSqs, OrderedSourceLaws):
    fifo = True
