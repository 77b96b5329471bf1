"""Invalid options are reported at start-up. Otherwise each message would fail or become uncertain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from semel.http_client.client import Answered
from semel.providers.generic import Generic
from semel.providers.registry import provider
from semel.values.delivery_state import Accepted, Refused
from semel.values.errors import ConfigError
from semel.values.secret import Secret

KEY = Secret("a-long-secret")
HTTP = {"url": "https://example.test/messages"}


@pytest.mark.parametrize(
    ("kind", "options", "names"),
    [
        ("smtp", {"host": "mail.example.test", "port": 70_000}, "port"),
        ("smtp", {"host": "mail example"}, "host"),
        ("smtp", {"host": "mail.example.test", "domain": "x> y"}, "domain"),
        ("smtp", {"host": "mail.example.test", "sender": "Our shop"}, "sender address"),
        ("sendgrid", {"api_key": KEY, "sender": "Shop <shop>"}, "sender address"),
        ("sendgrid", {"api_key": KEY, "path": "v3/mail/send"}, "path /"),
        ("telnyx", {"api_key": KEY, "path": "@elsewhere.test/"}, "path /"),
        ("ses", {"region": "eu/../x"}, "region"),
        (
            "genesys",
            {"region": "a.test/?", "client_id": "c", "client_secret": KEY},
            "region",
        ),
        ("http", {**HTTP, "allow": ["*"]}, "allow hosts ranges"),
        ("http", {**HTTP, "allow": ["10.0.0.0/99"]}, "allow hosts ranges"),
        ("http", {**HTTP, "allow": [10]}, "allow hosts ranges"),
        ("http", {**HTTP, "allow": [True]}, "allow hosts ranges"),
        (
            "http",
            {**HTTP, "headers": {"idempotency-key": KEY}, "key_header": "Idempotency-Key"},
            "key_header headers",
        ),
    ],
)
def test_invalid_options_are_reported(kind: str, options: Mapping[str, Any], names: str) -> None:
    with pytest.raises(ConfigError) as error:
        provider(kind, "p", options)
    assert [name for name in names.split() if name not in str(error.value)] == []


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("smtp", {"host": "::1", "port": 65_535, "domain": "example.test", "sender": "Our shop <shop@example.test>"}),
        ("ses", {"region": "eu-central-1"}),
        ("sendgrid", {"api_key": KEY, "path": "/v3/mail/send", "allow": ["10.0.0.0/8", "fd00::/8", "::1", "a.test"]}),
    ],
)
def test_valid_options_are_accepted(kind: str, options: Mapping[str, Any]) -> None:
    provider(kind, "p", options)


def test_a_2xx_that_the_settings_call_a_refusal_is_one() -> None:
    made = provider("http", "p", {**HTTP, "accepted": [202], "refusals": [200], "retriable": [204, 429]})
    assert isinstance(made, Generic)
    assert isinstance(made.classify_status(Answered(202, b"")), Accepted)
    assert made.classify_status(Answered(200, b"no")) == Refused("200: no", final=True)
    assert made.classify_status(Answered(204, b"")) == Refused("204")
    plain = provider("http", "p", {**HTTP, "refusals": [203]})
    assert isinstance(plain, Generic)
    assert plain.classify_status(Answered(203, b"")) == Refused("203", final=True)
    assert isinstance(plain.classify_status(Answered(200, b"")), Accepted)
