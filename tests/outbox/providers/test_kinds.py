"""Providers from settings: every mistake is named before anything is sent, and no secret with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.outbox.providers.kits import mail, text

from semel.adapters.providers.given import PLAIN
from semel.adapters.providers.kinds import KINDS, provider
from semel.adapters.providers.options import Option
from semel.settings.secret import Secret
from semel.testing.provider_laws import dispatch_of
from semel.values.errors import ConfigError
from semel.values.notification import CHANNELS
from semel.values.sending import Answer, Refused

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
def test_a_kind_needs_no_more_than_it_says(kind: str) -> None:
    async def story() -> None:
        made = provider(kind, "mine", LEAST[kind])
        assert made.contract.name == "mine"
        assert made.contract.channels
        assert set(made.contract.channels) <= set(CHANNELS)
        await made.close()

    asyncio.run(story())
    needed = [name for name, option in KINDS[kind].options.items() if option.needed]
    for name in needed:
        with pytest.raises(ConfigError, match=f"{name} is missing"):
            provider(kind, "mine", {other: value for other, value in LEAST[kind].items() if other != name})


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_says_what_it_is(kind: str) -> None:
    for name, option in KINDS[kind].options.items():
        assert isinstance(option, Option), name
        assert option.says, name
        assert not option.form.holds(object()), name


@pytest.mark.parametrize(
    ("kind", "more", "says"),
    [
        ("pigeon", {}, "there is no kind 'pigeon': expected one of twilio, genesys"),
        ("twilio", {"sendr": "+1"}, "there is no option 'sendr': did you mean 'sender'"),
        ("twilio", {"xyz": 1}, "expected some of account, allow"),
        ("twilio", {"token": "plain"}, 'token: expected a secret: "env:NAME" or "file:path"'),
        ("twilio", {"timeout": 0}, "timeout: expected a number above 0"),
        ("twilio", {"timeout": True}, "timeout: expected a number above 0"),
        ("twilio", {"timeout": float("nan")}, "timeout: expected a number above 0"),
        ("twilio", {"policy": "hope"}, "policy: expected one of hold, presume_sent, resend, give_up"),
        ("twilio", {"channels": ["pigeon"]}, "channels: expected a list of sms, email"),
        ("genesys", {"channels": ["sms", "email"]}, "channels: it sends sms, message, not email"),
        ("twilio", {"refusals": [99]}, "refusals: expected a list of HTTP statuses"),
        ("twilio", {"refusals": [500], "retriable": [500]}, "500 is both in refusals and in retriable"),
        ("twilio", {"url": "ftp://x"}, "must begin with https://"),
        ("genesys", {"region": ""}, "region: expected a text"),
        ("cxone", {"client_id": "c"}, "client_id and client_secret belong together"),
        ("cxone", {"body": {"to": "{recipent}"}}, "'{recipent}' is no gap"),
        ("resend", {"key_window": 90_000}, "it honours a key for 86400 s"),
        ("brevo", {"key_window": 1_000}, "it honours a key for 900 s"),
        ("ses", {"access_key_id": "k"}, "belong together"),
        ("smtp", {"username": "u"}, "username and password belong together"),
        ("smtp", {"username": "u", "password": SECRET, "tls": "off"}, "a password needs tls"),
        ("http", {"key_window": 60}, "key_window needs key_header or key_path"),
        ("http", {"key_header": "K", "key_path": "k"}, "key_header or key_path, not both"),
        ("http", {"body": {"a": "{b"}}, "'{' is no gap"),
        ("http", {"headers": {"X-Key": "plain"}}, "headers: expected an object of secrets"),
        ("http", {"headers": {"X Key": SECRET}}, "headers: expected an object of secrets"),
        ("http", {"key_header": "Idempotency Key"}, "key_header is no name of a header"),
        ("http", {"key_header": "Host"}, "key_header is no name of a header"),
        ("http", {"report_words": {"ok": "great"}}, "report_words: expected an object with the meaning"),
        ("http", {"method": "GET"}, "method: expected one of POST, PUT, PATCH"),
    ],
)
def test_a_mistake_is_named(kind: str, more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        provider(kind, "mine", {**LEAST.get(kind, {}), **more})
    assert says in str(wrong.value)
    assert "mine" in str(wrong.value) or kind == "ses"
    assert SECRET.reveal() not in str(wrong.value)
    assert "plain" not in str(wrong.value)


def test_what_a_person_knows_better_is_in_the_contract() -> None:
    known = {"timeout": 3, "per_second": 5, "concurrency": 2, "policy": "resend", "policy_after": 60, "settle": 9}
    made = provider("twilio", "mine", {**TWILIO, **known, "refusals": [400], "retriable": [503], "channels": ["sms"]})
    contract = made.contract
    assert {name: getattr(contract, PLAIN[name]) for name in known} == known
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
        assert "another provider" in answer.reason
