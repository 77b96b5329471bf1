"""Builds the verifier of a scheme from its settings. Wrong settings raise an error at the start."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence

from semel.ports import Verifier
from semel.values.errors import ConfigError
from semel.verifiers.shared_secret import (
    API_KEY_HEADER,
    SIGNATURE_HEADER,
    BasicVerifier,
    GenesysVerifier,
    HmacHexVerifier,
    StaticHeaderVerifier,
)
from semel.verifiers.standard_webhooks import StandardWebhooksVerifier
from semel.verifiers.twilio import TwilioVerifier
from semel.verifiers.vonage import VonageVerifier

SCHEMES: dict[str, frozenset[str]] = {  # the settings that each scheme uses
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
    """Build the verifier of a scheme. Each secret verifies: to rotate, add the new one, then remove the old one.

    url: for twilio, the URL that Twilio calls. The caller passes the request's query as the header `twilio.QUERY`.
    fetch: for sns, downloads a certificate from an https URL of SNS. It returns the body of a 200, b"" for 403, 404 and
        410, and raises in all other cases. It checks the host's TLS certificate, follows no redirect and reads at most
        `sns.CERTIFICATE_MAX_BYTES`.
    """
    _check_settings(scheme, secrets=secrets, header=header, username=username, topics=topics, url=url)
    match scheme:
        case "genesys":
            return GenesysVerifier(_keys(scheme, secrets))
        case "standard-webhooks":
            return StandardWebhooksVerifier(_keys(scheme, secrets), now)
        case "hmac-hex":
            return HmacHexVerifier(_keys(scheme, secrets), _name(header) or SIGNATURE_HEADER)
        case "header":
            return StaticHeaderVerifier(_keys(scheme, secrets), _name(header) or API_KEY_HEADER)
        case "basic":
            return BasicVerifier(_keys(scheme, secrets), _user(username))
        case "twilio":
            return TwilioVerifier(_keys(scheme, secrets), url)
        case "vonage":
            return VonageVerifier(_keys(scheme, secrets), now)
        case "sendgrid" | "telnyx":
            _need_cryptography(scheme)
            from semel.verifiers import public_keys

            build = public_keys.SendGridVerifier if scheme == "sendgrid" else public_keys.TelnyxVerifier
            return build(_keys(scheme, secrets), now)
    if not topics:
        raise ConfigError("verify: scheme 'sns' needs `topics`, the ARNs to accept: anyone can create a topic")
    if fetch is None:
        raise ConfigError("verify: scheme 'sns' needs a way to `fetch` certificates")
    _need_cryptography(scheme)
    from semel.verifiers.sns import SnsVerifier

    return SnsVerifier(topics, fetch, now)


def _need_cryptography(scheme: str) -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"verify: scheme {scheme!r} needs cryptography: pip install 'semel[service]'") from error


def _check_settings(scheme: str, **settings: str | Sequence[str]) -> None:
    """Refuse a setting that the scheme ignores: it would give a false sense of security."""
    if scheme not in SCHEMES:
        raise ConfigError(f"verify: unknown scheme {scheme!r}; expected one of {', '.join(SCHEMES)}")
    for name, value in settings.items():
        if value and name not in SCHEMES[scheme]:
            raise ConfigError(f"verify: scheme {scheme!r} does not use `{name}`: remove it")
        if name in ("secrets", "topics") and isinstance(value, str):
            raise ConfigError(f"verify: `{name}` of scheme {scheme!r}: expected a list, got one text")


def _keys(scheme: str, secrets: Sequence[str]) -> list[bytes]:
    """Decode the secrets. An error names the position of a secret and never its value."""
    if not secrets:
        raise ConfigError(f"verify: scheme {scheme!r} needs `secrets`: set at least one")
    keys = []
    for number, secret in enumerate(secrets, 1):
        which = f"verify: secret {number} of scheme {scheme!r}"
        try:
            key = secret.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{which} is not UTF-8: write it in UTF-8") from None
        if not key.strip():
            raise ConfigError(f"{which} is empty: set the variable or file that it refers to, or remove it")
        if key != key.strip() or _CONTROL.search(key):
            raise ConfigError(
                f"{which} begins or ends with white space, or contains a line break or control character: remove it "
                "(an editor may have added a line break at the end of the file)"
            )
        keys.append(key)
    return keys


def _name(header: str) -> bytes:
    if header and not _HEADER.fullmatch(header):
        raise ConfigError(f"verify: header {header!r}: expected letters, digits and hyphens, for example X-Api-Key")
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
