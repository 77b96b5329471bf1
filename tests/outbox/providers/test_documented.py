"""Requests and parsers match the public documentation of the providers (sources: docs/providers.md)."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from msgspec.structs import replace
from tests.outbox.providers.kits import HERE, mail, text
from tests.outbox.providers.test_kinds import LEAST

from semel.http_client.client import Answered
from semel.providers import brevo, resend, sendgrid, ses, telnyx, twilio, vonage
from semel.providers.auth import OutgoingRequest
from semel.providers.http import RATE_LIMIT_WAIT_MAX_S, rate_limit_reset_s
from semel.providers.registry import provider
from semel.providers.vonage import VonageJwt
from semel.testing.provider_laws import dispatch_of
from semel.testing.simulator import SimulatorProcess
from semel.testing.simulator.brevo import SECRET as BREVO
from semel.values.delivery_state import Accepted, Answer, DeliveryState, Refused, Reported, Unknown
from semel.values.errors import ConfigError
from semel.values.notification import Notification
from semel.values.outbox import DeliveryReport
from semel.values.secret import Secret

SENDER = "shop@example.test"
ID = "0a" * 16


def made(kind: str, **more: Any) -> Any:
    return provider(kind, kind, {**LEAST[kind], **more})


def written(kind: str, said: Notification, **more: Any) -> Any:
    request = msgspec.json.decode(made(kind, **more).prepare(dispatch_of(said)))
    return msgspec.json.decode(request["body"])


def answered(status: int, said: Any, headers: Mapping[str, str] | None = None) -> Answered:
    return Answered(status, msgspec.json.encode(said), headers=headers or {})


# ------------------------------------------------------------------------------------------------------------- answers


def repeated(simulator: SimulatorProcess, doubt_ms: int) -> list[Answer]:
    """The same mail twice to Brevo, as its second attempt would be made."""
    simulator.tell_the_truth()
    dispatch = dispatch_of(mail("twice", key=f"twice-{doubt_ms}", recipient="twice@example.test"))
    again = replace(
        dispatch, delivery_state=DeliveryState(state="sending", crossed_ms=2, keyed_ms=1, doubt_ms=doubt_ms)
    )

    async def story() -> list[Answer]:
        url = simulator.url("brevo")
        one = provider("brevo", "b", {"url": url, "api_key": Secret(BREVO), "sender": SENDER, "allow": HERE})
        try:
            request = one.prepare(dispatch)
            return [await one.send(each, request) for each in (dispatch, again)]
        finally:
            await one.close()

    return asyncio.run(story())


def test_the_duplicate_key_error_of_brevo_resolves_an_unknown_outcome(simulator: SimulatorProcess) -> None:
    first, second = repeated(simulator, doubt_ms=1)
    assert isinstance(first, Accepted)
    assert first.reference
    assert second == Accepted("", brevo.DUPLICATE_KEY)


def test_a_known_key_without_an_unknown_outcome_is_not_an_acceptance(simulator: SimulatorProcess) -> None:
    """All attempts before were refused: whether it keeps the keys of those is not said."""
    assert repeated(simulator, doubt_ms=0)[1] == Unknown(brevo.DUPLICATE_KEY)


def test_a_key_of_brevo_is_a_uuid() -> None:
    said = mail("a")
    assert UUID(written("brevo", said, sender=SENDER)["headers"]["idempotencyKey"]) == UUID(bytes=said.id)


@pytest.mark.parametrize(
    ("kind", "answer", "final"),
    [
        ("brevo", answered(400, {"code": "invalid_parameter"}), True),
        ("resend", answered(403, {"name": "invalid_api_key"}), False),
        ("resend", answered(401, {"name": "missing_api_key"}), False),
        ("resend", answered(403, {"name": "validation_error"}), True),
        ("resend", answered(422, {"name": "invalid_from_address"}), True),
        ("resend", answered(409, {"name": "concurrent_idempotent_requests"}), None),
        ("resend", answered(409, {"name": "invalid_idempotent_request"}), None),
        ("sendgrid", answered(403, {"errors": [{"message": "too many bad requests"}]}), False),
        ("sendgrid", answered(413, {}), True),
        ("ses", answered(400, {}, {"x-amzn-errortype": "SendingPausedException"}), False),
        ("ses", answered(400, {}, {"x-amzn-errortype": "LimitExceededException"}), False),
        ("ses", answered(400, {}, {"x-amzn-errortype": "AccountSuspendedException"}), True),
        ("telnyx", answered(409, {}), None),
        ("telnyx", answered(422, {}), True),
        ("vonage", answered(422, {}), True),
    ],
)
def test_each_error_of_a_provider_is_classified_as_documented(kind: str, answer: Answered, final: bool | None) -> None:
    """None: nobody knows what came of the request."""
    judged = made(kind).classify(answer)
    assert (judged.final if isinstance(judged, Refused) else None) == final


@pytest.mark.parametrize(
    ("headers", "now_s", "rests_s"),
    [
        ({}, 0.0, 0.0),
        ({"left": "3", "reset": "10"}, 0.0, 0.0),
        ({"left": "0", "reset": "10"}, 0.0, 10.0),
        ({"left": "0", "reset": "1010"}, 1_000.0, 10.0),
        ({"left": "0", "reset": "990"}, 1_000.0, 0.0),
        ({"left": "0", "reset": "9e9"}, 0.0, RATE_LIMIT_WAIT_MAX_S),
        ({"left": "0", "reset": "nan"}, 0.0, 0.0),
        ({"left": "none", "reset": "10"}, 0.0, 0.0),
    ],
)
def test_a_rate_limit_pause_has_a_maximum(headers: Mapping[str, str], now_s: float, rests_s: float) -> None:
    assert rate_limit_reset_s(headers, "left", "reset", now_s=now_s) == rests_s


@pytest.mark.parametrize(
    ("kind", "headers"),
    [
        ("brevo", {"x-sib-ratelimit-remaining": "0", "x-sib-ratelimit-reset": "60"}),
        ("resend", {"ratelimit-remaining": "0", "ratelimit-reset": "60"}),
        ("sendgrid", {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "in a minute"}),
    ],
)
def test_each_provider_reads_its_own_rate_limit_headers(kind: str, headers: Mapping[str, str]) -> None:
    then = str(int(time.time()) + 60)
    now = {name: value.replace("in a minute", then) for name, value in headers.items()}
    judged = made(kind).classify(answered(429, {}, now))
    assert isinstance(judged, Refused)
    assert judged.limited
    assert judged.after_s is not None
    assert 0 < judged.after_s <= 60


# ------------------------------------------------------------------------------------------------------------ addresses


@pytest.mark.parametrize(("address", "bare"), [("+4917012345678", "4917012345678"), ("ACME", "ACME"), ("+", "+")])
def test_vonage_writes_a_number_without_a_plus(address: str, bare: str) -> None:
    body = written("vonage", text("a", sender=address))
    assert body["from"] == bare
    assert written("vonage", text("a", recipient=address), sender="ACME")["to"] == bare


def test_genesys_removes_the_plus_only_for_whatsapp() -> None:
    said = text("a", recipient="+4917012345678", channel="message")
    for messenger, address in (("sms", "+4917012345678"), ("whatsapp", "4917012345678"), ("open", "+4917012345678")):
        assert written("genesys", said, sender="x", messenger=messenger)["toAddress"] == address


TELNYX_FIELDS = {
    "auto_detect",
    "encoding",
    "from",
    "media_urls",
    "messaging_profile_id",
    "send_at",
    "subject",
    "text",
    "to",
    "type",
    "use_profile_webhooks",
    "webhook_failover_url",
    "webhook_url",
}


def test_a_message_of_telnyx_has_the_fields_that_telnyx_has() -> None:
    said = text("a")
    body = written("telnyx", said, sender="+490", callback="https://semel.example.com/callbacks/t?a=b")
    assert body.keys() <= TELNYX_FIELDS
    assert parse_qs(urlsplit(body["webhook_url"]).query) == {"a": ["b"], "id": [said.id.hex()]}


@pytest.mark.parametrize(
    ("url", "id"),
    [
        (f"https://semel.example.com/t?id={ID}", bytes.fromhex(ID)),
        (f"https://semel.example.com/t?a=b&id={ID}", bytes.fromhex(ID)),
        (f"https://semel.example.com/t?id={ID}&id={'0b' * 16}", None),
        ("https://semel.example.com/t", None),
        ("https://[", None),
        (None, None),
        (7, None),
    ],
)
def test_callbacks_of_telnyx_contain_the_called_url(url: Any, id: bytes | None) -> None:
    payload = {"id": "t-1", "direction": "outbound", "to": [{"status": "delivered"}], "webhook_url": url}
    event = {"data": {"event_type": "message.finalized", "payload": payload}}
    expected = DeliveryReport("delivered", id, "telnyx", "t-1", 0, "callback: delivered")
    assert made("telnyx").reports({}, msgspec.json.encode(event)) == [expected]


def test_a_callback_url_with_an_id_parameter_is_refused() -> None:
    for kind in ("twilio", "telnyx"):
        with pytest.raises(ConfigError, match=r"callback.*\bid\b"):
            made(kind, callback="https://semel.example.com/?id=7")
        assert made(kind, callback="https://semel.example.com/").by_reference is False
        assert made(kind).by_reference is True


@pytest.mark.parametrize(
    "url", ["semel.example.com/t", "https://", "ftp://semel.example.com/", "https://[", "https://a/ b"]
)
def test_an_invalid_callback_url_is_reported_at_start_up(url: str) -> None:
    for kind in ("twilio", "telnyx"):
        with pytest.raises(ConfigError, match=r"callback.*URL"):
            made(kind, callback=url)


# --------------------------------------------------------------------------------------------------- words of callbacks

WORDS: dict[str, tuple[Mapping[str, Reported], set[str], set[str]]] = {  # theirs, and those that say nothing
    "twilio": (
        twilio.REPORTS,
        {
            *("accepted", "scheduled", "queued", "sending", "sent", "delivered", "undelivered", "failed", "canceled"),
            *("read", "partially_delivered", "receiving", "received"),
        },
        {"receiving", "received"},
    ),
    "sendgrid": (
        sendgrid.REPORTS,
        {
            *("processed", "deferred", "delivered", "bounce", "dropped", "open", "click", "spamreport", "unsubscribe"),
            *("group_unsubscribe", "group_resubscribe"),
        },
        {"group_resubscribe"},
    ),
    "ses": (
        ses.REPORTS,
        {
            *("Bounce", "Complaint", "Delivery", "Send", "Reject", "Open", "Click", "Rendering Failure"),
            *("DeliveryDelay", "Subscription"),
        },
        set(),
    ),
    "resend": (
        resend.REPORTS,
        {
            f"email.{word}"
            for word in (
                *("bounced", "clicked", "complained", "delivered", "delivery_delayed", "failed", "opened", "received"),
                *("scheduled", "sent", "suppressed"),
            )
        },
        {"email.received"},
    ),
    "telnyx": (
        telnyx.REPORTS,
        {
            *("queued", "sending", "sent", "expired", "sending_failed", "delivery_unconfirmed", "delivered"),
            "delivery_failed",
        },
        set(),
    ),
    "brevo": (
        brevo.REPORTS,
        {
            *("request", "click", "deferred", "delivered", "soft_bounce", "spam", "unique_opened", "hard_bounce"),
            *("opened", "invalid_email", "blocked", "error", "unsubscribed", "proxy_open", "unique_proxy_open"),
            "complaint",
        },
        set(),
    ),
    "vonage": (vonage.REPORTS, {"submitted", "delivered", "rejected", "undeliverable", "read"}, set()),
}


@pytest.mark.parametrize("kind", WORDS)
def test_every_status_of_a_callback_is_mapped_or_ignored_on_purpose(kind: str) -> None:
    ours, theirs, silent = WORDS[kind]
    assert set(ours) == theirs - silent


def test_an_event_of_ses_has_the_time_of_its_body() -> None:
    mails = {"timestamp": "2025-06-15T15:06:40Z", "messageId": "m-1", "tags": {"semel-id": [ID]}}
    event = {"eventType": "Complaint", "mail": mails, "complaint": {"timestamp": "2025-06-15T15:07:40Z"}}
    (witness,) = made("ses").reports({}, msgspec.json.encode(event))
    assert (witness.status, witness.at_ms) == ("delivered", 1_750_000_060_000)


# ------------------------------------------------------------------------------------------ the application of Vonage


STRANGE = (
    "-----BEGIN PRIVATE KEY-----\nMA4CAQAwBQYDVQQDBAIFAA==\n-----END PRIVATE KEY-----\n"  # of a type that nobody knows
)


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> Secret:
    return Secret(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode())


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65_537, 2_048)


def test_an_application_signs_its_own_token_and_keeps_it_for_a_while(key: rsa.RSAPrivateKey) -> None:
    now = [1_750_000_000.0]
    application = VonageJwt("v", "app-1", pem(key), lambda: now[0])

    def token() -> str:
        headers = asyncio.run(application.headers(OutgoingRequest("POST", "https://api.nexmo.com/v1/messages", b"")))
        return headers["Authorization"].removeprefix("Bearer ")

    first = token()
    head, claims, signature = (base64.urlsafe_b64decode(part + "==") for part in first.split("."))
    key.public_key().verify(signature, first.rpartition(".")[0].encode(), padding.PKCS1v15(), SHA256())
    assert json.loads(head) == {"alg": "RS256", "typ": "JWT"}
    said = json.loads(claims)
    assert len(UUID(said.pop("jti")).bytes) == 16
    assert said == {"application_id": "app-1", "iat": 1_750_000_000, "exp": 1_750_000_900}
    now[0] += 800
    assert token() == first
    now[0] += 60
    second = token()
    assert second != first
    application.invalidate({"Authorization": f"Bearer {first}"})
    assert token() == second
    application.invalidate({"Authorization": f"Bearer {second}"})
    assert token() != second
    assert application.redact(f"bad token {token()}") == "bad token …"
    assert application.redact(f"bad token {second}") == "bad token …", "its answer came after it was renewed"


def test_vonage_authenticates_by_account_or_by_application(key: rsa.RSAPrivateKey) -> None:
    by_application = {"application_id": "app-1", "private_key": pem(key)}
    by_account = {"api_key": "k", "api_secret": Secret("s")}
    for options in (by_application, by_account):
        assert provider("vonage", "v", options).contract.name == "v"
    for wrong in ({}, {**by_application, **by_account}, {"api_key": "k"}, {"application_id": "a", **by_account}):
        with pytest.raises(ConfigError, match=r"api_key.*api_secret.*application_id.*private_key"):
            provider("vonage", "v", wrong)
    for no_key in (Secret("not-a-key"), Secret(STRANGE), pem(ec.derive_private_key(7, ec.SECP256R1()))):
        with pytest.raises(ConfigError, match="RSA") as refused:
            provider("vonage", "v", {"application_id": "a", "private_key": no_key})
        assert no_key.reveal() not in str(refused.value)
