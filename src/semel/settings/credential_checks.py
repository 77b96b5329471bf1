"""Finds static credentials of providers that cannot be right, without a request.

A provider has no harmless request for every kind of key, and a request with a wrong key may lock an account. So doctor
looks at the text of the key alone: placeholders, spaces, and the form that the provider's public reference shows. A
well-formed key may still be wrong; the provider's first answer then pauses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from semel.settings.findings import Finding
from semel.settings.schema import Provider, Settings
from semel.values.secret import Secret

PLACEHOLDER = re.compile(
    r"change[-_ ]?(me|it|this)|replace[-_ ]?me|to[-_ ]?do|tbd|placeholder|dummy|x{3,}|\*{3,}|…|\.{3}|<.*>|"
    r"(my|your)[-_ ].*|(insert|enter)[-_ ].*|.*(EXAMPLE|EXAMPLEKEY)",
    re.IGNORECASE | re.DOTALL,
)
FORMS: Mapping[tuple[str, str], tuple[re.Pattern[str], str]] = {  # by kind and option
    ("twilio", "account"): (re.compile(r"AC[0-9a-fA-F]{32}"), "AC and 32 hexadecimal digits"),
    ("sendgrid", "api_key"): (re.compile(r"SG\..+"), "a text that begins with SG."),
    ("resend", "api_key"): (re.compile(r"re_.+"), "a text that begins with re_"),
    ("telnyx", "api_key"): (re.compile(r"KEY.+"), "a text that begins with KEY"),
    ("brevo", "api_key"): (re.compile(r"xkeysib-.+"), "a text that begins with xkeysib-"),
    ("ses", "access_key_id"): (re.compile(r"AKIA[A-Z0-9]{16}"), "AKIA and 16 capital letters or digits"),
    ("ses", "secret_access_key"): (re.compile(r"[A-Za-z0-9/+=]{40}"), "40 letters, digits, / and +"),
}


def credential_findings(settings: Settings) -> Iterator[Finding]:
    """One warning for each credential that cannot be right. No finding shows a value."""
    for name, provider in settings.providers.items():
        for option, text in _credentials(provider):
            if problem := _problem(provider, option, text):
                what = f"provider {name}: {option} {problem}"
                yield Finding("warning", what, f"set {option} in [providers.{name}] to the one of your account")


def _credentials(provider: Provider) -> Iterator[tuple[str, str]]:
    for option, value in provider.options.items():
        if isinstance(value, Secret):
            yield option, value.reveal()
        elif isinstance(value, str) and (provider.kind, option) in FORMS:
            yield option, value
        elif isinstance(value, Mapping):
            yield from ((f"{option}.{header}", text) for header, text in _headers(value))


def _headers(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Headers that refer to a secret, without the name of their scheme."""
    for header, one in value.items():
        if isinstance(one, Secret) and one.reference:
            yield header, one.reveal().removeprefix("Bearer ")


def _problem(provider: Provider, option: str, text: str) -> str:
    if PLACEHOLDER.fullmatch(text):
        return "is a placeholder"
    if text != text.strip():
        return "begins or ends with a space or a line end"
    form = FORMS.get((provider.kind, option))
    if form is None or "url" in provider.options:  # an emulator, or a gateway with keys of its own
        return ""
    pattern, expected = form
    return "" if pattern.fullmatch(text) else f"does not have the form of such a key: expected {expected}"
