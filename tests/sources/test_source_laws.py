"""The contract of sources, bound to a folder and to SQS (an emulator, by real HTTP)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.sources.places import Queue, folder_harness

from semel.testing.source_laws import OrderedSourceLaws, SourceHarness, SourceLaws


class TestFolder(SourceLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> SourceHarness:
        return folder_harness(tmp_path)


class TestSqs(SourceLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path, new_queue: Callable[..., Queue]) -> SourceHarness:
        return new_queue().harness(tmp_path)


class TestSqsFifo(SourceLaws, OrderedSourceLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path, new_queue: Callable[..., Queue]) -> SourceHarness:
        return new_queue(fifo=True).harness(tmp_path)
