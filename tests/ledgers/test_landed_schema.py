"""A released schema step does not change: databases that have run it would miss the change. Changes are new steps."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files

import pytest

LANDED = {
    ("sqlite", "007_schema.sql"): "54afac4c7b800570",
    ("postgres", "001_ledger.sql"): "20347a64dacecf0a",
    ("postgres", "001_inbox.sql"): "d2176e6bd09a470a",
    ("postgres", "001_outbox.sql"): "1132cfd6ca72da3d",
    ("postgres", "001_relay.sql"): "ea3c5f436e1d9c5a",
}


@pytest.mark.parametrize(("store", "step"), LANDED)
def test_a_landed_schema_step_does_not_change(store: str, step: str) -> None:
    text = files(f"semel.ledgers.{store}").joinpath("schema", step).read_bytes()
    assert sha256(text).hexdigest()[:16] == LANDED[store, step], "write a new step: databases have run this one"
