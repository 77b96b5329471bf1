"""Did this customer get the message? Five answers, and never a wrong "never"."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace
from tests.service.api.desk import PHONE, Desk, desk_on

from semel.values.delivery_state import Accepted, Refused, Unknown
from semel.values.outbox import Lane, Record


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_on(tmp_path) as desk:
        yield desk


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Where nothing is ever kept."""
    with desk_on(tmp_path_factory.mktemp("refusing")) as desk:
        yield desk


def answer(desk: Desk, **query: str) -> dict[str, Any]:
    reply = desk.told(**query)
    assert reply.status == 200, reply.body
    told: dict[str, Any] = reply.json()
    assert all(isinstance(value, (str, bool, int)) for value in told.values()), "scalars only"
    return told


def test_each_of_the_answers(desk: Desk) -> None:
    told = answer(desk, recipient=PHONE, kind="shipping")
    assert told == {
        "status": "never",
        "may_send": True,
        **dict.fromkeys(("id", "state", "at", "provider", "reference", "evidence", "note"), ""),
        "unsent": 0,
    }
    id = desk.send(guard={"window_s": 3600.0})
    assert answer(desk, recipient=PHONE, kind="shipping")["status"] == "pending"
    desk.relay(Unknown("no answer within 15 s"))
    told = answer(desk, recipient=PHONE, kind="shipping")
    assert (told["status"], told["state"], told["evidence"]) == ("unknown", "uncertain", "no answer within 15 s")
    desk.decide(id, "resolve", resolution="sent")
    told = answer(desk, recipient=PHONE, kind="shipping")
    assert (told["status"], told["id"], told["may_send"]) == ("sent", id, False)
    assert told["at"].endswith("Z")
    desk.send("order-2", guard={"window_s": 3600.0})
    desk.relay(Accepted())
    assert answer(desk, key="order-2")["status"] == "suppressed"
    assert answer(desk, recipient=PHONE, kind="shipping")["status"] == "sent"  # what was sent says more


def test_a_failed_message_is_not_called_never(desk: Desk) -> None:
    id = desk.send(recipient="joe", channel="message")
    asyncio.run(fail(desk, id))
    told = answer(desk, recipient="joe")
    assert (told["status"], told["may_send"], told["unsent"], told["id"]) == ("not_sent", True, 1, id)
    assert (told["state"], told["evidence"]) == ("failed", "no such user")
    assert "spelling" in told["note"]


async def fail(desk: Desk, id: str) -> None:
    outbox = desk.ledger.outbox
    (taken,) = await outbox.take({"@message": Lane(1)}, 60_000)
    after = replace(taken.delivery_state, state="failed", reason="no such user")
    assert await outbox.record([Record(taken, after, "refused", "no such user")]) == [True]


@pytest.mark.parametrize("recipient", ["+49 170 12345678", "0049-170-12345678", "tel:+4917012345678"])
def test_a_number_is_found_in_every_spelling(desk: Desk, recipient: str) -> None:
    desk.send()
    told = answer(desk, recipient=recipient, kind="shipping")
    assert (told["status"], told["note"]) == ("pending", "")


def test_the_status_of_a_number_without_its_country_notes_that_it_was_not_matched(desk: Desk) -> None:
    desk.send()
    told = answer(desk, recipient="0170 12345678")
    assert told["status"] == "never"
    assert "country" in told["note"]


@pytest.mark.parametrize("told", ["pending", "unknown", "sent"])
def test_only_never_may_be_sent(desk: Desk, told: str) -> None:
    desk.send()
    if told != "pending":
        desk.relay(Unknown("?") if told == "unknown" else Accepted("SM1"))
    for query in ({"recipient": PHONE}, {"recipient": PHONE, "kind": "shipping"}, {"key": "order-1"}):
        found = answer(desk, **query)
        assert (found["status"], found["may_send"]) == (told, False), query
    for query in ({"recipient": PHONE, "kind": "other"}, {"recipient": "+49"}, {"key": "order-2"}):
        assert answer(desk, **query)["may_send"], query


def test_a_permanently_refused_notification_is_not_sent(desk: Desk) -> None:
    desk.send()
    desk.relay(Refused("no such number", final=True))
    assert answer(desk, key="order-1")["may_send"]


