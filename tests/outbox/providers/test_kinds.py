"""Providers from settings: every invalid option is named before anything is sent, without a secret."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.outbox.providers.kits import mail, text

from semel.providers.options import CONTRACT_FIELDS, options_of, parse_options
from semel.providers.registry import KINDS, provider
from semel.testing.provider_laws import dispatch_of
from semel.values.delivery_state import Answer, Refused
from semel.values.errors import ConfigError
from semel.values.notification import CHANNELS
from semel.values.secret import Secret

SECRET = Secret("do-not-show-me")
TWILIO = {"account": "AC1", "token": SECRET, "sender": "+490"}
GENESYS = {"client_id": "c", "client_secret": SECRET, "region": "mypurecloud.de"}
CXONE = {
    "url": "https://api.example.test",
    "token_url": "https://auth.example.test/token",
    "access_key_id": "k",
    "access_key_secret": SECRET,
}
HTTP = {"url": "https://api.example.test/messages"}
LEAST: dict[str, dict[str, Any]] = {
    "twilio": TWILIO,
    "genesys": GENESYS,
    "genesys-email": GENESYS,
    "genesys-contacts": {**GENESYS, "contact_list": "l"},
    "genesys-callback": {**GENESYS, "queue": "q"},
    "genesys-keyed": GENESYS,
    "cxone": {**CXONE, "channel": "c"},
    "cxone-events": CXONE,
    "sendgrid": {"api_key": SECRET},
    "ses": {"region": "eu-central-1"},
    "resend": {"api_key": SECRET},
    "telnyx": {"api_key": SECRET},
    "brevo": {"api_key": SECRET},
    "vonage": {"api_key": "k", "api_secret": SECRET},
    "smtp": {"host": "mail.example.test"},
    "http": HTTP,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_needs_only_its_required_options(kind: str) -> None:
    async def story() -> None:
        made = provider(kind, "mine", LEAST[kind])
        assert made.contract.name == "mine"
        assert made.contract.channels
        assert set(made.contract.channels) <= set(CHANNELS)
        await made.close()

    asyncio.run(story())
    required = [name for name, option in options_of(KINDS[kind].OPTIONS).items() if option.required]
    for name in required:
        with pytest.raises(ConfigError, match=f"{name}.*missing"):
            provider(kind, "mine", {other: value for other, value in LEAST[kind].items() if other != name})


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_has_a_description_and_a_help_text(kind: str) -> None:
    for name, option in options_of(KINDS[kind].OPTIONS).items():
        assert option.description, name
        assert option.help, name
        with pytest.raises(ConfigError, match=f"{name}: expected"):
            parse_options(KINDS[kind].OPTIONS, "mine", kind, {**LEAST[kind], name: object()})


@pytest.mark.parametrize(
    ("kind", "more", "names"),
    [
        ("pigeon", {}, "'pigeon' twilio genesys"),
        ("twilio", {"sendr": "+1"}, "'sendr' 'sender'"),
        ("twilio", {"xyz": 1}, "'xyz' account allow"),
        ("twilio", {"token": "plain"}, "token env:NAME file:path"),
        ("twilio", {"timeout": 0}, "timeout number 0"),
        ("twilio", {"timeout": True}, "timeout number 0"),
        ("twilio", {"timeout": float("nan")}, "timeout number 0"),
        ("twilio", {"policy": "hope"}, "policy hold presume_sent resend give_up"),
        ("twilio", {"channels": ["pigeon"]}, "channels sms email"),
        ("genesys", {"channels": ["sms", "email"]}, "channels sms message email"),
        ("twilio", {"refusals": [99]}, "refusals HTTP status"),
        ("twilio", {"refusals": [500], "retriable": [500]}, "500 refusals retriable"),
        ("twilio", {"url": "ftp://x"}, "url https://"),
        ("genesys", {"region": ""}, "region"),
        ("cxone", {"client_id": "c"}, "client_id client_secret"),
        ("cxone", {"body": {"to": "{recipent}"}}, "'{recipent}'"),
        ("resend", {"key_window": 90_000}, "key_window 86400"),
        ("brevo", {"key_window": 1_000}, "key_window 900"),
        ("ses", {"access_key_id": "k"}, "access_key_id secret_access_key"),
        ("smtp", {"username": "u"}, "username password"),
        ("smtp", {"username": "u", "password": SECRET, "tls": "off"}, "password tls"),
        ("http", {"key_window": 60}, "key_window key_header key_path"),
        ("http", {"key_header": "K", "key_path": "k"}, "key_header key_path"),
        ("http", {"body": {"a": "{b"}}, "'{'"),
        ("http", {"headers": {"X-Key": "plain"}}, "headers secret"),
        ("http", {"headers": {"X Key": SECRET}}, "headers secret"),
        ("http", {"key_header": "Idempotency Key"}, "key_header"),
        ("http", {"key_header": "Host"}, "key_header"),
        ("http", {"report_words": {"ok": "great"}}, "report_words"),
        ("http", {"method": "GET"}, "method POST PUT PATCH"),
    ],
)
def test_an_invalid_option_is_named_in_the_error(kind: str, more: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        provider(kind, "mine", {**LEAST.get(kind, {}), **more})
    assert [name for name in names.split() if name not in str(wrong.value)] == []
    assert "mine" in str(wrong.value) or kind == "ses"
    assert SECRET.reveal() not in str(wrong.value)
    assert "plain" not in str(wrong.value)


def test_options_change_the_contract() -> None:
    known = {"timeout": 3, "per_second": 5, "concurrency": 2, "policy": "resend", "policy_after": 60, "settle": 9}
    made = provider("twilio", "mine", {**TWILIO, **known, "refusals": [400], "retriable": [503], "channels": ["sms"]})
    contract = made.contract
    assert {name: getattr(contract, CONTRACT_FIELDS[name]) for name in known} == known
    assert (contract.refusals, contract.retriable) == (frozenset({400}), frozenset({503}))


def test_a_request_of_another_kind_is_not_sent() -> None:
    """A name has changed its kind while a message was on its way."""

    async def story() -> list[Answer]:
        made = [provider(kind, "mine", LEAST[kind]) for kind in ("twilio", "smtp")]
        dispatches = dispatch_of(text("n")), dispatch_of(mail("n", sender="a@example.test"))
        requests = [one.prepare(dispatch) for one, dispatch in zip(made, dispatches, strict=True)]
        answers = [
            await one.send(dispatches[0], request) for one, request in zip(made, reversed(requests), strict=True)
        ]
        for one in made:
            await one.close()
        return answers

    for answer in asyncio.run(story()):
        assert isinstance(answer, Refused)
        assert "provider" in answer.reason
