"""What a person decides: with a reason, once, and only what can be said now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.service.api.desk import CONTRACT, PHONE, Desk, desk_on

from semel.core.resend import resend
from semel.values.delivery_state import Accepted, Refused, Unknown
from semel.values.outbox import Added


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_on(tmp_path) as desk:
        yield desk


def uncertain(desk: Desk, **more: Any) -> str:
    id = desk.send(**more)
    assert desk.relay(Unknown("no answer")) == [id]
    return id


@pytest.mark.parametrize(
    ("resolution", "state"), [("sent", "accepted"), ("not_sent", "pending"), ("given_up", "failed")]
)
def test_an_uncertain_notification_can_be_resolved(desk: Desk, resolution: str, state: str) -> None:
    id = uncertain(desk)
    reply = desk.decide(id, "resolve", "the log of the provider", resolution=resolution)
    assert (reply.status, reply.json()) == (200, {"id": id, "state": state})
    shown = desk.show(id)
    assert shown["state"] == state
    (word,) = [one for one in shown["attempts"] if one["by"]]
    assert (word["by"], word["outcome"], word["evidence"]) == ("acme", resolution, "the log of the provider")


def test_a_doubt_tells_which_way_out_comes_next_and_when(desk: Desk) -> None:
    looks_up = replace(CONTRACT, looks_up=True, settle_s=3_600.0)
    id = desk.send(policy="presume_sent")
    assert desk.show(id)["next"]["exit"] == "send"
    desk.relay(Unknown("no answer"), looks_up)
    next = desk.show(id)["next"]
    assert (next["exit"], next["under_way"], next["policy"]) == ("look_up", False, "presume_sent")
    waits = [datetime.fromisoformat(next[at]) - datetime.now(UTC) for at in ("at", "policy_at")]
    assert timedelta(0) < waits[0] <= timedelta(hours=1) < waits[1] <= timedelta(days=1)
    nobody = {"exit": "person", "at": "", "under_way": False, "policy": "", "policy_at": ""}
    assert desk.show(uncertain(desk, key="b"))["next"] == nobody
    assert desk.decide(id, "resolve", resolution="sent").status == 200
    assert desk.show(id)["next"] is None


def test_a_decision_whose_answer_got_lost_can_be_sent_again(desk: Desk) -> None:
    id = uncertain(desk)
    replies = [desk.decide(id, "resolve", "I asked", resolution="not_sent") for _ in range(3)]
    assert [reply.status for reply in replies] == [200] * 3
    assert len([one for one in desk.show(id)["attempts"] if one["by"]]) == 1


def test_an_impossible_decision_is_refused_with_the_state(desk: Desk) -> None:
    id = desk.send()
    desk.relay(Accepted("SM1"))
    for verb, more in (("resolve", {"resolution": "not_sent"}), ("resolve", {"resolution": "sent"}), ("cancel", {})):
        reply = desk.decide(id, verb, **more)
        assert reply.status == 409
        assert reply.json()["state"] == "accepted"
        assert "accepted" in reply.json()["detail"]


def test_a_pending_notification_can_be_cancelled(desk: Desk) -> None:
    id = desk.send()
    assert desk.decide(id, "cancel").json() == {"id": id, "state": "cancelled"}
    assert desk.relay(Accepted()) == []


@pytest.mark.parametrize("reason", ["", " ", "\n\t", None])
def test_every_decision_needs_a_reason(desk: Desk, reason: Any) -> None:
    id = desk.send()
    bodies: list[tuple[str, dict[str, Any]]] = [
        (f"{id}/cancel", {}),
        (f"{id}/resend", {}),
        (f"{id}/resolve", {"resolution": "given_up"}),
        ("erase", {"recipient": PHONE}),
    ]
    for path, body in bodies:
        for sent in (body | {"reason": reason}, body):
            assert desk.client.ask("POST", f"/v1/notifications/{path}", sent).status == 400
    assert desk.show(id)["state"] == "pending"


# ---------------------------------------------------------------------------------------------------------- resend


def test_a_resend_is_a_new_generation_with_its_reason(desk: Desk) -> None:
    id = desk.send(guard={"window_s": 3600.0})
    desk.relay(Accepted("SM1"))
    reply = desk.decide(id, "resend", "the phone was lost")
    assert reply.status == 201
    again = reply.json()
    assert (again["status"], again["generation"], again["state"]) == ("added", 2, "pending")
    assert reply.headers["location"] == f"/v1/notifications/{again['id']}"
    assert again["id"] != id
    for one in (id, again["id"]):
        (word,) = [line for line in desk.show(one)["attempts"] if line["outcome"] == "resent"]
        assert all(part in word["evidence"] for part in ("acme", "the phone was lost", "2")), word
    assert desk.relay(Accepted("SM2")) == [again["id"]]
    assert desk.show(again["id"])["state"] == "accepted"  # its guard, which knows the first one, was not asked
    assert desk.show(id)["state"] == "accepted"


def test_a_resend_that_is_sent_again_makes_no_third_generation(desk: Desk) -> None:
    id = desk.send()
    desk.relay(Accepted())
    first = desk.decide(id, "resend").json()
    for _ in range(2):
        reply = desk.decide(id, "resend", "again")
        assert (reply.status, reply.json()["id"], reply.json()["status"]) == (200, first["id"], "known")
        desk.relay(Accepted())
    assert len(desk.listed().json()["items"]) == 2
    third = desk.decide(first["id"], "resend").json()
    assert (third["status"], third["generation"]) == ("added", 3)


def test_a_repetition_that_is_repeated_keeps_both_reasons(desk: Desk) -> None:
    """Why it was made, and why it was made again: the second is durable before the third message is."""
    id = desk.send()
    desk.relay(Accepted())
    second = desk.decide(id, "resend", "the first reason").json()["id"]
    desk.relay(Accepted())
    assert desk.decide(second, "resend", "the second reason").json()["generation"] == 3
    words = {one["outcome"]: one["evidence"] for one in desk.show(second)["attempts"]}
    assert all(part in words["resent"] for part in ("2", "acme", "the first reason")), words
    assert all(part in words["repeated"] for part in ("3", "acme", "the second reason")), words


def test_racing_resends_make_one_new_generation(desk: Desk) -> None:
    id = desk.send()
    desk.relay(Refused("no such number", final=True))
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: desk.decide(id, "resend", f"idea {n}"), range(8)))
    assert sorted(reply.status for reply in replies) == [200] * 7 + [201]
    assert len({reply.json()["id"] for reply in replies}) == 1
    assert len(desk.listed().json()["items"]) == 2


def test_nothing_is_sent_again_while_it_is_on_its_way_or_uncertain(desk: Desk) -> None:
    pending = desk.send("a")
    refused = desk.decide(pending, "resend")
    assert (refused.status, refused.json()["state"]) == (409, "pending")
    desk.relay(None)
    assert desk.show(pending)["state"] == "sending"
    assert desk.decide(pending, "resend").status == 409
    doubtful = uncertain(desk, key="b")
    reply = desk.decide(doubtful, "resend")
    assert reply.status == 409
    assert "resolve" in reply.json()["detail"]
    assert reply.json()["state"] == "uncertain"
    assert len(desk.listed().json()["items"]) == 2


def test_an_expired_or_erased_notification_is_not_sent_again(desk: Desk) -> None:
    soon = datetime.now(UTC) + timedelta(milliseconds=50)
    late = desk.send("a", not_after=soon.isoformat())
    gone = desk.send("b", recipient="+4915100000000")
    desk.decide(late, "cancel")
    desk.client.ask("POST", "/v1/notifications/erase", {"recipient": "+4915100000000", "reason": "asked for"})
    time.sleep(0.1)
    for id, cause in ((late, soon.isoformat(timespec="milliseconds")[:23]), (gone, "erased")):
        refused = desk.decide(id, "resend")
        assert refused.status == 409
        assert cause in refused.json()["detail"]
    assert len(desk.listed().json()["items"]) == 2


def test_a_crash_before_the_new_generation_leaves_its_reason_and_the_next_call_mends_it(desk: Desk) -> None:
    id = bytes.fromhex(desk.send())
    desk.relay(Accepted())
    outbox = desk.ledger.outbox

    class Dying:
        """A process that ends between the reason and the message."""

        show, apply_reports = staticmethod(outbox.show), staticmethod(outbox.apply_reports)

        async def add(self, _: Any) -> list[Added]:
            raise ConnectionAbortedError("died here")

    async def die() -> None:
        with pytest.raises(ConnectionAbortedError, match="died here"):
            await resend(Dying(), id, "the first reason", "ops")

    asyncio.run(die())
    assert len(desk.listed().json()["items"]) == 1
    reply = desk.decide(id.hex(), "resend", "the second reason")
    assert (reply.status, reply.json()["generation"]) == (201, 2)
    (kept,) = [line for line in desk.show(id.hex())["attempts"] if line["outcome"] == "resent"]
    assert "the first reason" in kept["evidence"]


def test_a_crash_behind_the_new_generation_leaves_one_message_and_its_reason(desk: Desk) -> None:
    id = bytes.fromhex(desk.send())
    desk.relay(Accepted())
    outbox = desk.ledger.outbox
    words = 0

    class Dying:
        """A process that ends between the message and its own note of the reason."""

        show, add = staticmethod(outbox.show), staticmethod(outbox.add)

        async def apply_reports(self, witnesses: Any) -> Any:
            nonlocal words
            words += 1
            if words == 2:
                raise ConnectionAbortedError("died here")
            return await outbox.apply_reports(witnesses)

    async def die() -> None:
        with pytest.raises(ConnectionAbortedError, match="died here"):
            await resend(Dying(), id, "the first reason", "ops")

    asyncio.run(die())
    reply = desk.decide(id.hex(), "resend", "the second reason")
    assert (reply.status, reply.json()["status"], reply.json()["generation"]) == (200, "known", 2)
    assert len(desk.listed().json()["items"]) == 2
    (kept,) = [line for line in desk.show(id.hex())["attempts"] if line["outcome"] == "resent"]
    assert "the first reason" in kept["evidence"]


# ----------------------------------------------------------------------------------------------------------- erase


def test_erased_notifications_keep_only_their_identity(desk: Desk) -> None:
    sent = desk.send("a")
    desk.relay(Accepted("SM1"))
    waits = desk.send("b")
    doubtful = desk.send("c", recipient=PHONE)
    body = {"recipient": PHONE, "reason": "article 17"}
    assert desk.client.ask("POST", "/v1/notifications/erase", body).json() == {"erased": 3, "left": 0}
    for id, state in ((sent, "accepted"), (waits, "cancelled"), (doubtful, "cancelled")):
        reply = desk.client.ask("GET", f"/v1/notifications/{id}?reveal=true")
        assert reply.json()["erased"]
        assert reply.json()["state"] == state
        assert PHONE.encode() not in reply.body
        assert b"On its way" not in reply.body
    assert desk.ask("a").json() == {"id": sent, "status": "known", "state": "accepted"}


def test_uncertain_notifications_are_left_and_reported(desk: Desk) -> None:
    uncertain(desk)
    body = {"recipient": PHONE, "reason": "article 17"}
    assert desk.client.ask("POST", "/v1/notifications/erase", body).json() == {"erased": 0, "left": 1}
