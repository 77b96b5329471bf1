"""What cannot be meant is told at the start: else each message would find out, and fail or be in doubt for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from semel.adapters.providers.generic import Generic
from semel.adapters.providers.kinds import provider
from semel.adapters.wire.answers import Answered
from semel.settings.secret import Secret
from semel.values.errors import ConfigError
from semel.values.sending import Accepted, Refused

KEY = Secret("a-long-secret")
HTTP = {"url": "https://example.test/messages"}


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("smtp", {"host": "mail.example.test", "port": 70_000}, "port: expected a port"),
        ("smtp", {"host": "mail example"}, "host: expected a text of letters"),
        ("smtp", {"host": "mail.example.test", "domain": "x> y"}, "domain: expected a text of letters"),
        ("smtp", {"host": "mail.example.test", "sender": "Our shop"}, "sender: expected an address"),
        ("sendgrid", {"api_key": KEY, "sender": "Shop <shop>"}, "sender: expected an address"),
        ("sendgrid", {"api_key": KEY, "path": "v3/mail/send"}, "path: expected a path that begins with /"),
        ("telnyx", {"api_key": KEY, "path": "@elsewhere.test/"}, "path: expected a path that begins with /"),
        ("ses", {"region": "eu/../x"}, "region: expected a text of letters"),
        (
            "genesys",
            {"region": "a.test/?", "client_id": "c", "client_secret": KEY},
            "region: expected a text of letters",
        ),
        ("http", {**HTTP, "allow": ["*"]}, "allow: expected a list of hosts, or of ranges"),
        ("http", {**HTTP, "allow": ["10.0.0.0/99"]}, "allow: expected a list of hosts, or of ranges"),
        ("http", {**HTTP, "allow": [10]}, "allow: expected a list of hosts, or of ranges"),
        ("http", {**HTTP, "allow": [True]}, "allow: expected a list of hosts, or of ranges"),
        (
            "http",
            {**HTTP, "headers": {"idempotency-key": KEY}, "key_header": "Idempotency-Key"},
            "key_header is one of its headers too",
        ),
    ],
)
def test_what_cannot_be_meant_is_told(kind: str, options: Mapping[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        provider(kind, "p", options)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("smtp", {"host": "::1", "port": 65_535, "domain": "example.test", "sender": "Our shop <shop@example.test>"}),
        ("ses", {"region": "eu-central-1"}),
        ("sendgrid", {"api_key": KEY, "path": "/v3/mail/send", "allow": ["10.0.0.0/8", "fd00::/8", "::1", "a.test"]}),
    ],
)
def test_what_can_is_taken(kind: str, options: Mapping[str, Any]) -> None:
    provider(kind, "p", options)


def test_a_2xx_that_the_settings_call_a_refusal_is_one() -> None:
    made = provider("http", "p", {**HTTP, "accepted": [202], "refusals": [200], "retriable": [204, 429]})
    assert isinstance(made, Generic)
    assert isinstance(made.judge_status(Answered(202, b"")), Accepted)
    assert made.judge_status(Answered(200, b"no")) == Refused("200: no", final=True)
    assert made.judge_status(Answered(204, b"")) == Refused("204")
    plain = provider("http", "p", {**HTTP, "refusals": [203]})
    assert isinstance(plain, Generic)
    assert plain.judge_status(Answered(203, b"")) == Refused("203", final=True)
    assert isinstance(plain.judge_status(Answered(200, b"")), Accepted)
