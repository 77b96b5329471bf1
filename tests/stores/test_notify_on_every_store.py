"""`semel notify` on every kind of store: the same answers where there is an outbox, clear words where there is none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cli.notify.outboxes import EVIL, NUMBER, REASON, add, carry, document, fill, in_box, notification, state
from tests.stores.commands import migrated, semel
from tests.support.servers.process import free_port

from semel.cli.find import OUTBOX_SCHEMES
from semel.values.delivery_state import STATES, Unknown
from semel.values.outbox import NotificationQuery
from semel.wiring import SCHEMES, open_ledger


@pytest.fixture(params=["sqlite", "postgres"])
def outbox(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store that holds an outbox."""
    url = str(request.getfixturevalue("database")) if request.param == "postgres" else f"sqlite:///{tmp_path}/semel.db"
    migrated(url)
    in_box(url, lambda box: box.find(NotificationQuery()))  # a file is made by its first use
    return url


@pytest.mark.parametrize("kind", ["memory", "redis", "dynamodb"])
def test_a_store_without_an_outbox_says_so_and_names_those_with_one(kind: str, request: pytest.FixtureRequest) -> None:
    match kind:
        case "redis":
            store = str(request.getfixturevalue("redis_url"))
        case "dynamodb":
            store = request.getfixturevalue("dynamodb").url("semel")
        case _:
            store = "memory://"
    for command in (("list",), ("show", "abcd"), ("status", "--key", "a"), ("cancel", "--all", *REASON)):
        ended = semel("notify", *command, "--ledger", store)
        assert (ended.code, ended.out) == (2, "")
        assert [word for word in ("outbox", "sqlite:///", "postgresql://") if word not in ended.err] == []


def test_an_operator_s_whole_day(outbox: str) -> None:
    url = outbox
    sent = ("send", "--key", "o-1", "--kind", "shipping", "--to", NUMBER, "--channel", "sms", "--body", "x")
    assert [document(url, *sent)["status"] for _ in range(2)] == ["added", "known"]
    assert semel("notify", *sent, "--body", "y", "--ledger", url).code == 1
    assert document(url, "cancel", "--key", "o-1", *REASON, "--yes")["decided"] == 1
    ids = fill(url)
    found = document(url, "list")
    assert {one["state"] for one in found} == set(STATES)
    assert {one["id"] for one in found} >= set(ids.values())
    assert document(url, "show", ids["failed"][:12], "--reveal")["reason"] == EVIL
    assert document(url, "status", "--key", "suppressed")["status"] == "suppressed"
    assert semel("notify", "resolve", ids["uncertain"][:12], "--sent", *REASON, "--ledger", url).code == 0
    assert state(url, ids["uncertain"]) == "accepted"
    again = document(url, "resend", ids["uncertain"], *REASON, "--yes")
    assert (again["status"], again["generation"]) == ("added", 2)
    report = document(url, "erase", "--to", NUMBER, *REASON, "--yes")
    assert report["erased"] == len(found) - 2 + 1, "all but another's and a tenant's, and the second generation"


def test_many_are_decided_page_after_page(outbox: str) -> None:
    url = outbox
    doubtful = carry(url, notification("doubt"), Unknown("reset"))
    ids = add(url, *(notification(f"n-{number}") for number in range(600)))
    report = document(url, "cancel", "--all", *REASON, "--yes")
    assert (report["decided"], report["failed"], report["refused"], report["not_tried"]) == (600, 0, 0, 0)
    cancelled = [one["id"] for one in document(url, "list", "--state", "cancelled", "--limit", "100000")]
    assert sorted(cancelled) == sorted(ids)
    assert document(url, "resolve", doubtful[:8], "--give-up", *REASON)["decided"] == 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_ledgers_that_are_said_to_hold_an_outbox_do(scheme: str, tmp_path: Path) -> None:
    async def holds() -> bool:
        ledger = open_ledger(scheme.replace("file.db", f"{tmp_path}/file.db"))
        try:
            return hasattr(ledger, "outbox")
        finally:
            await ledger.close()

    assert asyncio.run(holds()) == scheme.startswith(OUTBOX_SCHEMES)


def test_an_outbox_that_is_out_of_reach_is_told_without_its_password() -> None:
    for command in (("list",), ("show", "abcd"), ("status", "--key", "a"), ("cancel", "--all", *REASON)):
        ended = semel("notify", *command, "--ledger", f"postgresql://anna:test-password@127.0.0.1:{free_port()}/x")
        assert (ended.code, ended.out) == (2, "")
        assert "postgresql://anna:…@127.0.0.1" in ended.err


def test_a_database_that_is_not_ready_says_what_to_run(database: str) -> None:
    ended = semel("notify", "list", "--ledger", database)
    assert (ended.code, "semel migrate" in ended.err) == (2, True)
