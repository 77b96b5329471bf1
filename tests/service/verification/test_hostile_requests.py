"""Whatever a sender sends: no verifier raises, and nothing verifies without a secret."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.verification.sns_sender import CERTIFICATE_URL, NOTIFICATION, NOW, TOPIC, Host, sns
from tests.service.verification.test_provider_schemes import SENDGRID_KEY, TELNYX, ed25519_key

from semel.ports import ExplainingVerifier
from semel.verifiers import verifier

HOST = Host()
VERIFIERS = {
    "genesys": verifier("genesys", secrets=["s3cret", "older"]),
    "standard-webhooks": verifier(
        "standard-webhooks", secrets=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], now=lambda: NOW
    ),
    "hmac-hex": verifier("hmac-hex", secrets=["s3cret"]),
    "hmac-hex, own header": verifier("hmac-hex", secrets=["s3cret"], header="x-api-key"),
    "header": verifier("header", secrets=["s3cret-that-nobody-guesses", "older-one"]),
    "basic": verifier("basic", secrets=["s3cret"], username="u"),
    "sns": sns(HOST),
    "twilio": verifier("twilio", secrets=["s3cret"], url="https://example.com/callbacks"),
    "sendgrid": verifier("sendgrid", secrets=[SENDGRID_KEY], now=lambda: NOW),
    "telnyx": verifier("telnyx", secrets=[ed25519_key(TELNYX)], now=lambda: NOW),
    "vonage": verifier("vonage", secrets=["s3cret"], now=lambda: NOW),
}
NAMES = [
    b"x-hub-signature-256",
    b"webhook-id",
    b"webhook-timestamp",
    b"webhook-signature",
    b"x-api-key",
    b"authorization",
    b"svix-id",
    b"svix-timestamp",
    b"svix-signature",
    b"x-twilio-signature",
    b":query",
    b"x-twilio-email-event-webhook-signature",
    b"x-twilio-email-event-webhook-timestamp",
    b"telnyx-signature-ed25519",
    b"telnyx-timestamp",
]

digests = st.binary(min_size=32, max_size=32)
base64s = digests.map(b64encode)
near_values = st.one_of(
    st.builds(lambda text: b"sha256=" + text, base64s),
    st.builds(lambda digest: b"sha256=" + digest.hex().encode(), digests),
    digests.map(lambda digest: digest.hex().encode()),
    st.lists(st.builds(lambda text: b"v1," + text, base64s), max_size=100).map(b" ".join),
    st.builds(lambda text: b"Basic " + text, st.binary(max_size=100).map(b64encode)),
    st.binary(min_size=20, max_size=20).map(b64encode),
    st.binary(min_size=64, max_size=72).map(b64encode),
    st.builds(lambda text: b"Bearer " + text, st.from_regex(rb"[\w-]{1,20}\.[\w-]{1,20}\.[\w-]{43}", fullmatch=True)),
    st.integers(int(NOW) - 301, int(NOW) + 301).map(lambda number: b"%d" % number),
    st.from_regex(rb"[ -~]{0,50}", fullmatch=True),
    st.integers(0, 100_000).map(lambda size: b"A" * size),
)
headers = st.dictionaries(st.sampled_from(NAMES) | st.binary(max_size=30), st.binary(max_size=200) | near_values)

texts = st.text(max_size=50)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
MEMBERS: dict[str, Any] = {
    **NOTIFICATION,
    "Subject": "s",
    "Token": "t",
    "SubscribeURL": "u",
    "Signature": "AAAA",
    "SignatureVersion": "1",
    "SigningCertURL": CERTIFICATE_URL,
}
near_messages = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.just(value) | texts | json_values for name, value in MEMBERS.items()},
        "Type": st.sampled_from(["Notification", "SubscriptionConfirmation", "UnsubscribeConfirmation"]) | json_values,
        "TopicArn": st.just(TOPIC) | texts,
        "Signature": st.binary(max_size=600).map(lambda raw: b64encode(raw).decode()) | texts,
        "SignatureVersion": st.sampled_from(["1", "2"]) | json_values,
    },
).map(lambda message: json.dumps(message).encode())
# All members there and right but for the signature: this one reaches the certificate.
forged_messages = st.binary(min_size=256, max_size=256).map(
    lambda raw: json.dumps({**MEMBERS, "Signature": b64encode(raw).decode()}).encode()
)
bodies = st.binary(max_size=300) | texts.map(str.encode) | near_messages | forged_messages


@given(headers=headers, body=bodies)
def test_no_verifier_raises_and_none_is_deceived(headers: dict[bytes, bytes], body: bytes) -> None:
    async def ask_all() -> dict[str, bool]:
        return {name: await ours.verify(headers, body) for name, ours in VERIFIERS.items()}

    assert asyncio.run(ask_all()) == dict.fromkeys(VERIFIERS, False)


@given(body=forged_messages)
def test_a_forged_signature_is_refused_under_the_true_certificate(body: bytes) -> None:
    assert not asyncio.run(VERIFIERS["sns"].verify({}, body))
    assert HOST.asked == [CERTIFICATE_URL], "it was looked at"


@given(headers=headers, body=bodies)
def test_every_refusal_has_a_reason_in_words_of_ours(headers: dict[bytes, bytes], body: bytes) -> None:
    """A sender's own words in it would be a way into the log."""
    reasons = objections(headers, body)
    assert len(reasons) == len(VERIFIERS)
    assert all(0 < len(reason) < 200 and reason.isprintable() for reason in reasons)
    for name, value in headers.items():
        without = {**headers, name: b"~" * len(value)}
        assert not repeated(value, reasons, partial(objections, without, body)), name
    assert not repeated(body, reasons, partial(objections, headers, b"~" * len(body)))


@pytest.mark.parametrize("reason", ["header x-api-key is missing", "this is what you sent: {}"])
def test_the_check_finds_only_reasons_that_repeat_the_value(reason: str) -> None:
    value = b"header x-api-key"
    other = b"~" * len(value)
    repeats = repeated(value, [reason.format(value.decode())], lambda: [reason.format(other.decode())])
    assert repeats == ("{}" in reason)


def objections(headers: dict[bytes, bytes], body: bytes) -> list[str]:
    async def ask_all() -> list[str]:
        return [
            await ours.objection(headers, body) for ours in VERIFIERS.values() if isinstance(ours, ExplainingVerifier)
        ]

    return asyncio.run(ask_all())


def repeated(value: bytes, reasons: Sequence[str], without: Callable[[], Sequence[str]]) -> bool:
    """Whether a reason holds this value because it was sent. Hypothesis also sends constants of ours, and a reason may
    hold one of those by itself: it then holds it also `without` the value."""
    text = value.decode("latin-1")
    if len(text) <= 12 or not any(text in reason for reason in reasons):
        return False
    return not any(text in reason for reason in without())
