"""A name of the settings gets another provider: messages that the former provider may have sent are not sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

import msgspec
import pytest
from msgspec.structs import replace
from tests.outbox.providers.kits import HERE, text

from semel.ports import Provider
from semel.providers.registry import provider
from semel.testing.simulator import SimulatorProcess, telnyx, twilio
from semel.values.delivery_state import Accepted, Answer, DeliveryState, Refused
from semel.values.outbox import Absent, Dispatch, LookedUp, Unclear
from semel.values.secret import Secret

NAME = "sms"
IN_DOUBT = DeliveryState(state="uncertain", crossed_ms=1_700_000_000_000, doubt_ms=1_700_000_000_000)


def by_telnyx(simulator: SimulatorProcess) -> Provider:
    api_key = Secret(telnyx.SECRET)
    return provider(
        "telnyx", NAME, {"api_key": api_key, "sender": "+490", "url": simulator.url("telnyx"), "allow": HERE}
    )


def by_twilio(simulator: SimulatorProcess, account: str = twilio.ACCOUNT) -> Provider:
    token = Secret(twilio.SECRET)
    url = simulator.url("twilio")
    return provider("twilio", NAME, {"account": account, "token": token, "sender": "+490", "url": url, "allow": HERE})


def by_mail(simulator: SimulatorProcess) -> Provider:
    return provider("smtp", NAME, {"host": "127.0.0.1", "port": 1, "tls": "off", "sender": "a@example.test"})


def by_another_account(simulator: SimulatorProcess) -> Provider:
    return by_twilio(simulator, "AC" + "9" * 32)


def dispatched(before: Provider) -> Dispatch:
    said = text(uuid4().hex, body="Hello")
    fresh = Dispatch(said.id, 1, said, said.content, DeliveryState(), 1_700_000_000_000)
    return replace(fresh, request=before.prepare(fresh))


Make = Callable[[SimulatorProcess], Provider]
CHANGES: list[tuple[Make, Make]] = [
    (by_telnyx, by_twilio),
    (by_twilio, by_telnyx),
    (by_another_account, by_twilio),
]


def sent(simulator: SimulatorProcess, made: Provider, dispatch: Dispatch) -> Answer:
    simulator.tell_the_truth()

    async def story() -> Answer:
        assert dispatch.request is not None
        try:
            return await made.send(dispatch, dispatch.request)
        finally:
            await made.close()

    return asyncio.run(story())


@pytest.mark.parametrize(("first", "second"), CHANGES)
def test_a_message_that_a_former_provider_may_have_sent_is_not_sent_again(
    simulator: SimulatorProcess, first: Make, second: Make
) -> None:
    dispatch = replace(dispatched(first(simulator)), delivery_state=IN_DOUBT)
    answer = sent(simulator, second(simulator), dispatch)
    assert isinstance(answer, Refused)
    assert "provider" in answer.reason
    assert simulator.phone(dispatch.notification.recipient) == []


@pytest.mark.parametrize(("first", "second"), CHANGES)
def test_an_unsent_request_of_a_former_provider_is_rebuilt(
    simulator: SimulatorProcess, first: Make, second: Make
) -> None:
    dispatch = dispatched(first(simulator))
    assert isinstance(sent(simulator, second(simulator), dispatch), Accepted)
    (one,) = simulator.phone(dispatch.notification.recipient)
    assert one.text == "Hello"


def test_a_message_that_the_new_provider_cannot_send_fails_with_its_reason(simulator: SimulatorProcess) -> None:
    answer = sent(simulator, by_mail(simulator), dispatched(by_telnyx(simulator)))
    assert isinstance(answer, Refused)
    assert (answer.final, "smtp" in answer.reason, "address" in answer.reason) == (True, True, True)


def test_the_list_of_a_new_provider_proves_nothing_about_a_former_one(simulator: SimulatorProcess) -> None:
    """Else it would be "proven absent", and be sent once more, or be called failed."""

    def looked_up(first: Provider) -> LookedUp:
        dispatch = replace(dispatched(first), delivery_state=IN_DOUBT)

        async def story() -> LookedUp:
            made = by_twilio(simulator)
            try:
                return await made.look_up(dispatch)
            finally:
                await made.close()

        return asyncio.run(story())

    assert isinstance(looked_up(by_telnyx(simulator)), Unclear)
    assert isinstance(looked_up(by_another_account(simulator)), Unclear)
    assert looked_up(by_twilio(simulator)) == Absent(), "its own are looked for"


def test_a_request_stored_by_an_older_version_is_sent_unchanged(simulator: SimulatorProcess) -> None:
    dispatch = dispatched(by_twilio(simulator))
    assert dispatch.request is not None
    kept = msgspec.json.decode(dispatch.request)
    assert kept.pop("whose") == f"twilio {simulator.url('twilio').split('/')[2]} {twilio.ACCOUNT}"
    older = replace(dispatch, request=msgspec.json.encode(kept), delivery_state=IN_DOUBT)
    assert isinstance(sent(simulator, by_twilio(simulator), older), Accepted)


def test_a_stored_request_cannot_change_the_host(simulator: SimulatorProcess) -> None:
    """Whoever can write rows by hand must not get the credentials for it."""
    dispatch = dispatched(by_twilio(simulator))
    forged = msgspec.json.encode({"path": "0@127.0.0.1:1/", "body": ""})
    doubtful = replace(dispatch, request=forged, delivery_state=IN_DOUBT)
    assert isinstance(sent(simulator, by_twilio(simulator), doubtful), Refused)
    assert isinstance(sent(simulator, by_twilio(simulator), replace(dispatch, request=forged)), Accepted)
