"""Standard Webhooks. The first vector is the one in the public test suites of its reference libraries; the second
secret's was made outside of Python:
    printf %s "$ID.$TIMESTAMP.$BODY" | openssl dgst -sha256 -mac HMAC -macopt hexkey:$KEY -binary | base64
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac

import pytest
from tests.service.verification.asking import altered, short, verified

from semel.values.errors import ConfigError
from semel.verifiers import shared_secret, verifier

OLD, NEW = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
SENT_AT = 1614265330
BODY = b'{"test": 2432232314}'
BY_OLD, BY_NEW = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", "v1,78nXHjpFP0tVJQW5D0SBwmVyyW87BV/rL6MgfM/Bw44="
FORGED = "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="


def asked(
    body: bytes = BODY,
    *,
    secrets: tuple[str, ...] = (OLD,),
    now: float = SENT_AT,
    message_id: str | bytes = ID,
    timestamp: str | bytes = str(SENT_AT),
    signature: str | bytes = BY_OLD,
) -> bool:
    ours = verifier("standard-webhooks", secrets=secrets, now=lambda: now)
    return verified(ours, body, webhook_id=message_id, webhook_timestamp=timestamp, webhook_signature=signature)


def test_the_public_example_verifies() -> None:
    assert asked()


@pytest.mark.parametrize(
    "signature", [BY_OLD, BY_NEW, f"{BY_OLD} {BY_NEW}", f"{FORGED} {BY_NEW}", f"{BY_OLD} {FORGED}"]
)
def test_one_good_signature_of_one_active_secret_is_enough(signature: str) -> None:
    assert asked(secrets=(OLD, NEW), signature=signature)


def test_a_removed_secret_verifies_nothing() -> None:
    assert not asked(secrets=(NEW,))
    assert not asked(secrets=(OLD,), signature=BY_NEW)


@pytest.mark.parametrize(
    "other", ["v1a,aGVsbG8=", "v2,xyz", "v1", "", "?", "v1,", "v1," + "A" * 43, "V1," + BY_OLD[3:]]
)
def test_signatures_of_another_version_are_skipped_and_prove_nothing(other: str) -> None:
    assert asked(signature=f"{other} {BY_OLD}")
    assert asked(signature=f"{BY_OLD} {other}")
    assert not asked(signature=other)


@pytest.mark.parametrize("offset", [-300, -299.5, 0, 299.5, 300])
def test_a_timestamp_within_five_minutes_is_good(offset: float) -> None:
    assert asked(now=SENT_AT + offset)


@pytest.mark.parametrize("offset", [-1e9, -301, -300.001, 300.001, 301, 1e9])
def test_a_timestamp_beyond_five_minutes_is_refused(offset: float) -> None:
    assert not asked(now=SENT_AT + offset)


@pytest.mark.parametrize(
    "timestamp",
    [
        "",
        "0",
        f"+{SENT_AT}",
        f"-{SENT_AT}",
        f" {SENT_AT}",
        f"{SENT_AT} ",
        f"{SENT_AT}\n",
        f"\t{SENT_AT}",
        "1_614_265_330",
        f"{SENT_AT}.0",
        f"{SENT_AT}.",
        "1.61426533e9",
        hex(SENT_AT),
        f"{SENT_AT}, {SENT_AT}",
        f"000{SENT_AT}",  # 13 digits
        "9" * 13,
        "9" * 5000,
        "inf",
        "nan",
        "".join(chr(ord(digit) + 0xFEE0) for digit in str(SENT_AT)).encode(),  # fullwidth digits
        "".join(chr(ord(digit) - ord("0") + 0x0660) for digit in str(SENT_AT)).encode(),  # Arabic-Indic digits
        f"{SENT_AT}²".encode(),
        b"\xff" * 10,
    ],
    ids=short,
)
def test_only_plain_digits_are_a_timestamp(timestamp: str | bytes) -> None:
    """Signed as it stands, so that nothing but its form can be the reason."""
    assert not asked(timestamp=timestamp, signature=sign(ID.encode(), raw(timestamp), BODY))


def test_leading_zeros_within_twelve_digits_are_still_that_time() -> None:
    assert asked(timestamp=f"00{SENT_AT}", signature=sign(ID.encode(), f"00{SENT_AT}".encode(), BODY))


@pytest.mark.parametrize(
    "message_id",
    ["", "a.b", ".", "a b", "a\n", "a, b", "a" * 256, "a" * 100_000, "é".encode(), b"\xff", b"\x00", b"\x7f"],
    ids=short,
)
def test_an_id_of_another_form_is_refused_although_signed(message_id: str | bytes) -> None:
    assert not asked(message_id=message_id, signature=sign(raw(message_id), str(SENT_AT).encode(), BODY))


def test_an_id_may_have_all_visible_characters_but_the_full_stop() -> None:
    visible = bytes(byte for byte in range(0x21, 0x7F) if byte != ord("."))
    assert asked(message_id=visible, signature=sign(visible, str(SENT_AT).encode(), BODY))
    assert asked(message_id=b"a" * 255, signature=sign(b"a" * 255, str(SENT_AT).encode(), BODY))


def test_the_signed_text_has_one_reading() -> None:
    """The same bytes with the full stops elsewhere: without the rule on ids, the second would verify."""
    body = str(SENT_AT).encode() + b".{}"
    signature = sign(b"a", str(SENT_AT).encode(), body)
    assert asked(body, message_id="a", signature=signature)
    assert not asked(b"{}", message_id=f"a.{SENT_AT}", signature=signature)


def test_a_body_an_id_or_a_time_that_was_altered_is_refused() -> None:
    assert not any(asked(body) for body in altered(BODY))
    assert not asked(message_id=ID + "x")
    assert not asked(timestamp=str(SENT_AT + 1))


@pytest.mark.parametrize(
    "signature", ["", " ", ",", "v1,g0hM9SsE", BY_OLD + ",", BY_OLD + "\n", BY_OLD + " " * 5000], ids=short
)
def test_a_signature_of_another_form_is_refused(signature: str) -> None:
    assert not asked(signature=signature)


def test_hex_is_no_signature_here() -> None:
    assert not asked(signature="v1,83484cf52b04f8e4cf2531adfed9882ad4b2665137b852442d594d20e2c9d4e1")


@pytest.mark.parametrize("missing", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_each_header_has_to_be_there(missing: str) -> None:
    headers = {b"webhook-id": ID.encode(), b"webhook-timestamp": b"%d" % SENT_AT, b"webhook-signature": BY_OLD.encode()}
    ours = verifier("standard-webhooks", secrets=[OLD], now=lambda: SENT_AT)
    assert asyncio.run(ours.verify(headers, BODY))
    del headers[missing.encode()]
    assert not asyncio.run(ours.verify(headers, BODY))


def test_every_secret_is_compared_with_every_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def counting(expected: bytes, given: bytes) -> bool:
        compared.append((expected, given))
        return expected == given

    monkeypatch.setattr(shared_secret, "compare_digest", counting)
    assert asked(secrets=(OLD, NEW), signature=f"{BY_OLD} {FORGED} {BY_NEW}")
    assert len(set(compared)) == 6


@pytest.mark.parametrize(
    "secret",
    [
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_",
        "whsec_not base64",
        "whsec_abc",
        "WHSEC_MfKQ",
        "whpk_MfKQ",
        "password",
    ],
)
def test_a_secret_of_another_form_is_a_configuration_error_that_does_not_show_it(secret: str) -> None:
    with pytest.raises(ConfigError, match=r"secret 2\b.*standard-webhooks.*whsec_") as caught:
        verifier("standard-webhooks", secrets=[OLD, secret])
    assert secret == "whsec_" or secret not in str(caught.value)


def raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def sign(message_id: bytes, timestamp: bytes, body: bytes) -> str:
    """For hostile forms: signed with the right secret, written with the standard library's other interface."""
    mac = hmac.new(base64.b64decode(OLD.removeprefix("whsec_")), digestmod=hashlib.sha256)
    for part in (message_id, b".", timestamp, b".", body):
        mac.update(part)
    return "v1," + base64.b64encode(mac.digest()).decode()
