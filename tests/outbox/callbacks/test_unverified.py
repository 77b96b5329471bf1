"""A callback that is not verified: its sender hears nothing, and whoever runs this which check it was."""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.outbox.callbacks.hearing_process import VERIFY
from tests.outbox.callbacks.signing import Signed, public_url, signed
from tests.service.verification.sns_sender import NOW, Host

from semel.ports import ExplainingVerifier, Verifier
from semel.providers.callbacks import CALLBACKS
from semel.service import incident_log
from semel.service.endpoints import ServedEndpoint
from semel.service.incident_log import UnverifiedLog
from semel.service.ingest import Ingest, Scope
from semel.service.responses import NOT_VERIFIED
from semel.testing.simulator import twilio as dialect
from semel.testing.simulator.callbacks import HMAC, VONAGE, WHSEC, SigningInput
from semel.verifiers import verifier

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
BODY = b'{"status":"delivered","to":"+4917012345678"}'
TWILIO_BODY = b"MessageSid=SM1&MessageStatus=delivered&To=%2B4917012345678"
SECRETS = (WHSEC, VONAGE, HMAC, dialect.SECRET, "4917012345678", "Bearer", "delivered")
DIFFERS = ("signature", "secret", "body")


def checks(name: str, **more: Any) -> Verifier:
    besides: dict[str, Any] = {"twilio": {"url": public_url(name)}, "ses": {"fetch": Host().fetch, "now": lambda: NOW}}
    return verifier(CALLBACKS[name].scheme, **{**VERIFY[name], **besides.get(name, {}), **more})


def callback(name: str, ink: SigningInput | None = None) -> Signed:
    body, kind = (TWILIO_BODY, FORM) if name == "twilio" else (BODY, JSON)
    return signed(name, kind, body, "id=1" if name == "twilio" else "", ink)


def redact_secrets(name: str, header: str) -> Signed:
    whole = callback(name)
    return whole._replace(headers={key: value for key, value in whole.headers.items() if key.lower() != header})


