"""Ten thousand messages over providers that lie, with two relays that are killed at random: the proof of the outbox."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.proof.outbox import storm
from tests.proof.outbox.checks import check, summary
from tests.proof.outbox.stores import Store

STORES = ("sqlite", "postgres")


@pytest.mark.long
@pytest.mark.parametrize("on", STORES)
def test_ten_thousand_sends_over_all_faults(store: Store, tmp_path: Path) -> None:
    came = storm.run(store, tmp_path, sends=10_000, within_s=60, kill_every_s=1.5)
    print(summary(came))
    check(came)
