"""The contract of sources, bound to a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sources.files.harness import Place

from semel.testing.source_laws import SourceHarness, SourceLaws


class TestFile(SourceLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> SourceHarness:
        return Place(tmp_path).harness()