def test_customer_data_in_provider_texts_is_masked(desk: Desk) -> None:
    code = "Your secret code is 998877"
    id = desk.send(body=code)
    desk.relay(Unknown(f'500: {{"to": "{PHONE}", "text": "{code}"}}'))
    asked = [desk.told(key="order-1"), desk.told(recipient=PHONE), desk.listed()]
    desk.decide(id, "resolve", resolution="sent", reason=f"{PHONE} has confirmed it")
    desk.send("order-2", body=code)
    desk.relay(Accepted(f"ref-{PHONE[1:]}", f"202 to {PHONE}"))
    asked += [
        desk.told(key="order-1"),
        desk.told(key="order-2"),
        desk.listed(),
        desk.client.ask("GET", f"/v1/notifications/{id}"),
    ]
    for reply in asked:
        assert reply.status == 200
        assert "998877" not in reply.body.decode()
        assert PHONE[1:] not in reply.body.decode()
    assert answer(desk, key="order-2")["reference"] == "ref-+49…5678"
    assert "998877" in desk.client.ask("GET", f"/v1/notifications/{id}?reveal=true").body.decode()


def test_a_bare_plus_is_refused_and_not_answered_with_never(desk: Desk) -> None:
    """It would be read as a space, and nobody ever wrote to ` 4917012345678` or to `m tag@example.com`."""
    desk.send()
    desk.send(recipient="m+tag@example.com")
    assert desk.client.ask("GET", "/v1/notifications/status?recipient=m+tag@example.com").status == 400
    assert answer(desk, recipient="m+tag@example.com")["status"] == "pending"
    for path in ("status?kind=shipping&", "?"):
        reply = desk.client.ask("GET", f"/v1/notifications/{path}recipient={PHONE}".replace("/?", "?"))
        assert reply.status == 400
        assert "%2B" in reply.json()["detail"]
        assert reply.json()["detail"].startswith("recipient: ")
    assert answer(desk, recipient=PHONE)["status"] == "pending"


@pytest.mark.parametrize(
    "query",
    [
        "",
        "kind=shipping",
        "recipient=",
        "recipient=%2B49&kind=",
        "recipient=%2B49&key=k",
        "key=k&kind=shipping",
        "recipient=%2B49&recipient=%2B50",
        "recipient=%2B49&kinds=shipping",
        "recipient=%2B49%20",
        "recipient=%2B49%0A",
        "recipient=%FF%FE",
        "recipient=%2B49&tenant=globex",
        "recipient=${input.recipient}",
        "recipient=%24%7Binput.recipient%7D",
        "recipient=%252B4917012345678",
        "recipient=%20%2B49",
        "recipient=50%",
        "recipient=%zz",
        "recipient=%2B49;kind=shipping",
        "recipient=%EF%BF%BD",
        "recipient=%2B49&kind=a+b",
        "recipient=m%2540example.com",
        "recipient=" + "1" * 301,
        "&".join(f"a{n}=1" for n in range(30)),
    ],
)
def test_a_question_that_is_not_whole_is_refused(refusing: Desk, query: str) -> None:
    reply = refusing.client.ask("GET", f"/v1/notifications/status?{query}")
    assert reply.status == 400, reply.body
    assert "may_send" not in reply.json()


def test_characters_of_every_language_are_found(desk: Desk) -> None:
    desk.send(recipient="größe@例え.jp", kind="Erinnerung für 50 % & mehr")
    told = answer(desk, recipient="größe@例え.jp", kind="Erinnerung für 50 % & mehr")
    assert told["status"] == "pending"


def test_a_look_up_does_not_wait_for_writers(desk: Desk, tmp_path: Path) -> None:
    desk.send()
    other = apsw.Connection(str(tmp_path / "semel.db"))
    try:
        other.execute("begin immediate")
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(desk.ask, "order-2")  # whoever writes has to
            assert answer(desk, key="order-1")["status"] == "pending"
            assert not waits.done(), "inconclusive: the lock was not there"
            other.execute("rollback")
            assert waits.result().status == 201
    finally:
        other.close()
