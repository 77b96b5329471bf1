"""All provider kinds by name, and the creation of a provider from its options.

    provider("twilio", "sms-eu", {"account": "AC…", "token": Secret(…), "sender": "+49…"})

Options are checked at start-up. Defaults follow the providers' public references, which docs/providers.md names; they
have not been tried against live accounts. "Unverified" marks defaults that no reference confirms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from semel.ports import Provider
from semel.providers import cxone, genesys
from semel.providers.brevo import Brevo
from semel.providers.generic import Generic
from semel.providers.options import ProviderOptions, contract_of, options_of, parse_options
from semel.providers.resend import Resend
from semel.providers.sendgrid import SendGrid
from semel.providers.ses import Ses
from semel.providers.smtp import Smtp
from semel.providers.telnyx import Telnyx
from semel.providers.twilio import Twilio
from semel.providers.vonage import Vonage
from semel.values.delivery_state import Contract
from semel.values.errors import ConfigError


class ProviderKind(Protocol):
    """A provider class: its built-in contract, its options, and its constructor."""

    @property
    def CONTRACT(self) -> Contract: ...  # noqa: N802  # a class constant

    @property
    def OPTIONS(self) -> type[ProviderOptions]: ...  # noqa: N802  # a class constant

    def __call__(self, options: Any, contract: Contract) -> Provider: ...


KINDS: Mapping[str, ProviderKind] = {
    "twilio": Twilio,
    "genesys": genesys.GenesysMessage,
    "genesys-email": genesys.GenesysEmail,
    "genesys-contacts": genesys.GenesysContacts,
    "genesys-callback": genesys.GenesysCallback,
    "genesys-keyed": genesys.GenesysKeyed,
    "cxone": cxone.CxoneDigital,
    "cxone-events": cxone.CxoneEvents,
    "sendgrid": SendGrid,
    "ses": Ses,
    "resend": Resend,
    "telnyx": Telnyx,
    "brevo": Brevo,
    "vonage": Vonage,
    "smtp": Smtp,
    "http": Generic,
}
"""To add a kind, add its module, its entry here, its dialect in the simulator and its entry in the contract test."""


def provider(kind: str, name: str, options: Mapping[str, Any]) -> Provider:
    """Create the provider that the settings name `name`. Raises ConfigError."""
    if (known := KINDS.get(kind)) is None:
        raise ConfigError(f"provider {name!r}: there is no kind {kind!r}: expected one of {', '.join(KINDS)}")
    parsed = parse_options(known.OPTIONS, name, kind, options)
    return known(parsed, contract_of(known.CONTRACT, name, parsed))


def option_types(kind: str) -> Mapping[str, Any]:
    """The annotated type of each option of a kind. Empty for an unknown kind."""
    known = KINDS.get(kind)
    return {} if known is None else {name: option.type for name, option in options_of(known.OPTIONS).items()}
