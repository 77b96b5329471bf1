"""Every kind of provider by its name, with its options. The one place that puts a provider together from settings.

Options are checked here, by name and type, before anything is sent: a wrong one says what is expected. Secrets are
objects with `reveal`, so that they are in no error and in no repr.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from semel.adapters.providers import cxone, genesys
from semel.adapters.providers.auth import Basic, Headers
from semel.adapters.providers.brevo import Brevo
from semel.adapters.providers.generic import Generic
from semel.adapters.providers.posting import HttpProvider
from semel.adapters.providers.resend import Resend
from semel.adapters.providers.sendgrid import SendGrid
from semel.adapters.providers.ses import Ses
from semel.adapters.providers.signing import Signature
from semel.adapters.providers.smtp import Smtp
from semel.adapters.providers.telnyx import Telnyx
from semel.adapters.providers.twilio import Twilio
from semel.adapters.providers.vonage import Vonage
from semel.ports import Provider
from semel.values.errors import ConfigError
from semel.values.notification import CHANNELS, POLICIES
from semel.values.sending import Contract, Key

Form: TypeAlias = Literal["text", "secret", "number", "whole", "flag", "texts", "wholes", "object", "secrets", "words"]
REPORTED = ("accepted", "delivered", "undelivered", "refused")


class Option(NamedTuple):
    """One setting of a provider. `needed`: there is no sense in it without."""

    form: Form
    says: str
    needed: bool = False


class Kind(NamedTuple):
    contract: Contract
    options: Mapping[str, Option]
    make: Callable[[Given], Provider]


class Given(NamedTuple):
    """The options of one provider, checked."""

    contract: Contract
    options: Mapping[str, Any]

    def __getitem__(self, name: Any) -> Any:  # of a NamedTuple: by name, since its places mean nothing to a caller
        return self.options[name]

    def some(self, *names: str) -> dict[str, Any]:
        """Those that were given: the rest has the provider's own default."""
        return {name: self.options[name] for name in names if name in self.options}
