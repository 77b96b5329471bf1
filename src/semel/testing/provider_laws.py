"""The contract of a provider, as tests against the simulator.

A provider binds it in a few lines, and nothing of it can be switched off:

    class TestMyProvider(ProviderLaws):
        @pytest.fixture
        def kit(self, simulator: SimulatorProcess) -> ProviderKit:
            return ProviderKit(simulator, "mine", open=…, say=…, secrets=[…], unfit=[…])

The simulator has to know how it speaks: one file in `semel.testing.simulator.dialects`.
"""

from __future__ import annotations

from semel.testing.laws.providers import AccessLaws, LyingLaws, Opening, ProviderKit, Reporting, SendingLaws
from semel.testing.laws.providers_reporting import ReportLaws

__all__ = ["Opening", "ProviderKit", "ProviderLaws", "Reporting"]


class ProviderLaws(SendingLaws, LyingLaws, AccessLaws, ReportLaws):
    """All laws that every provider keeps."""
