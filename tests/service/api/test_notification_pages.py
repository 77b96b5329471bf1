"""Listing: by filters, the newest first, page by page, with nothing lost and nothing told twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.api.desk import PHONE, Desk, desk_on

from semel.service.api import listing
from semel.testing.harness import FakeClock
from semel.values.notification import Notification
from semel.values.sending import Accepted, Unknown


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def desk(tmp_path: Path, clock: FakeClock) -> Iterator[Desk]:
    with desk_on(tmp_path, clock=clock) as desk:
        yield desk


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Where nothing is ever kept."""
    with desk_on(tmp_path_factory.mktemp("refusing")) as desk:
        yield desk


def listed(desk: Desk, **query: str | int) -> list[str]:
    reply = desk.listed(**query)
    assert reply.status == 200, reply.body
    return [one["key"] for one in reply.json()["items"]]


def pages(desk: Desk, **query: str | int) -> list[list[str]]:
    found: list[list[str]] = []
    more: dict[str, Any] = {}
    while True:
        reply = desk.listed(**query, **more).json()
        found.append([one["key"] for one in reply["items"]])
        if reply["next"] is None:
            return found
        assert reply["next"] != more.get("until"), "it stands still"
        more = {"until": reply["next"]}


def test_each_filter_leaves_what_it_names(desk: Desk, clock: FakeClock) -> None:
    desk.send("a")
    desk.relay(Accepted())
    clock.now_ms += 1000
    desk.send("b", kind="reminder")
    desk.relay(Unknown("?"))
    clock.now_ms += 1000
    desk.send("c", recipient="m@example.com")
    assert listed(desk) == ["c", "b", "a"]
    assert listed(desk, state="accepted") == ["a"]
    assert listed(desk, state="uncertain") == ["b"]
    assert listed(desk, kind="reminder") == ["b"]
    assert listed(desk, key="c") == ["c"]
    assert listed(desk, recipient=PHONE) == ["b", "a"]
    assert listed(desk, recipient=PHONE, kind="reminder") == ["b"]
    assert listed(desk, possible_duplicates="true") == []
    assert listed(desk, provider="twilio") == []
    middle = desk.listed(key="b").json()["items"][0]["added"]
    assert listed(desk, since=middle) == ["c", "b"]
    assert listed(desk, until=middle) == ["a"]


def test_pages_go_on_where_the_last_one_ended(desk: Desk, clock: FakeClock) -> None:
    for n in range(7):
        desk.send(f"k{n}")
        clock.now_ms += 1
    assert pages(desk, limit=3) == [["k6", "k5", "k4"], ["k3", "k2", "k1"], ["k0"]]
    assert pages(desk, limit=7) == [[f"k{n}" for n in range(6, -1, -1)]]


def test_what_was_added_in_one_millisecond_is_not_parted(desk: Desk, clock: FakeClock) -> None:
    for moment, count in enumerate((2, 5, 1, 3)):
        many = [
            Notification(key=f"{moment}-{n}", kind="k", recipient="r", channel="sms", body="b", tenant="acme")
            for n in range(count)
        ]
        asyncio.run(desk.ledger.outbox.add(many))
        clock.now_ms += 1
    for limit in range(1, 13):
        found = pages(desk, limit=limit)
        flat = [key for page in found for key in page]
        assert len(flat) == len(set(flat)) == 11, limit
        for page in found[:-1]:
            assert page, limit


def test_more_of_one_millisecond_than_can_be_told_is_said(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "TOGETHER_MAX", 3)
    for n in range(4):
        desk.send(f"k{n}", kind=f"{n % 2}")
    reply = desk.listed(limit=2)
    assert reply.status == 409
    assert "filter" in reply.json()["detail"]
    assert sorted(key for page in pages(desk, limit=1, kind="0") for key in page) == ["k0", "k2"]


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=1001", "limit=-1", "limit=x", "limit=1.0", "limit=" + "9" * 5000, "limit=%D9%A1"),
        *("state=gone", "since=yesterday", "since=2026-01-01", "since=2026-01-01T00:00:00", "until=1"),
        *("reveal=yes", "possible_duplicates=1", "order=asc", "tenant=acme", "recipient=", "kind=a%0Ab"),
        "since=2026-01-01T00:00:00+01:00",
    ],
)
def test_a_filter_that_is_not_understood_is_refused(refusing: Desk, query: str) -> None:
    reply = refusing.client.ask("GET", f"/v1/notifications?{query}")
    assert reply.status == 400, reply.body
    assert reply.json()["detail"].startswith(query.partition("=")[0])
