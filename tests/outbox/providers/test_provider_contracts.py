"""The contract of a provider, bound to each of them. Adding one: its file, its dialect, and its line in kits.py."""

from __future__ import annotations

import pytest
from tests.outbox.providers.kits import KITS

from semel.adapters.providers.kinds import KINDS
from semel.testing.provider_laws import ProviderKit, ProviderLaws
from semel.testing.simulator import SimulatorProcess


@pytest.mark.parametrize("bound", KITS)
class TestEveryProvider(ProviderLaws):
    @pytest.fixture
    def kit(self, bound: str, simulator: SimulatorProcess) -> ProviderKit:
        return KITS[bound](simulator)


def test_every_kind_is_bound() -> None:
    assert {kind for kind in KINDS if not any(name.split("-", 1)[0] == kind or name == kind for name in KITS)} == set()
