"""A callback that its provider did not sign, and one that is no callback, leave nothing behind."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.outbox.callbacks.hearing_process import NAMES, kind_of
from tests.outbox.callbacks.signing import Signed, signed
from tests.outbox.callbacks.stage import Stage, message

from semel.providers.callbacks import CALLBACKS
from semel.testing.simulator.callbacks import SigningInput
from semel.values.notification import Notification
from semel.values.outbox import NotificationView

FORM, JSON = "application/x-www-form-urlencoded", "application/json"
WITH_OUR_ID = [name for name in NAMES if name != "http-reference"]
TIMED = {"telnyx": 301, "resend": 301, "sendgrid": 86_400 + 301, "vonage": 86_400 + 301}  # how old is too old
NONSENSE = (
    b"",
    b"null",
    b"{}",
    b"[1]",
    b'"x"',
    b"7",
    b"\xff\xfe",
    b'{"event":"\xff"}',
    b'["\xff"]',
    b"<html>",
    b"[" * 100_000,
    b'{"a":' * 10_000,
    b'{"data":{"payload":[]}}',
    b'{"data":{"payload":{"to":7,"id":{}},"event_type":"message.sent"}}',
    b'{"event":{},"message-id":[],"tags":{}}',
    b'{"status":[],"client_ref":{}}',
    b'{"state":{"a":1},"about":[]}',
    b'{"eventType":7,"mail":"x"}',
    b'[{"event":7,"sg_message_id":{},"semel_id":[]}]',
    b'{"type":{},"data":{"tags":7}}',
    b"MessageStatus=&MessageSid=",
    b"&&&===;;;%zz",
    b"\x00" * 1_000,
)


@pytest.fixture
def held(stage: Stage) -> Iterator[Stage]:
    """The notary keeps what it signs."""
    stage.notary.passes_on = False
    yield stage
    stage.notary.passes_on = True


def caught(stage: Stage, name: str, key: str) -> tuple[Notification, Signed, NotificationView]:
    """A message that was accepted, and its callback, which has not been delivered yet."""
    one = message(name, key)
    stage.simulator.callbacks(kind_of(name), "out of order", f"{stage.notary.url}/{name}")
    stage.add(one)
    delivered, _ = stage.kept(one, 2)
    return one, delivered, stage.until(one, lambda shown: shown.state == "accepted")


def forged(name: str, true: Signed, inner: bytes) -> dict[str, Signed]:
    """`inner`: what was signed, which is inside of another body with SNS."""
    kind, old_s = true.headers["Content-Type"], time.time() - TIMED.get(name, 0)
    changed = true.body.replace(b"1", b"2")
    forgeries = {
        "no signature": true._replace(headers={"Content-Type": kind}, body=true.body.replace(b"Signature", b"Nothing")),
        "another secret": signed(name, kind, inner, true.query, SigningInput(time.time(), other=True)),
        "an empty body": true._replace(body=b""),
    }
    if name != "brevo":  # it does not sign, but shows a secret
        forgeries["a changed body"] = true._replace(body=changed)
    if name in TIMED:
        forgeries["an old one"] = signed(name, kind, inner, true.query, SigningInput(old_s))
        forgeries["one of tomorrow"] = signed(name, kind, inner, true.query, SigningInput(time.time() + 400))
    if name == "twilio":
        forgeries["a changed query"] = true._replace(query=f"id={'0' * 32}")
        forgeries["a longer query"] = true._replace(query=f"{true.query}&x=1")
        forgeries["no query"] = true._replace(query="")
    return forgeries


@pytest.mark.parametrize("name", WITH_OUR_ID)
def test_a_forged_callback_writes_nothing(held: Stage, name: str) -> None:
    one, true, before = caught(held, name, "forged")
    inner = true.body if name != "ses" else b'{"eventType":"Delivery"}'
    for what, callback in forged(name, true, inner).items():
        refused = held.notary.post(name, callback)
        expected = 400 if (name, what) == ("brevo", "an empty body") else 401
        assert refused.status == expected, what
        assert held.shown(one) == before, what
    assert held.notary.post(name, true).status == 200, "the genuine callback is accepted"
    assert held.shown(one).state == "delivered"


def test_a_signature_is_good_for_its_own_door_only(held: Stage) -> None:
    """Also where two of them share a secret: Twilio signs the address."""
    one, true, before = caught(held, "twilio", "another door")
    for name in NAMES:
        if name != "twilio":
            assert held.notary.post(name, true).status in (400, 401)
    assert held.shown(one) == before


@pytest.mark.parametrize("name", NAMES)
def test_nonsense_that_is_signed_is_refused_and_leaves_nothing(stage: Stage, name: str) -> None:
    one = message(name, "nonsense")
    stage.simulator.callbacks(kind_of(name), "never")
    stage.add(one)
    before = stage.until(one, lambda shown: shown.state == "accepted")
    kind = FORM if name == "twilio" else JSON
    query = f"id={one.id.hex()}" if name == "twilio" else ""
    statuses = []
    for body in NONSENSE:
        answer = stage.notary.post(name, signed(name, kind, body, query))
        statuses.append(answer.status)
        assert answer.status in (400, 401) or answer.json == {"status": "recorded", "reports": 0}, (body[:50], answer)
    assert 400 in statuses
    assert stage.shown(one) == before


@pytest.mark.parametrize("name", NAMES)
def test_a_body_that_is_too_large_is_not_read(stage: Stage, name: str) -> None:
    most = CALLBACKS[kind_of(name)].body_max or 256 * 1024
    assert stage.notary.post(name, signed(name, JSON, b" " * (most + 1))).status == 413


def test_nobody_gets_in_by_asking_otherwise(stage: Stage) -> None:
    one = message("vonage", "get")
    assert stage.notary.post("nobody", signed("vonage", JSON, b"{}")).status == 404
    encoded = signed("vonage", JSON, b"{}")
    assert (
        stage.notary.post("vonage", encoded._replace(headers={**encoded.headers, "Content-Encoding": "gzip"})).status
        == 415
    )
    assert stage.ask(lambda outbox: outbox.show(one.id)) is None
