"""Binds the contract suite to each provider. A new one needs its file, its dialect, and a line in kits.py."""

from __future__ import annotations

import pytest
from tests.outbox.providers.kits import CALL_BACK, KITS, SIGN_IN

from semel.providers.http import HttpProvider
from semel.providers.registry import KINDS
from semel.testing.provider_laws import Opening, ProviderKit, ProviderLaws, ReportLaws, TokenLaws
from semel.testing.simulator import SimulatorProcess


class Bound:
    @pytest.fixture
    def kit(self, bound: str, simulator: SimulatorProcess) -> ProviderKit:
        return KITS[bound](simulator)


@pytest.mark.parametrize("bound", KITS)
class TestEveryProvider(Bound, ProviderLaws):
    pass


@pytest.mark.parametrize("bound", SIGN_IN)
class TestThoseThatSignIn(Bound, TokenLaws):
    pass


@pytest.mark.parametrize("bound", CALL_BACK)
class TestThoseThatCallBack(Bound, ReportLaws):
    pass


def test_every_kind_is_bound() -> None:
    assert {kind for kind in KINDS if kind not in {name.partition("-")[0] for name in KITS} | KITS.keys()} == set()


def test_every_provider_with_callbacks_is_tested(simulator: SimulatorProcess) -> None:
    decode_options = {
        name
        for name, kit in KITS.items()
        if isinstance(opened := kit(simulator).open(Opening("http://127.0.0.1:1")), HttpProvider)
        and type(opened).reports is not HttpProvider.reports
    }
    assert decode_options == set(CALL_BACK)
