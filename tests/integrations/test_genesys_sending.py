"""The Data Action that has a message sent, against a live service: once, however often the flow asks for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from tests.integrations.data_action import FOLDER, Failed, action_of, executed
from tests.service.api.desk import Desk, desk_on
from tests.service.api.live import ASKER, SENDER

from semel.service.api.notification_shapes import NotificationAdded
from semel.values.delivery_state import STATES, Accepted

ACTION = action_of("message-this-customer-once")
LOOK_UP = action_of("did-we-message-this-customer")
README = (FOLDER / "README.md").read_text("utf-8")
CONVERSATION = "7d1a7a3e-58a4-4f5d-9d2b-0c6f1c9e4a11"
MESSAGE = {
    "key": CONVERSATION,
    "kind": "shipping",
    "recipient": "+4917000000009",
    "channel": "sms",
    "body": "Your parcel is on its way.",
}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_on(tmp_path) as desk:
        yield desk


def send(desk: Desk, action: dict[str, Any] = ACTION, token: str = SENDER, **more: str) -> dict[str, Any]:
    return executed(action, desk.client.port, token, {**MESSAGE, **more})


def kept(desk: Desk) -> list[dict[str, Any]]:
    listed = desk.listed()
    assert listed.status == 200
    items: list[dict[str, Any]] = listed.json()["items"]
    return items


def test_a_flow_that_tries_again_has_one_message_sent(desk: Desk) -> None:
    first, second = send(desk), send(desk)
    assert (first["status"], first["state"]) == ("added", "pending")
    assert (second["status"], second["state"], second["id"]) == ("known", "pending", first["id"])
    assert desk.relay(Accepted("SM1")) == [first["id"]]
    assert (send(desk)["status"], send(desk)["state"]) == ("known", "accepted")
    assert desk.relay(Accepted("SM2")) == [], "nothing more is to be sent"


def test_what_was_sent_is_what_the_look_up_is_asked_about(desk: Desk) -> None:
    asked = {name: MESSAGE[name] for name in ("recipient", "kind")}
    assert executed(LOOK_UP, desk.client.port, ASKER, asked)["may_send"] is True
    send(desk)
    assert executed(LOOK_UP, desk.client.port, ASKER, asked)["status"] == "pending"


def test_another_text_under_the_same_key_fails_and_the_first_one_stays(desk: Desk) -> None:
    first = send(desk)
    with pytest.raises(Failed) as failure:
        send(desk, body="Something else.")
    assert failure.value.status == 422
    assert desk.show(first["id"])["state"] == "pending"
    assert len(kept(desk)) == 1


def with_a_guard() -> dict[str, Any]:
    """As the README says that it is added."""
    (guard,) = re.findall(r'`, ("guard": \{[^`]*\})`', README)
    action = deepcopy(ACTION)
    request = action["config"]["request"]
    request["requestTemplate"] = f"{request['requestTemplate'].removesuffix('}')}, {guard}}}"
    return action


def test_behind_a_guard_the_second_message_is_suppressed_and_says_so(desk: Desk) -> None:
    guarded = with_a_guard()
    send(desk, guarded)
    desk.relay(Accepted("SM1"))
    assert send(desk, guarded, key="another-conversation")["status"] == "added"
    desk.relay(Accepted("SM2"))
    told = send(desk, guarded, key="another-conversation")
    assert (told["status"], told["state"]) == ("known", "suppressed")


TEXTS = ['Say "hello"', "back\\slash\nand a line", "größe 漢字 \U0001f4de", "a} , {b", "$5 & 50%"]


@pytest.mark.parametrize("body", TEXTS)
def test_texts_survive_the_template(desk: Desk, body: str) -> None:
    id = send(desk, body=body)["id"]
    shown = desk.client.ask("GET", f"/v1/notifications/{id}?reveal=true").json()
    assert shown["revealed"]["body"] == body


def test_what_a_customer_says_cannot_become_another_field(desk: Desk) -> None:
    id = send(desk, body='x", "recipient": "+4917099999999')["id"]
    assert desk.client.ask("GET", f"/v1/notifications/{id}?reveal=true").json()["recipient"] == MESSAGE["recipient"]


@pytest.mark.parametrize("name", MESSAGE)
def test_an_input_that_is_not_set_is_refused_by_the_contract(name: str) -> None:
    schema = ACTION["contract"]["input"]["inputSchema"]
    assert not jsonschema_rs.is_valid(schema, {key: value for key, value in MESSAGE.items() if key != name})


@pytest.mark.parametrize(("token", "status"), [("wrong", 401), (ASKER, 403)])
def test_a_token_that_may_not_send_fails_and_nothing_is_kept(desk: Desk, token: str, status: int) -> None:
    with pytest.raises(Failed) as failure:
        send(desk, token=token)
    assert failure.value.status == status
    assert kept(desk) == []


def test_nothing_in_the_request_changes_from_one_attempt_to_the_next() -> None:
    """A key that is made up for each attempt would be a second message for the same fact."""
    request = ACTION["config"]["request"]
    whole = json.dumps(request)
    assert set(re.findall(r"\$\{([a-z.]+)\}", whole)) == {*(f"input.{name}" for name in MESSAGE), "credentials.token"}
    assert set(re.findall(r"\$(\w+)\.(\w+)", whole)) == {("esc", "jsonString")}


def test_the_answer_is_that_of_the_service_and_the_page_tells_its_states() -> None:
    assert set(ACTION["contract"]["output"]["successSchema"]["properties"]) == set(NotificationAdded.__struct_fields__)
    table = README.partition("| output | `status` | `state` |")[2].partition("\n\n")[0]
    assert set(STATES) <= set(re.findall(r"`([a-z]+)`", table))
