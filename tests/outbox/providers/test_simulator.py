"""The simulator applies planned lies and callbacks, and records them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from uuid import uuid4

import pytest
from tests.outbox.callbacks.hearing_process import VERIFY
from tests.outbox.providers.kits import KITS, text

from semel.ports import Provider
from semel.providers.callbacks import CALLBACKS
from semel.testing.provider_laws import Ear, Opening, ProviderKit, dispatch_of
from semel.testing.simulator import SimulatorProcess
from semel.testing.simulator.callbacks import SIGNERS, Mode
from semel.values.delivery_state import Accepted, Answer, Refused
from semel.values.notification import Notification
from semel.verifiers import verifier

DEADLINE_S = 60.0


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    try:
        yield ear
    finally:
        ear.close()


def send(simulator: SimulatorProcess, kind: str, said: Notification, times: int = 1) -> list[Answer]:
    return sent_by(KITS[kind](simulator), said, times)


def sent_by(kit: ProviderKit, said: Notification, times: int = 1) -> list[Answer]:
    async def story() -> list[Answer]:
        provider: Provider = kit.open(Opening(kit.simulator.url(kit.dialect)))
        try:
            dispatch = dispatch_of(said)
            return [await provider.send(dispatch, provider.prepare(dispatch)) for _ in range(times)]
        finally:
            await provider.close()

    return asyncio.run(story())


def called(simulator: SimulatorProcess, reference: str, count: int) -> list[str]:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        words = [one.word for one in simulator.called() if one.reference == reference and one.status == 200]
        if len(words) >= count or time.monotonic() > deadline:
            return words
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("once", ["accepted", "delivered"]),
        ("twice", ["accepted", "accepted", "delivered", "delivered"]),
        ("late", ["accepted", "delivered"]),
        ("out of order", ["delivered", "accepted"]),
    ],
)
def test_callbacks_follow_their_plan(simulator: SimulatorProcess, ear: Ear, mode: Mode, words: list[str]) -> None:
    simulator.tell_the_truth()
    simulator.callbacks("vonage", mode, ear.url, late_s=0.1)
    (answer,) = send(simulator, "vonage", text(uuid4().hex))
    assert isinstance(answer, Accepted)
    assert called(simulator, answer.reference, len(words)) == words
    assert len(ear.heard) == len(words)


def test_every_provider_with_callbacks_signs_them_except_ses() -> None:
    assert set(SIGNERS) == set(CALLBACKS) - {"ses"}


@pytest.mark.parametrize("kind", SIGNERS)
def test_signatures_pass_the_verifier_of_the_provider(simulator: SimulatorProcess, ear: Ear, kind: str) -> None:
    kit = KITS["http-header" if kind == "http" else kind](simulator)
    simulator.tell_the_truth()
    simulator.callbacks(kit.dialect, "once", f"{ear.url}?id=1#rc=5&rp=5xx")
    (answer,) = sent_by(kit, kit.say(uuid4().hex))
    assert isinstance(answer, Accepted)
    url: dict[str, Any] = {"url": ear.url} if kind == "twilio" else {}
    ours = verifier(CALLBACKS[kind].scheme, **VERIFY[kind], **url)
    both = ear.wait_for(2)
    assert len(both) == 2
    for heard in both:
        headers = {name.encode(): value.encode() for name, value in heard.headers.items()}
        headers[b":query"] = heard.query.encode()
        assert asyncio.run(ours.verify(headers, heard.body))
        forged = heard.body.replace(b"deliver", b"DELIVER") + b"&x=1"
        assert not asyncio.run(ours.verify(headers, forged)) or kind == "brevo", "which proves itself, and no body"


def test_there_are_no_callbacks_without_a_plan(simulator: SimulatorProcess, ear: Ear) -> None:
    simulator.tell_the_truth()
    simulator.callbacks("vonage", "never", ear.url)
    (quiet,) = send(simulator, "vonage", text(uuid4().hex))
    simulator.callbacks("vonage", "once", ear.url)
    (told,) = send(simulator, "vonage", text(uuid4().hex))
    assert isinstance(quiet, Accepted)
    assert isinstance(told, Accepted)
    called(simulator, told.reference, 2)
    assert len(ear.heard) == 2, "those of the second one"


def test_a_callback_without_a_receiver_is_recorded(simulator: SimulatorProcess) -> None:
    simulator.tell_the_truth()
    simulator.callbacks("vonage", "once", "http://127.0.0.1:1/callbacks")
    (answer,) = send(simulator, "vonage", text(uuid4().hex))
    assert isinstance(answer, Accepted)
    deadline = time.monotonic() + DEADLINE_S
    while not (mine := [one for one in simulator.called() if one.reference == answer.reference]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert mine[0].status == 0


def test_keys_are_remembered_for_their_window(simulator: SimulatorProcess) -> None:
    simulator.tell_the_truth()
    try:
        simulator.remember_keys_for(0.0)
        said = text(uuid4().hex)
        send(simulator, "telnyx", said, times=2)
        assert len([one for one in simulator.phone() if one.to == said.recipient]) == 2
        simulator.remember_keys_for(3600.0)
        said = text(uuid4().hex)
        send(simulator, "telnyx", said, times=2)
        assert len([one for one in simulator.phone() if one.to == said.recipient]) == 1
    finally:
        simulator.remember_keys_for(86_400.0)


def test_a_key_with_another_body_is_refused(simulator: SimulatorProcess) -> None:
    simulator.tell_the_truth()
    name = uuid4().hex
    (first,) = send(simulator, "telnyx", text(name))
    (second,) = send(simulator, "telnyx", text(name, body="something else"))
    assert isinstance(first, Accepted)
    assert isinstance(second, Refused)
    assert second.reason.startswith("422")


def test_a_limit_counts_requests(simulator: SimulatorProcess) -> None:
    simulator.tell_the_truth()
    simulator.allow("telnyx", 2, reset_s=9.0)
    answers = send(simulator, "telnyx", text(uuid4().hex), times=3)
    simulator.tell_the_truth()
    assert [type(answer) for answer in answers] == [Accepted, Accepted, Refused]
    assert isinstance(answers[2], Refused)
    assert (answers[2].limited, answers[2].after_s) == (True, 9.0)


def test_an_invalid_command_is_refused(simulator: SimulatorProcess) -> None:
    with pytest.raises(HTTPError, match="400") as refused:
        simulator.lie("no such lie", "twilio")
    refused.value.close()
    with pytest.raises(HTTPError, match="400") as refused:
        simulator.callbacks("twilio", "sometimes")  # type: ignore[arg-type]
    refused.value.close()
    with pytest.raises(HTTPError, match="400") as refused:
        simulator.callbacks("sms", "once")  # a name of the settings: the simulator does not know it
    told = refused.value.read().decode()
    assert ("'sms'" in told, "brevo" in told) == (True, True)
    refused.value.close()
    simulator.tell_the_truth()