def answered(door: ServedEndpoint, one: Signed, ingest: Ingest | None = None) -> tuple[int, bytes]:
    """What the sender hears."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": one.body}

    async def send(message: Any) -> None:
        sent.append(message)

    async def deliver() -> None:
        headers = [(name.lower().encode(), value.encode()) for name, value in one.headers.items()]
        scope: Scope = {"type": "http", "method": "POST", "query_string": one.query.encode(), "headers": headers}
        await (ingest or Ingest(None, [door])).deliver(door, scope, receive, send)  # type: ignore[arg-type]

    asyncio.run(deliver())
    return int(sent[0]["status"]), bytes(sent[1]["body"])


def other() -> SigningInput:
    return SigningInput(time.time(), other=True)


def late() -> SigningInput:
    return SigningInput(time.time() - 90_000)


def ahead() -> SigningInput:
    return SigningInput(time.time() + 4_000)


FORGED: list[tuple[str, Callable[[], Signed], tuple[str, ...]]] = [  # the words that name the check
    ("twilio", lambda: redact_secrets("twilio", "x-twilio-signature"), ("x-twilio-signature", "missing")),
    ("twilio", lambda: callback("twilio", other()), ("signature", "secret", "`url`")),
    ("twilio", lambda: callback("twilio")._replace(query="id=2"), ("proxy", "query", "body")),
    ("twilio", lambda: callback("twilio")._replace(body=b"\xff"), ("body", "form")),
    (
        "sendgrid",
        lambda: redact_secrets("sendgrid", "x-twilio-email-event-webhook-signature"),
        ("webhook-signature", "missing"),
    ),
    (
        "sendgrid",
        lambda: redact_secrets("sendgrid", "x-twilio-email-event-webhook-timestamp"),
        ("webhook-timestamp", "missing"),
    ),
    ("sendgrid", lambda: callback("sendgrid", late()), ("webhook-timestamp", "86700 s ago")),
    ("sendgrid", lambda: callback("sendgrid", ahead()), ("300 s ahead", "clock")),
    ("sendgrid", lambda: callback("sendgrid", other()), DIFFERS),
    ("telnyx", lambda: callback("telnyx", late()), ("telnyx-timestamp", "300 s ago")),
    ("telnyx", lambda: callback("telnyx", other()), DIFFERS),
    ("telnyx", lambda: redact_secrets("telnyx", "telnyx-signature-ed25519"), ("telnyx-signature-ed25519", "missing")),
    ("resend", lambda: redact_secrets("resend", "svix-id"), ("svix-id", "missing")),
    ("resend", lambda: redact_secrets("resend", "svix-signature"), ("svix-signature", "missing")),
    ("resend", lambda: callback("resend", late()), ("svix-timestamp", "300 s ago")),
    ("resend", lambda: callback("resend", other()), DIFFERS),
    ("vonage", lambda: redact_secrets("vonage", "authorization"), ("authorization", "missing")),
    ("vonage", lambda: callback("vonage", other()), ("token", "signature", "secret")),
    ("vonage", lambda: callback("vonage", late()), ("iat", "86700 s ago")),
    ("vonage", lambda: callback("vonage", ahead()), ("iat", "300 s ahead")),
    ("vonage", lambda: callback("vonage")._replace(body=b"{}"), ("token", "body")),
    ("brevo", lambda: redact_secrets("brevo", "authorization"), ("authorization", "missing")),
    ("brevo", lambda: callback("brevo", other()), ("authorization", "secret")),
    ("http", lambda: redact_secrets("http", "x-hub-signature-256"), ("x-hub-signature-256", "missing")),
    ("http", lambda: callback("http", other()), DIFFERS),
    ("ses", lambda: callback("ses", other()), ("signature", "certificate")),
    ("ses", lambda: callback("ses")._replace(body=BODY), ("SNS", "raw message delivery")),
]


@pytest.mark.parametrize(("name", "forged", "why"), FORGED, ids=[f"{name}: {' '.join(why)}" for name, _, why in FORGED])
def test_the_log_names_the_door_and_the_check_and_the_answer_neither(
    name: str, forged: Callable[[], Signed], why: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    door = ServedEndpoint(f"/callbacks/{name}", verifier=checks(name))
    with caplog.at_level(logging.WARNING, "semel"):
        assert answered(door, forged()) == (401, NOT_VERIFIED.body)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"delivery_unverified endpoint=/callbacks/{name} count=1 reason=")
    assert [word for word in why if word not in line] == []
    assert [secret for secret in SECRETS if secret in line] == []


@pytest.mark.parametrize("name", VERIFY)
def test_what_is_verified_meets_no_objection(name: str) -> None:
    ours, one = checks(name), callback(name)
    assert isinstance(ours, ExplainingVerifier), "every scheme tells why"
    headers = {key.lower().encode(): value.encode() for key, value in one.headers.items()}
    headers[b":query"] = one.query.encode()
    assert asyncio.run(ours.verify(headers, one.body))
    assert asyncio.run(ours.objection(headers, one.body)) == ""


@pytest.mark.parametrize(
    "told",
    [
        "https://hooks.example.org/callbacks/twilio",
        "http://semel.example.com/callbacks/twilio",
        "https://semel.example.com/callbacks/twilio/",
    ],
)
def test_a_wrong_url_is_told_from_a_wrong_secret(told: str, caplog: pytest.LogCaptureFixture) -> None:
    """Twilio was told another address than the settings say, and the request has its name for us."""
    text = f"{told}?id=1MessageSidSM1"
    signature = base64.b64encode(hmac.digest(dialect.SECRET.encode(), text.encode(), "sha1")).decode()
    headers = {"X-Twilio-Signature": signature, "Host": "127.0.0.1:8080", "X-Forwarded-Host": "hooks.example.org"}
    with caplog.at_level(logging.WARNING, "semel"):
        answered(ServedEndpoint("/c", verifier=checks("twilio")), Signed("id=1", headers, b"MessageSid=SM1"))
    assert f" {told}:" in caplog.text, "the address that was signed is logged"
    assert "`url`" in caplog.text


def test_a_password_in_the_url_is_in_no_line(caplog: pytest.LogCaptureFixture) -> None:
    url = "https://anna:pa55word@semel.example.com/callbacks/twilio"
    signature = base64.b64encode(hmac.digest(dialect.SECRET.encode(), f"{url}/MessageSidSM1".encode(), "sha1")).decode()
    door = ServedEndpoint("/c", verifier=checks("twilio", url=url))
    with caplog.at_level(logging.WARNING, "semel"):
        answered(door, Signed("", {"X-Twilio-Signature": signature}, b"MessageSid=SM1"))
    assert " https://semel.example.com/callbacks/twilio/:" in caplog.text, "the address that was signed is logged"
    assert "pa55word" not in caplog.text


# ------------------------------------------------------------------------------------------------------------ a flood


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_flood_does_not_fill_the_log_and_hides_no_other_reason(caplog: pytest.LogCaptureFixture) -> None:
    clock, door = Clock(), ServedEndpoint("/c", verifier=checks("telnyx"))
    tally = UnverifiedLog(clock)
    old = {name.lower().encode(): value.encode() for name, value in callback("telnyx", late()).headers.items()}

    async def hour() -> None:
        for second in range(3_600):
            clock.now += 1
            for _ in range(25):
                await tally.record(door, {}, b"")
            if second == 1_800:
                clock.now += 1
                await tally.record(door, old, BODY)

    with caplog.at_level(logging.WARNING, "semel"):
        asyncio.run(hour())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) <= 3 * 60 + 3
    assert sum("telnyx-timestamp" in line for line in lines) == 1
    flood = "delivery_unverified endpoint=/c count=1200 reason="
    assert any(line.startswith(flood) and "telnyx-signature-ed25519" in line for line in lines)
    assert f'delivery_unverified endpoint=/c count=300 reason="{incident_log.NOT_CHECKED}"' in lines


def test_reasons_that_never_end_are_told_as_one(caplog: pytest.LogCaptureFixture) -> None:
    class Talkative:
        covers_headers = False
        asked = 0

        async def verify(self, headers: Any, body: bytes) -> bool:
            return False

        async def objection(self, headers: Any, body: bytes) -> str:
            self.asked += 1
            return f"reason {self.asked}"

    clock, ours = Clock(), Talkative()

    async def flood() -> None:
        tally = UnverifiedLog(clock)
        for _ in range(1_000):
            clock.now += 0.05
            await tally.record(ServedEndpoint("/c", verifier=ours), {}, b"")

    with caplog.at_level(logging.WARNING, "semel"):
        asyncio.run(flood())
    assert ours.asked > incident_log.REASONS_MAX, "inconclusive: nothing was asked"
    assert len(caplog.records) <= incident_log.REASONS_MAX + 1


def test_a_verifier_that_tells_nothing_is_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    class Silent:
        covers_headers = False

        async def verify(self, headers: Any, body: bytes) -> bool:
            return False

    with caplog.at_level(logging.WARNING, "semel"):
        assert answered(ServedEndpoint("/c", verifier=Silent()), callback("http"))[0] == 401
    assert f'delivery_unverified endpoint=/c count=1 reason="{incident_log.NO_REASON}"' in caplog.text


def test_a_verifier_that_cannot_say_why_refuses_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    class SmtpProtocolError:
        covers_headers = False

        async def verify(self, headers: Any, body: bytes) -> bool:
            return False

        async def objection(self, headers: Any, body: bytes) -> str:
            raise KeyError("another's bug")

    with caplog.at_level(logging.WARNING, "semel"):
        assert answered(ServedEndpoint("/c", verifier=SmtpProtocolError()), callback("http"))[0] == 401
    assert f'delivery_unverified endpoint=/c count=1 reason="{incident_log.NO_REASON}"' in caplog.text


def test_saying_why_costs_about_as_much_as_verifying() -> None:
    """Anybody can send a large form with some signature: Twilio's is compared under many URLs, and read once."""
    ours = checks("twilio")
    assert isinstance(ours, ExplainingVerifier)
    headers = {b"x-twilio-signature": b"A" * 27 + b"=", b"host": b"a.test", b"x-forwarded-host": b"b.test"}
    form = b"a=" + b"%41" * 80_000

    def took_s(ask: Callable[..., Any]) -> float:
        begun = time.process_time()
        refused = asyncio.run(ask(headers, form))
        assert refused is False or "another `url`" in refused
        return time.process_time() - begun

    verifying, saying = (min(took_s(ask) for _ in range(3)) for ask in (ours.verify, ours.objection))
    assert saying < 6 * verifying
