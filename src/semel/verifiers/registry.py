"""Builds the verifier of a scheme from its settings. Wrong settings raise an error at the start."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence

from semel.ports import Verifier
from semel.values.errors import ConfigError
from semel.verifiers.shared_secret import API_KEY_HEADER, SIGNATURE_HEADER, Basic, Genesys, HmacHex, StaticHeader
from semel.verifiers.standard_webhooks import StandardWebhooks
from semel.verifiers.twilio import Twilio
from semel.verifiers.vonage import Vonage

SCHEMES: dict[str, frozenset[str]] = {  # and the settings that each one looks at
    "genesys": frozenset({"secrets"}),
    "standard-webhooks": frozenset({"secrets"}),
    "hmac-hex": frozenset({"secrets", "header"}),
    "header": frozenset({"secrets", "header"}),
    "basic": frozenset({"secrets", "username"}),
    "sns": frozenset({"topics"}),
    "twilio": frozenset({"secrets", "url"}),
    "sendgrid": frozenset({"secrets"}),
    "telnyx": frozenset({"secrets"}),
    "vonage": frozenset({"secrets"}),
}

_HEADER = re.compile(r"[A-Za-z0-9_-]{1,100}")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


def verifier(
    scheme: str,
    *,
    secrets: Sequence[str],
    header: str = "",
    username: str = "",
    topics: Sequence[str] = (),
    url: str = "",
    now: Callable[[], float] = time.time,
    fetch: Callable[[str], Awaitable[bytes]] | None = None,
) -> Verifier:
    """The verifier of a scheme. Any of the secrets verifies: add the new one, then remove the old one.

    `url` is for twilio: what it was told. Its verifier finds the query that came under `twilio.QUERY`.

    `fetch` is for sns. It gets https addresses of SNS only, and answers with what is there: the body of a 200, and
    nothing, b"", for 403, 404 and 410. In all other cases it raises. It checks the host's TLS certificate, follows no
    redirect and reads no more than `certificates.CERTIFICATE_MAX_BYTES`.
    """
    _check_settings(scheme, secrets=secrets, header=header, username=username, topics=topics, url=url)
    match scheme:
        case "genesys":
            return Genesys(_keys(scheme, secrets))
        case "standard-webhooks":
            return StandardWebhooks(_keys(scheme, secrets), now)
        case "hmac-hex":
            return HmacHex(_keys(scheme, secrets), _name(header) or SIGNATURE_HEADER)
        case "header":
            return StaticHeader(_keys(scheme, secrets), _name(header) or API_KEY_HEADER)
        case "basic":
            return Basic(_keys(scheme, secrets), _user(username))
        case "twilio":
            return Twilio(_keys(scheme, secrets), url)
        case "vonage":
            return Vonage(_keys(scheme, secrets), now)
        case "sendgrid" | "telnyx":
            return _by_public_key(scheme, _keys(scheme, secrets), now)
        case _:
            return _sns(topics, now, fetch)


def _check_settings(scheme: str, **settings: str | Sequence[str]) -> None:
    """Refuse a setting that the scheme ignores: it would give a false sense of security."""
    if scheme not in SCHEMES:
        raise ConfigError(f"verify: scheme {scheme!r} is not known; known are: {', '.join(SCHEMES)}")
    for name, value in settings.items():
        if value and name not in SCHEMES[scheme]:
            raise ConfigError(f"verify: scheme {scheme!r} does not look at `{name}`: remove it")
        if name in ("secrets", "topics") and isinstance(value, str):
            raise ConfigError(f"verify: `{name}` of scheme {scheme!r}: expected a list, got one text")


def _keys(scheme: str, secrets: Sequence[str]) -> list[bytes]:
    """Decode the secrets. An error names the position of a secret and never its value."""
    if not secrets:
        raise ConfigError(f"verify: scheme {scheme!r} needs `secrets`: give it at least one")
    keys = []
    for number, secret in enumerate(secrets, 1):
        which = f"verify: secret {number} of scheme {scheme!r}"
        try:
            key = secret.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{which} is not UTF-8: write it in UTF-8") from None
        if not key.strip():
            raise ConfigError(f"{which} is empty: fill in what its reference points to, or remove it")
        if key != key.strip() or _CONTROL.search(key):
            raise ConfigError(
                f"{which} has white space at an end, or a line break or control character in it: remove that "
                "(an editor may have ended the file with a line break)"
            )
        keys.append(key)
    return keys


def _name(header: str) -> bytes:
    if header and not _HEADER.fullmatch(header):
        raise ConfigError(f"verify: header {header!r}: expected letters, digits and hyphens, such as X-Api-Key")
    return header.lower().encode()


def _user(username: str) -> bytes:
    if not username:
        raise ConfigError("verify: scheme 'basic' needs a `username`")
    try:
        user = username.encode()
    except UnicodeEncodeError:
        user = b":"
    if b":" in user or _CONTROL.search(user):
        raise ConfigError(f"verify: username {username!r}: HTTP Basic allows no colon and no control character in it")
    return user


def _by_public_key(scheme: str, keys: Sequence[bytes], now: Callable[[], float]) -> Verifier:
    try:
        from semel.verifiers import public_keys
    except ImportError as error:
        raise ConfigError(f"verify: scheme {scheme!r} needs cryptography: pip install 'semel[service]'") from error
    return public_keys.SendGrid(keys, now) if scheme == "sendgrid" else public_keys.Telnyx(keys, now)


def _sns(topics: Sequence[str], now: Callable[[], float], fetch: Callable[[str], Awaitable[bytes]] | None) -> Verifier:
    if not topics:
        raise ConfigError("verify: scheme 'sns' needs `topics`: the ARNs to accept, since anyone can make a topic")
    if fetch is None:
        raise ConfigError("verify: scheme 'sns' needs a way to `fetch` certificates")
    try:
        from semel.verifiers.sns import Sns
    except ImportError as error:
        raise ConfigError("verify: scheme 'sns' needs cryptography: pip install 'semel[service]'") from error
    return Sns(topics, fetch, now)
