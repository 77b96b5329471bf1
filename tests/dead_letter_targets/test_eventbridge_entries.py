"""What a letter on a bus says, and what is left out of one that is too large."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import ROOT
from tests.dead_letter_targets.given_up import EVENT, given_up
from tests.test_docs import blocks_in

from semel.dead_letter_targets.eventbridge import (
    ENTRIES_MAX,
    REQUEST_MAX_BYTES,
    BusAddress,
    BusEntry,
    dead_letter_entry,
    malformed_entry,
    requests,
)
from semel.values.attempts import REASON_MAX, TRIED_MAX, FailedAttempt
from semel.values.claim import Settlement

AT_MS = 1_750_000_000_123
BUS = BusAddress("letters")
REFERENCE = BusAddress("letters", oversize="reference")


def put(settlement: Settlement, address: BusAddress = BUS) -> BusEntry:
    return dead_letter_entry(settlement, AT_MS, address)


def detail(entry: BusEntry) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(entry.request["Detail"])
    return told


def counted(entry: BusEntry) -> int:
    """The size by the rule of AWS: 14 for a time, and the bytes of everything that is text."""
    request = entry.request
    texts = [request["Source"], request["DetailType"], request["Detail"], *request["Resources"]]
    return 14 + sum(len(text.encode()) for text in texts)


def test_an_entry_has_every_field() -> None:
    """Also of the attempts before; the process of the second one vanished."""
    settlement = given_up(token=7, attempts=3, attempt_log=(FailedAttempt(1, AT_MS - 5_000, "the CRM answered 503"),))
    entry = put(settlement)
    key = settlement.lease.claim.digest.hex()
    assert detail(entry) == {
        "id": f"{key}-7",
        "state": "dead",
        "key": key,
        "handler": "to-crm",
        "text": "key of one",
        "tenant": "acme",
        "reason": "unknown customer",
        "attempts": 3,
        "attempt_log": [
            {"attempt": 1, "at": "2025-06-15T15:06:35.123Z", "reason": "the CRM answered 503"},
            {"attempt": 3, "at": "2025-06-15T15:06:40.123Z", "reason": "unknown customer"},
        ],
        "token": 7,
        "at": "2025-06-15T15:06:40.123Z",
        "event": json.loads(EVENT),
    }
    assert EVENT.decode() in entry.request["Detail"], "byte for byte: 12.50 is not 12.5 to everybody"
    assert entry.request["Resources"] == []
    assert (entry.request["Source"], entry.request["DetailType"]) == ("semel", "semel.dead-letter")
    assert entry.size == counted(entry)


def test_the_page_shows_an_entry_with_its_fields() -> None:
    page = (ROOT / "docs" / "dead-letters.md").read_text("utf-8")
    documents = [json.loads("\n".join(block.code)) for block in blocks_in(page) if block.language == "json"]
    (shown,) = [document for document in documents if "token" in document]
    said = detail(put(given_up()))
    assert list(shown) == list(said)
    assert shown["id"] == f"{shown['key']}-{shown['token']}"
    assert [list(one) for one in shown["attempt_log"]] == [list(said["attempt_log"][0])]


def test_the_same_token_has_the_same_id_and_another_one_another() -> None:
    assert put(given_up(token=1)).id == put(given_up(token=1, reason="other words")).id
    assert len({put(given_up(token=token)).id for token in range(1, 9)}) == 8
    assert put(given_up("one")).id != put(given_up("two")).id


def test_an_uncertain_event_is_never_dead() -> None:
    assert detail(put(given_up(doubt=True)))["state"] == "uncertain"


def test_an_entry_without_an_event_has_none() -> None:
    assert detail(put(given_up(event=None)))["event"] is None


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"not json", {"event_text": "not json"}),
        (b'{"a":1,"a":2}', {"event_text": '{"a":1,"a":2}'}),
        (b"[" * 5_000, {"event_text": "[" * 5_000}),
        (b"\xff\x00\x1b[2J", {"event_base64": "/wAbWzJK"}),
        (b"", {"event_text": ""}),
    ],
    ids=["text", "twice", "deep", "bytes", "nothing"],
)
def test_a_body_that_is_not_json_is_text_or_base64(body: bytes, told: dict[str, str]) -> None:
    entry = malformed_entry(body, "not JSON at byte 0", AT_MS, BUS)
    found = detail(entry)
    assert found["state"] == "malformed"
    assert found["reason"] == "not JSON at byte 0"
    assert found["id"] == f"aside-{hashlib.sha256(body).hexdigest()}"
    assert {name: found[name] for name in ("event_text", "event_base64") if name in found} == told


def large(size: int) -> bytes:
    return msgspec.json.encode({"id": "e", "type": "t", "data": "x" * size})


def test_an_event_that_is_too_large_is_truncated_with_a_note() -> None:
    event = large(400_000)
    entry = put(given_up(event=event))
    found = detail(entry)
    assert entry.size == counted(entry) <= REQUEST_MAX_BYTES
    assert entry.size > REQUEST_MAX_BYTES - 1_000, "as much as there is room for"
    assert event.startswith(found["event_text"].encode())
    assert (found["event"], found["truncated"], found["size"]) == (None, True, len(event))
    assert found["sha256"] == hashlib.sha256(event).hexdigest()


def test_by_reference_nothing_of_a_large_event_is_included() -> None:
    event = large(400_000)
    entry = put(given_up(event=event), REFERENCE)
    found = detail(entry)
    assert entry.size < 2_000
    assert "event_text" not in found
    assert (found["truncated"], found["size"]) == (True, len(event))
    assert found["sha256"] == hashlib.sha256(event).hexdigest()
    assert detail(put(given_up(), REFERENCE))["event"] == json.loads(EVENT), "a small one is told whole"


@given(
    st.one_of(st.binary(max_size=40), st.text(max_size=40).map(lambda text: text.encode("utf-8", "ignore"))),
    st.sampled_from([1, 500, 9_000, 20_000]),
)
def test_no_entry_is_larger_than_a_request(some: bytes, times: int) -> None:
    """Whatever is in it: quotes and control characters take up to six bytes each in JSON."""
    attempt_log = tuple(FailedAttempt(attempt, AT_MS, "\x01" * REASON_MAX) for attempt in range(TRIED_MAX))
    entry = put(given_up(event=some * times, reason="\x00\ud800" * 5_000, attempts=99, attempt_log=attempt_log))
    assert entry.size == counted(entry) <= REQUEST_MAX_BYTES
    detail(entry)


@given(st.lists(st.integers(1, REQUEST_MAX_BYTES), max_size=40))
def test_requests_keep_the_limits_and_lose_no_entry(sizes: list[int]) -> None:
    entries = [BusEntry(str(at), {}, size) for at, size in enumerate(sizes)]
    groups = list(requests(entries))
    assert [entry for group in groups for entry in group] == entries
    for group in groups:
        assert 0 < len(group) <= ENTRIES_MAX
        assert sum(entry.size for entry in group) <= REQUEST_MAX_BYTES
    for group, following in pairwise(groups):
        size = sum(entry.size for entry in group)
        assert len(group) == ENTRIES_MAX or size + following[0].size > REQUEST_MAX_BYTES, "as few requests as possible"
