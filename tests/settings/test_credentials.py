"""Doctor finds static credentials that cannot be right, and never shows one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.settings.test_providers import HTTP, found
from tests.settings.writing import loaded

ACCOUNT = "AC" + "0f" * 16
SECRET_KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCY0123456789"
TWILIO = '[providers.p]\nkind = "twilio"\naccount = "{}"\ntoken = "env:KEY"\nsender = "+491"\n'
MAIL = '[providers.p]\nkind = "{}"\nsender = "a@example.com"\napi_key = "env:KEY"\n'
SES = (
    '[providers.p]\nkind = "ses"\nsender = "a@example.com"\nregion = "eu-central-1"\n'
    'access_key_id = "{}"\nsecret_access_key = "env:KEY"\n'
)
SMTP = (
    '[providers.p]\nkind = "smtp"\nhost = "mail.example.com"\nsender = "a@example.com"\n'
    'username = "u"\npassword = "env:KEY"\n'
)


def options_found(folder: Path, text: str, key: str) -> list[str]:
    """The options that a warning is about."""
    findings = found(loaded(folder, text, KEY=key, TW=key), "credentials")
    assert not any(key in one.what + one.change for one in findings), "no finding shows a value"
    return [one.what.partition(": ")[2].split()[0] for one in findings if one.level == "warning"]


@pytest.mark.parametrize("key", ["changeme", "CHANGE_ME", "todo", "xxxxxxxx", "<token>", "your-api-key", "********"])
def test_a_placeholder_is_found_for_every_kind(tmp_path: Path, key: str) -> None:
    for text, option in [
        (TWILIO.format(ACCOUNT), "token"),
        (MAIL.format("sendgrid"), "api_key"),
        (SMTP, "password"),
        (HTTP, "headers.x-api-key"),
    ]:
        assert options_found(tmp_path, text, key) == [option]


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        (MAIL.format("sendgrid"), "SG.abc.def", "re_abcdef"),
        (MAIL.format("resend"), "re_abcdef", "SG.abc.def"),
        (MAIL.format("brevo"), "xkeysib-0123", "SG.abc.def"),
        (SES.format("AKIA0123456789ABCDEF"), SECRET_KEY, "too-short"),
    ],
)
def test_a_malformed_credential_is_found(tmp_path: Path, text: str, right: str, wrong: str) -> None:
    assert options_found(tmp_path, text, right) == []
    assert len(options_found(tmp_path, text, wrong)) == 1


def test_the_account_of_twilio_and_the_key_id_of_aws_are_checked(tmp_path: Path) -> None:
    assert options_found(tmp_path, TWILIO.format(ACCOUNT), "0f" * 16) == []
    assert options_found(tmp_path, TWILIO.format("AC1"), "0f" * 16) == ["account"]
    assert options_found(tmp_path, SES.format("ASIA0123456789ABCDEF"), SECRET_KEY) == ["access_key_id"]
    sample = SES.format("AKIAIOSFODNN7EXAMPLE")
    assert options_found(tmp_path, sample, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY") == [
        "access_key_id",
        "secret_access_key",
    ], "those of the public documentation"


def test_credentials_for_a_custom_url_may_have_any_form(tmp_path: Path) -> None:
    text = MAIL.format("sendgrid") + 'url = "http://127.0.0.1:1/"\n'
    assert options_found(tmp_path, text, "any-form") == []
    assert options_found(tmp_path, text, "changeme") == ["api_key"]
