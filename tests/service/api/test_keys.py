"""Looking at a key: its present state and what it was, for its own tenant only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.service.api.live import GLOBEX, READER, Client, api_on

from semel.ledgers.sqlite import SqliteLedger
from semel.testing.harness import FakeClock


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with api_on(tmp_path, clock=FakeClock()) as client:
        yield client


def test_a_key_tells_its_present_state(client: Client) -> None:
    granted = client.grant("a", handler="survey")
    reply = client.key(granted["key"])
    assert (reply.status, reply.headers["cache-control"]) == (200, "no-store")
    leased = reply.json()
    assert (leased["key"], leased["handler"], leased["text"], leased["state"]) == (
        granted["key"],
        "survey",
        "a",
        "leased",
    )
    client.settle({"lease": granted["lease"], "outcome": "done", "result": {"x": [1, None]}})
    done = client.key(granted["key"]).json()
    assert done["state"] == "done"
    (line,) = done["history"]
    assert (line["state"], line["attempts"], line["generation"], line["result"]) == ("done", 1, 1, {"x": [1, None]})
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["at"])  # as the command line tells it


def test_the_parts_of_a_key_are_shown_as_one_text(client: Client) -> None:
    (granted,) = client.claim({"handler": "h", "key": ["", "conversation", "end"]})
    assert client.key(granted["key"]).json()["text"] == "conversation|end"


def test_a_dead_key_tells_why(client: Client) -> None:
    granted = client.grant("a")
    client.settle(
        {"lease": granted["lease"], "outcome": "reject", "reason": "no such customer", "event": {"name": "Ann"}}
    )
    reply = client.key(granted["key"])
    (line,) = reply.json()["history"]
    assert (line["state"], line["reason"], line["result"]) == ("dead", "no such customer", None)
    assert b"Ann" not in reply.body  # what happened to whom is told by `semel dead show`, on the machine


def test_a_discarded_key_names_who_decided(client: Client, tmp_path: Path) -> None:
    granted = client.grant("a")
    client.settle({"lease": granted["lease"], "outcome": "reject", "reason": "no such customer", "event": 1})

    async def discard() -> None:
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        assert await ledger.discard(granted["key"], "was a test call", "kim")
        await ledger.close()

    asyncio.run(discard())
    told = client.key(granted["key"]).json()
    assert told["state"] == "discarded"
    assert "kim" in told["history"][0]["decision"]


def test_another_tenants_key_is_as_unknown_as_any_other(client: Client) -> None:
    key = client.grant("a")["key"]
    unknown = client.key("0" * 32)
    theirs = Client(client.port, GLOBEX).key(key)
    assert (theirs.status, theirs.body) == (unknown.status, unknown.body) == (404, unknown.body)
    assert Client(client.port, READER).key(key).status == 200  # another token of the same tenant


@pytest.mark.parametrize("key", ["0" * 31, "0" * 33, "G" * 32, "A" * 32, "0" * 32 + "%0A", "%00" * 32, "٠" * 32, ".."])
def test_what_is_no_key_is_refused(client: Client, key: str) -> None:
    assert client.key(quote(key, safe="%")).status in (400, 404)
