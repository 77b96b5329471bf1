"""Listing: by filters, the newest first, page by page, with nothing lost and nothing told twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.api.desk import PHONE, Desk, desk_on

from semel.service.api import notifications as listing
from semel.testing.harness import FakeClock
from semel.values.delivery_state import Accepted, Refused, Unknown
from semel.values.notification import Notification
from semel.values.redaction import Hider


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
        assert reply["next"] != more.get("after"), "it stands still"
        more = {"after": reply["next"]}


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


def test_no_page_is_longer_than_its_limit_though_all_were_added_in_one_millisecond(
    desk: Desk, clock: FakeClock
) -> None:
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
        assert [key[0] for key in flat] == sorted((key[0] for key in flat), reverse=True), limit
        assert all(len(page) == limit for page in found[:-1]), limit


def test_a_page_ends_where_its_contents_are_large(desk: Desk) -> None:
    for n in range(30):
        desk.send(f"k{n}", channel="event", recipient="r", body={"text": "x" * 200_000})
    found = pages(desk, limit=1000)
    assert sorted(key for page in found for key in page) == sorted(f"k{n}" for n in range(30))
    most = 1 + listing.PAGE_MAX_BYTES // 200_000
    assert len(found) > 2
    assert all(1 <= len(page) <= most for page in found[:-1])


def test_pages_are_masked_off_the_event_loop(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masking a large content takes milliseconds: other requests must not wait for it."""
    on_the_loop: list[bool] = []
    hidden = Hider.hidden

    def watched(hider: Hider, text: str) -> str:
        on_the_loop.append(asyncio._get_running_loop() is not None)
        return hidden(hider, text)

    monkeypatch.setattr(Hider, "hidden", watched)
    id = desk.send("a")
    desk.relay(Refused("no such customer", final=True))
    assert listed(desk) == ["a"]
    assert desk.show(id)["state"] == "failed"
    assert desk.told(key="a").status == 200
    assert len(on_the_loop) >= 3
    assert not any(on_the_loop)


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=1001", "limit=-1", "limit=x", "limit=1.0", "limit=" + "9" * 5000, "limit=%D9%A1"),
        *(
            "state=gone",
            "since=yesterday",
            "since=2026-01-01",
            "since=2026-01-01T00:00:00",
            "until=1",
            "until=2026-01-01T00:00:00Z~1",
            "until=~" + "0" * 32,
        ),
        *("reveal=yes", "possible_duplicates=1", "order=asc", "tenant=acme", "recipient=", "kind=a%0Ab"),
        "since=2026-01-01T00:00:00+01:00",
    ],
)
def test_a_filter_that_is_not_understood_is_refused(refusing: Desk, query: str) -> None:
    reply = refusing.client.ask("GET", f"/v1/notifications?{query}")
    assert reply.status == 400, reply.body
    assert reply.json()["detail"].startswith(query.partition("=")[0])
