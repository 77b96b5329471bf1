"""A step of a schema that has landed stays as it is: who has taken it does not take it again, and would miss what is
mended in it. What is to be changed is a step of its own."""

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
def test_a_step_that_has_landed_stays_as_it_is(store: str, step: str) -> None:
    text = files(f"semel.ledgers.{store}").joinpath("schema", step).read_bytes()
    assert sha256(text).hexdigest()[:16] == LANDED[store, step], "say it in a new step: databases have taken this one"
