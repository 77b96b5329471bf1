"""The signatures of the storm, against values computed by hand and against the verifiers."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

from semel.cli.storm_load import Scheme, signer
from semel.values.errors import ConfigError
from semel.wiring import verifier

BODY = b'{"id":"1","text":"caf\xc3\xa9"}'
KEY = b64encode(b"0123456789abcdef0123456789abcdef").decode()


def sign(scheme: Scheme | None, secret: str, header: str = "") -> dict[bytes, bytes]:
    signed = signer(scheme, secret, header)(BODY, lambda: "msg_1")
    return {name.lower().encode(): value.encode() for name, value in signed.items()}


def test_nothing_is_signed_without_a_scheme() -> None:
    assert signer(None, "")(BODY, lambda: "x") == {}


def test_genesys_signs_in_base64_and_others_in_hex() -> None:
    mac = hmac.new(b"shh", BODY, hashlib.sha256)
    assert sign("genesys", "shh") == {b"x-hub-signature-256": b"sha256=" + b64encode(mac.digest())}
    assert sign("hmac-hex", "shh") == {b"x-hub-signature-256": b"sha256=" + mac.hexdigest().encode()}


def test_the_genesys_signature_of_a_known_vector() -> None:
    """HMAC-SHA256 of RFC 4231, test case 2."""
    signed = signer("genesys", "Jefe")(b"what do ya want for nothing?", lambda: "")
    digest = bytes.fromhex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843")
    assert signed == {"X-Hub-Signature-256": "sha256=" + b64encode(digest).decode()}


def test_standard_webhooks_sign_the_id_the_time_and_the_body() -> None:
    headers = sign("standard-webhooks", f"whsec_{KEY}")
    assert headers[b"webhook-id"] == b"msg_1"
    assert abs(int(headers[b"webhook-timestamp"]) - time.time()) < 60
    content = b"msg_1." + headers[b"webhook-timestamp"] + b"." + BODY
    mac = hmac.new(b64decode(KEY), content, hashlib.sha256).digest()
    assert headers[b"webhook-signature"] == b"v1," + b64encode(mac)


def test_a_static_header_has_the_given_or_the_default_name() -> None:
    assert sign("header", "token") == {b"x-api-key": b"token"}
    assert sign("header", "Bearer token", "Authorization") == {b"authorization": b"Bearer token"}
    assert sign("basic", "anna:secret") == {b"authorization": b"Basic YW5uYTpzZWNyZXQ="}


@pytest.mark.parametrize(
    ("scheme", "secret", "header", "verified_with"),
    [
        ("genesys", "shh", "", {}),
        ("standard-webhooks", f"whsec_{KEY}", "", {}),
        ("hmac-hex", "shh", "", {}),
        ("hmac-hex", "shh", "X-Signature", {"header": "X-Signature"}),
        ("header", "shh", "", {}),
        ("basic", "anna:shh", "", {"username": "anna", "secrets": ["shh"]}),
    ],
)
def test_the_verifiers_accept_every_scheme(
    scheme: Scheme, secret: str, header: str, verified_with: dict[str, Any]
) -> None:
    verify = verifier(scheme, **{"secrets": [secret], **verified_with}).verify
    signed = sign(scheme, secret, header)
    assert asyncio.run(verify(signed, BODY)) is True
    other = {name: value if name == b"webhook-id" else value + b"x" for name, value in signed.items()}
    assert asyncio.run(verify(other, BODY)) is False


def test_a_secret_can_be_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_SECRET", "shh")
    (tmp_path / "secret").write_text("shh\n")
    assert sign("genesys", "env:THE_SECRET") == sign("genesys", f"file:{tmp_path}/secret") == sign("genesys", "shh")


@pytest.mark.parametrize(
    ("scheme", "secret", "header", "word"),
    [
        (None, "x", "", "--scheme"),
        ("genesys", "", "", "--secret"),
        ("genesys", "env:NO_SUCH_VARIABLE", "", "env:NO_SUCH_VARIABLE"),
        ("genesys", "file:/no/such/file", "", "No such file"),
        ("genesys", "x", "X-Other", "--header"),
        ("standard-webhooks", "not base64!", "", "base64"),
        ("basic", "nocolon", "", "user:password"),
        ("header", "x", "Bad Name", "Bad Name"),
        ("header", "two\r\nlines", "", "printable"),
    ],
)
def test_invalid_options_are_reported_without_the_secret(
    scheme: Scheme | None, secret: str, header: str, word: str
) -> None:
    with pytest.raises(ConfigError, match=word) as error:
        signer(scheme, secret, header)
    assert len(secret) < 2 or secret.startswith(("env:", "file:")) or secret not in str(error.value)
