"""The opaque text of a lease: what it holds comes back, and a forged one reaches nothing that its owner may not."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.api.live import Client, api_on

from semel.service.api.claim_shapes import LEASE_TEXT_MAX, ClaimItem, OrderItem
from semel.service.api.claims import Ticket, read_ticket, ticket_for
from semel.values.claim import Granted, Lease
from semel.values.errors import MalformedEvent
from semel.values.outcome import RETRY_MAX_S

printable = st.characters(blacklist_categories=["Cc", "Cs"])
names = st.text(printable, min_size=1, max_size=255)
key = names | st.lists(st.text(printable, max_size=255), min_size=1, max_size=16).filter(any)
items = st.builds(
    ClaimItem,
    handler=names,
    key=key,
    lease=st.floats(0.1, 86_400),
    retention=st.floats(1, RETRY_MAX_S),
    payload=st.none() | st.dictionaries(names, st.integers(0, 9)),
    order=st.none() | st.builds(OrderItem, subject=key, position=st.integers(-(2**53) + 1, 2**53 - 1).map(float)),
    max_attempts=st.none() | st.integers(1, 1_000_000).map(float),
    park=st.booleans(),
)
WIDEST = ClaimItem(
    handler="\U0001f600" * 255,
    key=["\U0001f600" * 255] * 16,
    order=OrderItem(subject=["\U0001f600" * 255] * 16, position=1),
)


@given(items, st.integers(1, 2**63 - 1), st.integers(1, 1_000_000))
def test_a_lease_comes_back_as_it_was_granted(item: ClaimItem, token: int, attempt: int) -> None:
    ticket = ticket_for(item)
    granted = Granted(Lease(ticket.claim("acme"), token), attempt, takeover=False, age_ms=0)
    text = ticket.granted(granted)
    back = read_ticket(text)
    assert back.lease("acme") == granted.lease
    assert (back.attempt, back.max_attempts, back.park) == (attempt, item.max_attempts, item.park)
    assert back.lease("globex").claim.digest != granted.lease.claim.digest


def test_the_longest_lease_is_within_its_limit() -> None:
    ticket = ticket_for(WIDEST)
    text = ticket.granted(Granted(Lease(ticket.claim("acme"), 2**63 - 1), 1, takeover=False, age_ms=0))
    assert len(text) <= LEASE_TEXT_MAX
    assert read_ticket(text).key == WIDEST.key


@given(st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1) | st.text())
def test_an_invalid_lease_is_refused(text: str) -> None:
    with pytest.raises(MalformedEvent, match=r"^lease: "):
        read_ticket(text)


def written(**changed: Any) -> str:
    """A lease text with something in it that we never write."""
    ticket = msgspec.structs.replace(ticket_for(ClaimItem(handler="h", key="k")), token=1, attempt=1)
    values = [changed.get(name, getattr(ticket, name)) for name in Ticket.__struct_fields__]
    return packed([*values, *changed.get("more", [])])


def packed(values: Any) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(values)).rstrip(b"=").decode()


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "nobody's token": {"token": 0},
    "a negative token": {"token": -1},
    "a token past 63 bits": {"token": 2**63},
    "a text for a token": {"token": "1"},
    "another version": {"version": 2},
    "no parts": {"key": []},
    "17 parts": {"key": ["k"] * 17},
    "a long part": {"key": ["k" * 256]},
    "a short fingerprint": {"fingerprint": b"short"},
    "no lease": {"lease_ms": 0},
    "a lease of a year": {"lease_ms": 31_536_000_000},
    "no retention": {"retention_ms": 0},
    "an endless retention": {"retention_ms": 2**62},
    "a far position": {"subject": ["s"], "position": 2**60},
    "no attempt": {"attempt": 0},
    "one thing more": {"more": [1]},
}


def test_a_written_lease_is_read_where_nothing_is_wrong_with_it() -> None:
    assert read_ticket(written()).key == ["k"]


@pytest.mark.parametrize("changed", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_a_forged_lease_with_impossible_values_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(MalformedEvent):
        read_ticket(written(**changed))


@pytest.mark.parametrize("forged", [packed({}), packed([]), packed(7), packed([1, "h"]), packed([[[[]]]] * 20)])
def test_a_forged_lease_of_another_shape_is_refused(forged: str) -> None:
    with pytest.raises(MalformedEvent):
        read_ticket(forged)


def test_one_lease_has_one_spelling() -> None:
    text = written()
    for other in (text + "=", text + "==", text + "A", " " + text, text + "\n", text[:-1] + chr(ord(text[-1]) + 1)):
        with pytest.raises(MalformedEvent):
            read_ticket(other)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with api_on(tmp_path_factory.mktemp("leases")) as client:
        yield client


@pytest.fixture(scope="module")
def lease(client: Client) -> str:
    text: str = client.grant("held", lease=3_600, order={"subject": "s", "position": 5})["lease"]
    return text


@given(at=st.integers(0), flip=st.integers(1, 255))
def test_a_lease_that_was_tampered_with_is_another_lease_or_none(
    client: Client, lease: str, at: int, flip: int
) -> None:
    raw = bytearray(urlsafe_b64decode(lease + "=" * (-len(lease) % 4)))
    raw[at % len(raw)] ^= flip
    forged = urlsafe_b64encode(raw).rstrip(b"=").decode()
    reply = client.ask("POST", "/v1/claims/renew", {"items": [{"lease": forged}]})
    if reply.status == 400:
        return
    (answer,) = reply.items
    ours, theirs = read_ticket(lease), read_ticket(forged)
    if answer["renewed"]:  # what is ours to change anyway: how long it lasts, how often it is tried
        assert (theirs.handler, theirs.key, theirs.token) == (ours.handler, ours.key, ours.token)


def test_a_guessed_token_settles_nothing(client: Client, lease: str) -> None:
    ticket = read_ticket(lease)
    for token in (ticket.token - 1, ticket.token + 1, 2**63 - 1):
        if token:
            guessed = packed(msgspec.structs.replace(ticket, token=token))
            assert client.settle({"lease": guessed, "outcome": "done"}) == [{"settled": False}]
    assert client.renew(lease) == [{"renewed": True, "expires_in": 3_600.0}]


def test_a_released_key_cannot_be_settled_with_token_0(client: Client) -> None:
    """A key that was tried before and given back has token 0 in the store."""
    client.settle({"lease": client.grant("twice")["lease"], "outcome": "retry", "after": 0})
    again = client.grant("twice")
    assert again["attempt"] == 2
    client.settle({"lease": again["lease"], "outcome": "release"})
    nobody = packed(msgspec.structs.replace(read_ticket(again["lease"]), token=0))
    assert client.ask("POST", "/v1/claims/settle", {"items": [{"lease": nobody, "outcome": "done"}]}).status == 400
    assert client.grant("twice")["attempt"] == 2
