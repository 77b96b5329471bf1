"""Signs what the storm sends, as its sender would. Written from the sender's side: nothing here verifies."""

from __future__ import annotations

import hmac
import os
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

from semel.values.errors import ConfigError

Scheme = Literal["genesys", "standard-webhooks", "hmac-hex", "header", "basic"]

Sign: TypeAlias = Callable[[bytes, Callable[[], str]], bytes]
"""The fields of the head, each with its line end, that vouch for a body. Few schemes ask for the id of the message."""

HUB = "X-Hub-Signature-256"


def signer(scheme: Scheme | None, secret: str, header: str = "") -> Sign:
    """How to sign. `secret` may be a reference, "env:NAME" or "file:path", as in semel.toml."""
    if scheme is None:
        if secret or header:
            raise ConfigError("--secret and --header need a --scheme beside them")
        return lambda body, message: b""
    if header and scheme not in ("hmac-hex", "header"):
        raise ConfigError(f"--header: --scheme {scheme} has its own; only hmac-hex and header can have another")
    value = _resolved(secret)
    _check_field(header, value if scheme == "header" else "")
    match scheme:
        case "genesys":
            return lambda body, message: _line(HUB, b"sha256=" + b64encode(_mac(value.encode(), body)))
        case "hmac-hex":
            return lambda body, message: _line(header or HUB, b"sha256=" + _mac(value.encode(), body).hex().encode())
        case "standard-webhooks":
            return _standard(value)
        case "header":
            fixed = _line(header or "X-Api-Key", value.encode())
        case "basic":
            if ":" not in value:
                raise ConfigError("--secret: for --scheme basic it is the user and the password, user:password")
            fixed = _line("Authorization", b"Basic " + b64encode(value.encode()))
    return lambda body, message: fixed


def _standard(secret: str) -> Sign:
    try:
        key = b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        raise ConfigError("--secret: a Standard Webhooks secret is base64, usually after whsec_") from None

    def sign(body: bytes, message: Callable[[], str]) -> bytes:
        own_id, now = message(), int(time.time())
        signature = b64encode(_mac(key, f"{own_id}.{now}.".encode() + body))
        stamp = f"webhook-id: {own_id}\r\nwebhook-timestamp: {now}\r\n".encode()
        return stamp + _line("webhook-signature", b"v1," + signature)

    return sign


def _mac(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, "sha256")


def _line(name: str, value: bytes) -> bytes:
    return b"%b: %b\r\n" % (name.encode(), value)


def _resolved(secret: str) -> str:
    kind, _, place = secret.partition(":")
    if kind == "env":
        secret = os.environ.get(place, "")
    elif kind == "file":
        try:
            secret = Path(place).read_text("utf-8").strip()
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"--secret {kind}:{place}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if not secret:
        where = f" {kind}:{place}: it is empty or not set" if kind in ("env", "file") else ": a scheme needs one"
        raise ConfigError(f"--secret{where}")
    return secret


def _check_field(name: str, value: str) -> None:
    if name and not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
        raise ConfigError(f"--header {name!r}: that is no name of a header")
    if not re.fullmatch(r"[ -~]*", value):
        raise ConfigError("--secret: a header can only hold printable ASCII")
