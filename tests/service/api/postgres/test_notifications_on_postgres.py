"""The API of notifications over PostgreSQL: what it asks of an outbox, this one answers as SQLite's does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.service.api.live import TOKENS, Client, Reply, serving

from semel.core.resend import outbox_of
from semel.ledgers.postgres import PostgresLedger
from semel.service.api import api

PHONE = "+4917012345678"
PATH = "/v1/notifications"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    ledger = PostgresLedger.from_url(url)
    with serving(api(ledger, TOKENS, catalog=ledger, outbox=outbox_of(ledger)), ledger.close) as client:
        yield client


def asked(client: Client, key: str, **more: Any) -> Reply:
    body = {"key": key, "kind": "shipping", "recipient": PHONE, "channel": "sms", "body": "On its way", **more}
    return client.ask("POST", PATH, body)


def decided(client: Client, id: str, verb: str, reason: str = "why") -> Reply:
    return client.ask("POST", f"{PATH}/{id}/{verb}", {"reason": reason})


def test_a_notification_is_added_known_and_a_conflict(client: Client) -> None:
    replies = [asked(client, "a"), asked(client, "a"), asked(client, "a", body="Something else")]
    assert [reply.status for reply in replies] == [201, 200, 422]
    assert len({reply.json()["id"] for reply in replies}) == 1
    told = client.ask("GET", f"{PATH}/status?{urlencode({'key': 'a'})}").json()
    assert (told["status"], told["may_send"]) == ("pending", False)


def test_racing_resends_make_one_new_generation_and_its_reason_is_kept(client: Client) -> None:
    id = asked(client, "b").json()["id"]
    assert decided(client, id, "resend").status == 409
    assert decided(client, id, "cancel").json()["state"] == "cancelled"
    assert decided(client, id, "cancel").status == 200  # its answer may have been lost
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda n: decided(client, id, "resend", f"idea {n}"), range(4)))
    assert sorted(reply.status for reply in replies) == [200] * 3 + [201]
    (again,) = {reply.json()["id"] for reply in replies}
    for one, state in ((id, "cancelled"), (again, "pending")):
        shown = client.ask("GET", f"{PATH}/{one}").json()
        assert shown["state"] == state
        (word,) = [line for line in shown["attempts"] if line["outcome"] == "resent"]
        assert all(part in word["evidence"] for part in ("2", "acme", "idea ")), word


def test_a_repetition_that_is_repeated_keeps_both_reasons(client: Client) -> None:
    id = asked(client, "twice").json()["id"]
    assert decided(client, id, "cancel").status == 200
    second = decided(client, id, "resend", "the first reason").json()["id"]
    assert decided(client, second, "cancel").status == 200
    assert decided(client, second, "resend", "the second reason").json()["generation"] == 3
    words = {one["outcome"]: one["evidence"] for one in client.ask("GET", f"{PATH}/{second}").json()["attempts"]}
    assert "the first reason" in words["resent"]
    assert all(part in words["repeated"] for part in ("3", "acme", "the second reason")), words


def test_pages_lose_nothing_and_what_is_erased_is_still_known(client: Client) -> None:
    keys = {f"page-{n}" for n in range(7)}
    for key in keys:
        assert asked(client, key, kind="paged", recipient="m@example.com").status == 201
    found: list[str] = []
    query: dict[str, Any] = {"kind": "paged", "limit": 2}
    while True:
        page = client.ask("GET", f"{PATH}?{urlencode(query)}").json()
        found += [one["key"] for one in page["items"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert sorted(found) == sorted(keys)
    erased = client.ask("POST", f"{PATH}/erase", {"recipient": "m@example.com", "reason": "article 17"})
    assert erased.json() == {"erased": 7, "left": 0}
    assert asked(client, "page-1", kind="paged", recipient="m@example.com").json()["status"] == "known"
