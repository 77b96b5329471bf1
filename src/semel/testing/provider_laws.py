"""The contract of a provider, as tests against the simulator.

A provider binds it in a few lines, and nothing of it can be switched off:

    class TestMyProvider(ProviderLaws):
        @pytest.fixture
        def kit(self, simulator: SimulatorProcess) -> ProviderKit:
            return ProviderKit(simulator, "mine", open=…, say=…, secrets=[…], unfit=[…])

What it can do besides has laws of its own: `TokenLaws` where it signs in first, `ReportLaws` where it calls back. The
simulator has to know how it speaks: one file in `semel.testing.simulator.dialects`.
"""

from __future__ import annotations

from semel.testing.laws.providers import (
    AccessLaws,
    LyingLaws,
    Opening,
    ProviderKit,
    Reporting,
    SendingLaws,
    TokenLaws,
    dispatch_of,
)
from semel.testing.laws.providers_reporting import Ear, ReportLaws

__all__ = ["Ear", "Opening", "ProviderKit", "ProviderLaws", "ReportLaws", "Reporting", "TokenLaws", "dispatch_of"]


class ProviderLaws(SendingLaws, LyingLaws, AccessLaws):
    """All laws that every provider keeps."""
