"""The contract of a provider, as tests against the simulator.

A provider binds the suite in a few lines. No law can be switched off:

    class TestMyProvider(ProviderLaws):
        @pytest.fixture
        def kit(self, simulator: SimulatorProcess) -> ProviderKit:
            return ProviderKit(simulator, "mine", open=…, say=…, secrets=[…], unfit=[…])

Optional abilities have their own laws: `TokenLaws` for access tokens, `ReportLaws` for callbacks. The simulator needs a
dialect for the provider: one module in `semel.testing.simulator`.
"""

from __future__ import annotations

from semel.testing.laws.providers import (
    AccessLaws,
    Ear,
    LyingLaws,
    Opening,
    ProviderKit,
    Reporting,
    ReportLaws,
    SendingLaws,
    TokenLaws,
    dispatch_of,
)

__all__ = ["Ear", "Opening", "ProviderKit", "ProviderLaws", "ReportLaws", "Reporting", "TokenLaws", "dispatch_of"]


class ProviderLaws(SendingLaws, LyingLaws, AccessLaws):
    """All laws that every provider keeps."""
