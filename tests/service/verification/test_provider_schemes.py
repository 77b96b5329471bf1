"""How Twilio, SendGrid, Telnyx and Vonage prove themselves, and Svix.

The vectors of Twilio and SendGrid are those of their own public documents and libraries; the others are made here by
hand, and not by the code under test.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from tests.service.verification.asking import altered, short, verified
from tests.service.verification.test_standard_webhooks import BODY as SVIX_BODY
from tests.service.verification.test_standard_webhooks import BY_OLD, ID, OLD, SENT_AT

from semel.values.errors import ConfigError
from semel.verifiers import verifier

NOW = 1_800_000_000
BODY = b'{"status":"delivered"}'

# ------------------------------------------------------------------------------------------------------------- Twilio

URL = "https://mycompany.com/myapp.php"
QUERY = "foo=1&bar=2"
FORM = {
    "CallSid": "CA1234567890ABCDE",
    "From": "+12349013030",
    "To": "+18005551212",
    "Caller": "+12349013030",
    "Digits": "1234",
}
SIGNATURE = "0/KCTR6DLpKmkAf8muzZqo1nDgQ="


def twilio(
    body: bytes | None = None,
    *,
    secrets: tuple[str, ...] = ("12345",),
    url: str = URL,
    query: str = QUERY,
    signature: str = SIGNATURE,
) -> bool:
    given = urlencode(FORM).encode() if body is None else body
    ours = verifier("twilio", secrets=secrets, url=url)
    return verified(ours, given, **{"x-twilio-signature": signature, ":query": query})


def by_twilio(text: str, token: str = "12345") -> str:
    return base64.b64encode(hmac.digest(token.encode(), text.encode(), "sha1")).decode()


def test_the_public_example_of_twilio_verifies() -> None:
    assert twilio()
    assert twilio(urlencode(dict(reversed(FORM.items()))).encode()), "fields have no order"
    assert twilio(secrets=("old", "12345", "new"))


def test_a_usual_port_makes_no_difference_to_twilio() -> None:
    text = "".join(name + FORM[name] for name in sorted(FORM))
    for told, signs in ((URL, ":443"), (URL.replace(".com", ".com:443"), "")):
        signature = by_twilio(f"https://mycompany.com{signs}/myapp.php?{QUERY}{text}")
        assert twilio(url=told, signature=signature)
    with_port = by_twilio(f"https://mycompany.com:8443/myapp.php?{QUERY}{text}")
    assert twilio(url="https://mycompany.com:8443/myapp.php", signature=with_port)
    assert not twilio(signature=with_port)


@pytest.mark.parametrize("query", ["", "foo=1", "foo=1&bar=3", "bar=2&foo=1", "foo=1&bar=2&", "foo=1&bar=2&id=1"])
def test_another_query_is_refused(query: str) -> None:
    assert not twilio(query=query)


@pytest.mark.parametrize(
    "url", ["http://mycompany.com/myapp.php", "https://mycompany.com/", "https://other.com/myapp.php"]
)
def test_another_address_is_refused(url: str) -> None:
    assert not twilio(url=url)


@pytest.mark.parametrize("body", list(altered(urlencode(FORM).encode())), ids=short)
def test_another_form_is_refused(body: bytes) -> None:
    assert not twilio(body)


def test_a_field_that_is_there_twice_is_refused() -> None:
    """What is signed has no place between a name and a value, so that one of them could hide in the other."""
    text = "".join(name + FORM[name] for name in sorted(FORM))
    assert not twilio(urlencode([*FORM.items(), ("To", "")]).encode(), signature=by_twilio(f"{URL}?{QUERY}{text}To"))
    assert not twilio(b"a=1&a=2", signature=by_twilio(f"{URL}?{QUERY}a1a2"))


def test_of_json_the_query_has_the_digest() -> None:
    query = f"id=1&bodySHA256={hashlib.sha256(BODY).hexdigest()}"
    signature = by_twilio(f"{URL}?{query}")
    assert twilio(BODY, query=query, signature=signature)
    assert not twilio(BODY + b" ", query=query, signature=signature)
    assert not twilio(b"a=1", query=query, signature=by_twilio(f"{URL}?{query}a1"))
    assert not twilio(BODY, query="id=1", signature=by_twilio(f"{URL}?id=1"))


@pytest.mark.parametrize(
    "signature", ["", SIGNATURE[:-1], SIGNATURE + "=", "A" * 27 + "=", f"{SIGNATURE}, {SIGNATURE}"]
)
def test_another_signature_of_twilio_is_refused(signature: str) -> None:
    assert not twilio(signature=signature)
    assert not twilio(secrets=("54321",))


@pytest.mark.parametrize(
    "url", ["", "mycompany.com", "ftp://a/b", "https://", "https://a/b?c=d", "https://a:x/", "https://a/b#c"]
)
def test_twilio_needs_a_whole_url_without_query_or_fragment(url: str) -> None:
    with pytest.raises(ConfigError, match="`url`"):
        verifier("twilio", secrets=["12345"], url=url)


# ----------------------------------------------------------------------------------------------------------- SendGrid

SENDGRID_KEY = (
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62gw+2fNNRaINXvVpiglS"
    "I8eNEc6wEA3F+g=="
)
SENDGRID_SIGNATURE = "MEUCIGHQVtGj+Y3LkG9fLcxf3qfI10QysgDWmMOVmxG0u6ZUAiEAyBiXDWzM+uOe5W0JuG+luQAbPIqHh89M15TluLtEZtM="
SENDGRID_SENT_AT = 1_600_112_502
SENDGRID_BODY = (
    b'[{"email":"hello@world.com","event":"dropped","reason":"Bounced Address",'
    b'"sg_event_id":"ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA",'
    b'"sg_message_id":"LRzXl_NHStOGhQ4kofSm_A.filterdrecv-p3mdw1-756b745b58-kmzbl-18-5F5FC76C-9.0",'
    b'"smtp-id":"<LRzXl_NHStOGhQ4kofSm_A@ismtpd0039p1iad1.sendgrid.net>","timestamp":1600112492}]\r\n'
)


def sendgrid(
    body: bytes = SENDGRID_BODY,
    *,
    secrets: tuple[str, ...] = (SENDGRID_KEY,),
    now: float = SENDGRID_SENT_AT,
    timestamp: str = str(SENDGRID_SENT_AT),
    signature: str = SENDGRID_SIGNATURE,
) -> bool:
    ours = verifier("sendgrid", secrets=secrets, now=lambda: now)
    names = ("x-twilio-email-event-webhook-signature", "x-twilio-email-event-webhook-timestamp")
    return verified(ours, body, **dict(zip(names, (signature, timestamp), strict=True)))


def p256(private: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return base64.b64encode(private.public_key().public_bytes(serialization.Encoding.DER, form)).decode()


def test_the_public_example_of_sendgrid_verifies() -> None:
    assert sendgrid()
    other = p256(ec.generate_private_key(ec.SECP256R1()))
    assert sendgrid(secrets=(other, SENDGRID_KEY))
    assert not sendgrid(secrets=(other,))


@pytest.mark.parametrize("body", [*altered(SENDGRID_BODY), SENDGRID_BODY.rstrip(), b""], ids=short)
def test_another_body_is_refused_by_sendgrid(body: bytes) -> None:
    assert not sendgrid(body)


@pytest.mark.parametrize("timestamp", ["", "1600112503", "1600112502 ", "-1600112502", "x", "9" * 13])
def test_another_time_is_refused_by_sendgrid(timestamp: str) -> None:
    assert not sendgrid(timestamp=timestamp)


def test_a_signature_of_sendgrid_is_valid_for_a_day() -> None:
    assert sendgrid(now=SENDGRID_SENT_AT + 86_400)
    assert not sendgrid(now=SENDGRID_SENT_AT + 86_400 + 301)
    assert not sendgrid(now=SENDGRID_SENT_AT - 301), "it was sent in the future"


@pytest.mark.parametrize("signature", ["", "?", "AAAA", SENDGRID_SIGNATURE[:-4], SENDGRID_SIGNATURE[4:]])
def test_another_signature_of_sendgrid_is_refused(signature: str) -> None:
    assert not sendgrid(signature=signature)


@pytest.mark.parametrize("scheme", ["sendgrid", "telnyx"])
def test_an_invalid_public_key_is_refused_and_not_shown(scheme: str) -> None:
    for secret in ("hunter2", "aHVudGVyMg==", p256_of_another_curve(), "?" * 44):
        with pytest.raises(ConfigError, match=rf"secret 1\b.*'{scheme}'") as caught:
            verifier(scheme, secrets=[secret])
        assert secret not in str(caught.value)


def p256_of_another_curve() -> str:
    return p256(ec.generate_private_key(ec.SECP384R1()))


# ------------------------------------------------------------------------------------------------------------- Telnyx

TELNYX = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def ed25519_key(private: ed25519.Ed25519PrivateKey) -> str:
    return base64.b64encode(private.public_key().public_bytes_raw()).decode()


def telnyx(
    body: bytes = BODY,
    *,
    secrets: tuple[str, ...] = (ed25519_key(TELNYX),),
    now: float = NOW,
    timestamp: str = str(NOW),
    signs: Callable[[bytes], bytes] = TELNYX.sign,
) -> bool:
    signature = base64.b64encode(signs(str(NOW).encode() + b"|" + BODY)).decode()
    ours = verifier("telnyx", secrets=secrets, now=lambda: now)
    return verified(ours, body, **{"telnyx-signature-ed25519": signature, "telnyx-timestamp": timestamp})


def test_telnyx_signs_the_time_and_the_body() -> None:
    other = ed25519_key(ed25519.Ed25519PrivateKey.generate())
    assert telnyx()
    assert telnyx(secrets=(other, ed25519_key(TELNYX)))
    assert not telnyx(secrets=(other,))
    assert not telnyx(timestamp=str(NOW + 1))
    assert not telnyx(signs=lambda signed: TELNYX.sign(signed)[:-1])
    assert not telnyx(signs=lambda signed: b"")


@pytest.mark.parametrize("body", list(altered(BODY)), ids=short)
def test_another_body_is_refused_by_telnyx(body: bytes) -> None:
    assert not telnyx(body)


@pytest.mark.parametrize(("offset", "good"), [(-300, True), (300, True), (-301, False), (301, False)])
def test_a_signature_of_telnyx_is_good_for_five_minutes(offset: float, good: bool) -> None:
    assert telnyx(now=NOW + offset) is good


# ------------------------------------------------------------------------------------------------------------- Vonage

VONAGE = "vonage-signature-secret-of-32-bytes"


def token(claims: dict[str, Any] | list[Any], secret: str = VONAGE, alg: str = "HS256") -> str:
    def part(raw: bytes) -> str:
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    signed = f"{part(json.dumps({'typ': 'JWT', 'alg': alg}).encode())}.{part(json.dumps(claims).encode())}"
    return f"{signed}.{part(hmac.digest(secret.encode(), signed.encode(), 'sha256'))}"


def claims(**more: Any) -> dict[str, Any]:
    said = {"iat": NOW, "jti": "1", "iss": "Vonage", "payload_hash": hashlib.sha256(BODY).hexdigest(), "api_key": "k"}
    return {name: value for name, value in {**said, **more}.items() if value is not ...}


def vonage(
    body: bytes = BODY, *, given: str | None = None, secrets: tuple[str, ...] = (VONAGE,), now: float = NOW
) -> bool:
    ours = verifier("vonage", secrets=secrets, now=lambda: now)
    return verified(ours, body, authorization=f"Bearer {token(claims())}" if given is None else given)


def test_a_token_of_vonage_is_about_its_body() -> None:
    assert vonage()
    assert vonage(secrets=("another-one", VONAGE))
    assert not vonage(secrets=("another-one",))
    for body in altered(BODY):
        assert not vonage(body)


@pytest.mark.parametrize(
    "said",
    [
        claims(payload_hash=...),
        claims(payload_hash=""),
        claims(payload_hash=None),
        claims(payload_hash="0" * 64),
        claims(payload_hash="\udcff".encode("utf-8", "replace").decode()),
        claims(iat=...),
        claims(iat="now"),
        claims(iat=NOW - 86_400 - 301),
        claims(iat=NOW + 301),
        claims(exp=NOW - 301),
        [],
    ],
    ids=short,
)
def test_a_token_without_the_digest_of_the_body_is_refused(said: Any) -> None:
    assert not vonage(given=f"Bearer {token(said)}")


@pytest.mark.parametrize("alg", ["none", "HS512", "RS256", "hs256", ""])
def test_a_token_may_not_choose_how_it_is_checked(alg: str) -> None:
    assert not vonage(given=f"Bearer {token(claims(), alg=alg)}")


def test_an_invalid_token_is_refused() -> None:
    good = token(claims())
    unsigned = good.rpartition(".")[0]
    for given in (
        "",
        good,
        f"Bearer {unsigned}",
        f"Bearer {unsigned}.",
        f"Basic {good}",
        f"Bearer {good}.x",
        "Bearer a.b.c",
    ):
        assert not vonage(given=given)


def test_a_token_of_today_is_valid_for_a_retry() -> None:
    assert vonage(now=NOW + 86_400)
    assert not vonage(now=NOW + 86_400 + 301)


# --------------------------------------------------------------------------------------------------------------- Svix


def test_svix_headers_verify_like_webhook_headers() -> None:
    ours = verifier("standard-webhooks", secrets=[OLD], now=lambda: SENT_AT)
    said = {"id": ID, "timestamp": str(SENT_AT), "signature": BY_OLD}
    assert verified(ours, SVIX_BODY, **{f"svix-{name}": value for name, value in said.items()})
    assert not verified(ours, SVIX_BODY + b" ", **{f"svix-{name}": value for name, value in said.items()})
    for name in said:  # one from each family
        mixed = {f"{'webhook' if other == name else 'svix'}-{other}": value for other, value in said.items()}
        assert not verified(ours, SVIX_BODY, **mixed)


def test_only_twilio_proves_the_query() -> None:
    schemes = {
        "twilio": verifier("twilio", secrets=["12345"], url=URL),
        "sendgrid": verifier("sendgrid", secrets=[SENDGRID_KEY]),
        "telnyx": verifier("telnyx", secrets=[ed25519_key(TELNYX)]),
        "vonage": verifier("vonage", secrets=[VONAGE]),
        "standard-webhooks": verifier("standard-webhooks", secrets=[OLD]),
    }
    assert [name for name, one in schemes.items() if getattr(one, "covers_query", False)] == ["twilio"]
    assert not any(one.covers_headers for one in schemes.values())
