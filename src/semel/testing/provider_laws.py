"""The contract of a provider, as tests against the simulator.

A provider binds it in a few lines, and nothing of it can be switched off:

    class TestMyProvider(ProviderLaws):
        @pytest.fixture
        def kit(self, simulator: SimulatorProcess) -> ProviderKit:
            return ProviderKit(simulator, "mine", open=…, say=…, secrets=[…], unfit=[…])

Optional abilities have laws of their own: `TokenLaws` for a sign-in, `ReportLaws` for callbacks. The simulator needs
a dialect of the provider: one file in `semel.testing.simulator`.
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
