"""Settings that cannot work are refused at the start, with what to change, and without showing a secret."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any, get_args

import msgspec
import pytest

from semel.settings.schema import Verify
from semel.values.errors import ConfigError
from semel.verifiers import SCHEMES, verifier

TOPIC = "arn:aws:sns:eu-central-1:123456789012:events"
WITH_SECRETS = [scheme for scheme, settings in SCHEMES.items() if "secrets" in settings]


async def fetch(url: str) -> bytes:
    return b""


def settings(scheme: str, **more: Any) -> dict[str, Any]:
    """What the scheme needs besides its secrets."""
    return {"secrets": [], **({"username": "u"} if scheme == "basic" else {}), **more}


def test_every_scheme_of_the_settings_has_a_verifier() -> None:
    (scheme,) = [field.type for field in msgspec.structs.fields(Verify) if field.name == "scheme"]
    assert {*SCHEMES, "none"} == set(get_args(scheme))


@pytest.mark.parametrize("scheme", WITH_SECRETS)
def test_without_a_secret_there_is_no_verifier(scheme: str) -> None:
    with pytest.raises(ConfigError, match=f"'{scheme}'.*`secrets`"):
        verifier(scheme, **settings(scheme))


@pytest.mark.parametrize("scheme", WITH_SECRETS)
@pytest.mark.parametrize("empty", ["", " ", "\n"])
def test_an_empty_secret_is_refused_also_beside_good_ones(scheme: str, empty: str) -> None:
    with pytest.raises(ConfigError, match=rf"secret 2\b.*'{scheme}'"):
        verifier(scheme, **settings(scheme, secrets=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", empty]))


@pytest.mark.parametrize("scheme", WITH_SECRETS)
@pytest.mark.parametrize("secret", ["hunter2\n", " hunter2", "hunter2\t", "hun\nter2", "hun\x00ter2", "hun\udcffter2"])
def test_a_secret_that_a_header_or_a_file_would_change_is_refused_and_not_shown(scheme: str, secret: str) -> None:
    with pytest.raises(ConfigError, match=rf"secret 1\b.*'{scheme}'") as caught:
        verifier(scheme, **settings(scheme, secrets=[secret]))
    assert "ter2" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, "the cause would show it"


@pytest.mark.parametrize("scheme", ["", "none", "Genesys", "sha256"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(scheme: str) -> None:
    with pytest.raises(ConfigError, match=f"'{scheme}'.*{', '.join(SCHEMES)}"):
        verifier(scheme, secrets=["s"])


@pytest.mark.parametrize(
    ("scheme", "stranger"),
    [
        ("genesys", {"header": "X-Signature"}),
        ("standard-webhooks", {"header": "X-Signature"}),
        ("basic", {"header": "Authorization"}),
        ("header", {"username": "u"}),
        ("hmac-hex", {"topics": [TOPIC]}),
        ("vonage", {"url": "https://example.com/callbacks"}),
        ("sns", {"topics": [TOPIC], "secrets": ["s"]}),
    ],
)
def test_a_setting_that_the_scheme_does_not_look_at_is_refused(scheme: str, stranger: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"'{scheme}'.*`({'|'.join(stranger)})`"):
        verifier(scheme, **{"secrets": ["s"], "fetch": fetch, **stranger})


@pytest.mark.parametrize("header", ["X Api Key", "X-Api-Key:", "Kö-nig", "x\n", "x" * 101, "(x)"])
def test_an_invalid_header_is_refused(header: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"header {header!r}")):
        verifier("header", secrets=["s"], header=header)


def test_basic_needs_a_user_without_a_colon() -> None:
    with pytest.raises(ConfigError, match=r"'basic'.*`username`"):
        verifier("basic", secrets=["s"])
    for username in ("a:b", "a\n", "a\udcff"):
        with pytest.raises(ConfigError, match=re.escape(f"username {username!r}")):
            verifier("basic", secrets=["s"], username=username)


def test_one_text_is_no_list_of_secrets() -> None:
    """Each of its letters would be a secret."""
    with pytest.raises(ConfigError, match=r"`secrets`.*'genesys'.*list"):
        verifier("genesys", secrets="secret")
    with pytest.raises(ConfigError, match=r"`topics`.*'sns'.*list"):
        verifier("sns", secrets=[], topics=TOPIC, fetch=fetch)


def test_sns_needs_topics_and_a_way_to_fetch() -> None:
    with pytest.raises(ConfigError, match=r"'sns'.*`topics`"):
        verifier("sns", secrets=[], fetch=fetch)
    with pytest.raises(ConfigError, match=r"'sns'.*`fetch`"):
        verifier("sns", secrets=[], topics=[TOPIC])


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "*",
        "events",
        "arn:aws:sns:eu-central-1:123456789012:*",
        "arn:aws:sns:*:123456789012:events",
        "arn:aws:sqs:eu-central-1:123456789012:events",
        "arn:aws:sns:eu-central-1:1234:events",
        "arn:aws:sns:s3-us-west-2:123456789012:events",  # sns.s3-us-west-2.amazonaws.com is a bucket called "sns"
        "arn:aws:sns:s3:123456789012:events",
        "arn:aws:sns:eu-central-1.evil.com/:123456789012:events",
        "arn:aws:sns:eu-central-1:123456789012:events:0b5e0c7e-subscription",
        "arn:aws-moon:sns:eu-central-1:123456789012:events",
        f"{TOPIC}\n",
    ],
)
def test_a_topic_is_a_whole_arn(topic: str) -> None:
    with pytest.raises(ConfigError, match=r"topic.*ARN"):
        verifier("sns", secrets=[], topics=[TOPIC, topic], fetch=fetch)


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_only_some_schemes_need_cryptography_and_the_error_names_the_package() -> None:
    code = f"""
import sys
sys.modules["cryptography"] = None  # as if it were not installed
from semel.verifiers import verifier
from semel.values.errors import ConfigError
verifier("genesys", secrets=["s"])
try:
    verifier("sns", secrets=[], topics=[{TOPIC!r}], fetch=print)
except ConfigError as error:
    print(error)
"""
    assert "semel[service]" in python(code)


def test_the_other_schemes_do_not_load_cryptography() -> None:
    code = "import sys, semel.verifiers as v; v.verifier('genesys', secrets=['s']); "
    code += "print('cryptography' in sys.modules)"
    assert python(code).strip() == "False"
