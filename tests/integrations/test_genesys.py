"""The Data Action that ships, against a live service: six answers, and a failure wherever nobody could tell."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import jsonschema_rs
import pytest
from tests.integrations import data_action
from tests.integrations.data_action import FOLDER, Failed, action_of, ask, request_of, result_of
from tests.service.api.desk import Desk, desk_on
from tests.service.api.live import ASKER, SENDER

from semel.service.api.notification_shapes import NotificationStatus
from semel.values.delivery_state import Accepted, Refused, Unknown

ACTION = action_of("did-we-message-this-customer")
GUARD = {"guard": {"window_s": 3600.0}}
NUMBERS = {  # one customer for each answer
    "never": "+4917000000001",
    "not_sent": "+4917000000006",
    "suppressed": "+4917000000002",
    "sent": "+4917000000003",
    "unknown": "+4917000000004",
    "pending": "+4917000000005",
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A service whose outbox has each of the six answers."""
    with desk_on(tmp_path_factory.mktemp("genesys")) as desk:
        desk.send("a", recipient=NUMBERS["sent"], **GUARD)
        desk.send("b", recipient=NUMBERS["suppressed"], kind="other", guard={"window_s": 3600.0, "key": "g"})
        desk.relay(Accepted("SM1"))
        desk.send("c", recipient=NUMBERS["suppressed"], guard={"window_s": 3600.0, "key": "g"})
        desk.send("d", recipient=NUMBERS["unknown"])
        desk.relay(Unknown("no answer within 15 s"))
        desk.send("f", recipient=NUMBERS["not_sent"])
        desk.relay(Refused("no such number", final=True))
        desk.send("e", recipient=NUMBERS["pending"])
        yield desk


def executed(desk: Desk, action: dict[str, Any] = ACTION, token: str = ASKER, **inputs: str) -> dict[str, Any]:
    return data_action.executed(action, desk.client.port, token, inputs)


@pytest.mark.parametrize("told", NUMBERS)
def test_each_answer_arrives_in_the_flow(desk: Desk, told: str) -> None:
    result = executed(desk, recipient=NUMBERS[told], kind="shipping")
    assert result["status"] == told
    assert result["may_send"] is (told in ("never", "not_sent"))
    assert bool(result["id"]) == (told != "never")


def test_the_six_answers_are_all_that_there_are(desk: Desk) -> None:
    described = NotificationStatus.__annotations__["status"]
    assert all(told in str(described) for told in NUMBERS)
    assert set(ACTION["contract"]["output"]["successSchema"]["properties"]) == set(NotificationStatus.__struct_fields__)


def test_the_answer_says_what_is_known(desk: Desk) -> None:
    result = executed(desk, recipient=NUMBERS["unknown"], kind="shipping")
    assert (result["state"], result["evidence"]) == ("uncertain", "no answer within 15 s")
    assert executed(desk, recipient=NUMBERS["sent"], kind="shipping")["reference"] == "SM1"


@pytest.mark.parametrize("recipient", ["größe+tag@例え.jp", "a&kind=x", "50%", 'say "hello"', "a#b?c/d", "back\\slash"])
def test_recipients_survive_the_url(desk: Desk, recipient: str) -> None:
    desk.send(f"to {recipient}", recipient=recipient, kind="a b&c")
    assert executed(desk, recipient=recipient, kind="a b&c")["status"] == "pending"


def without_escapes() -> dict[str, Any]:
    action = deepcopy(ACTION)
    request = action["config"]["request"]
    for name in ("recipient", "kind"):
        escaped = f'$esc.uriEncode("${{input.{name}}}")'
        assert escaped in request["requestUrlTemplate"]
        request["requestUrlTemplate"] = request["requestUrlTemplate"].replace(escaped, f"${{input.{name}}}")
    return action


def test_a_template_without_escapes_fails_and_does_not_say_never(desk: Desk) -> None:
    with pytest.raises(Failed) as failure:
        executed(desk, without_escapes(), recipient=NUMBERS["sent"], kind="shipping")
    assert failure.value.status == 400


def test_an_input_that_is_not_set_fails_and_does_not_say_never(desk: Desk) -> None:
    given: list[dict[str, str]] = [{"recipient": NUMBERS["sent"]}, {"kind": "shipping"}, {}]
    for inputs in given:
        assert not jsonschema_rs.is_valid(ACTION["contract"]["input"]["inputSchema"], inputs)
        with pytest.raises(Failed) as failure:
            ask(request_of(ACTION, inputs, {"token": ASKER}), "127.0.0.1", desk.client.port)
        assert failure.value.status == 400


@pytest.mark.parametrize(("token", "status"), [("wrong", 401), (SENDER, 403), ("", 401)])
def test_a_token_that_may_not_ask_fails(desk: Desk, token: str, status: int) -> None:
    with pytest.raises(Failed) as failure:
        executed(desk, token=token, recipient=NUMBERS["never"], kind="shipping")
    assert failure.value.status == status


def test_an_answer_without_a_word_is_unknown_and_not_to_be_sent() -> None:
    result = result_of(ACTION, b"{}")
    assert (result["status"], result["may_send"]) == ("unknown", False)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.json")))
def test_the_file_has_the_shape_that_can_be_imported(name: str) -> None:
    action = action_of(name)
    assert list(action) == ["name", "integrationType", "actionType", "config", "contract", "secure"]
    assert (action["integrationType"], action["actionType"], action["secure"]) == (
        "custom-rest-actions",
        "custom",
        False,
    )
    request, response = action["config"]["request"], action["config"]["response"]
    assert set(request) == {"requestUrlTemplate", "requestType", "headers", "requestTemplate"}
    assert set(response) == {"translationMap", "translationMapDefaults", "successTemplate"}
    assert set(response["translationMap"]) == set(response["translationMapDefaults"])
    for schema in (action["contract"]["input"]["inputSchema"], action["contract"]["output"]["successSchema"]):
        assert schema["type"] == "object"
        assert {one["type"] for one in schema["properties"].values()} <= {
            "string",
            "boolean",
            "integer",
        }  # flat scalars
        jsonschema_rs.meta.validate(schema)
