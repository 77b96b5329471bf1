"""Providers for `app.relay`, as [providers.NAME] of `semel.toml` has them. Nobody is asked before something is sent.

from semel import Semel, providers

app = Semel("postgresql://…")
sms = providers.provider("twilio", "sms", account="AC…", token=os.environ["TWILIO_TOKEN"], sender="+49…")
await app.relay(sms).run()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semel import wiring
from semel.core.relay import Relay
from semel.ports import Outbox, Provider
from semel.settings.secret import Secret
from semel.values.errors import ConfigError
from semel.values.notification import CHANNELS
from semel.values.sending import routes_of


def provider(kind: str, name: str, **options: Any) -> Provider:
    """One of a kind: twilio, genesys, cxone, sendgrid, ses, resend, telnyx, brevo, vonage, smtp, http, … with its
    options (docs/providers.md). Secrets are given as they are, and never shown. Raises ConfigError."""
    forms = wiring.provider_forms(kind)
    return wiring.provider(kind, name, {key: _hidden(forms.get(key, ""), value) for key, value in options.items()})


def _hidden(form: str, value: Any) -> Any:
    if form == "secret" and isinstance(value, str):
        if value.startswith(("env:", "file:")):
            raise ConfigError('give the secret itself, os.environ["…"]; references are for semel.toml')
        return Secret(value)
    if form == "secrets" and isinstance(value, Mapping):
        return {name: _hidden("secret", one) for name, one in value.items()}
    return value


def relay(outbox: Outbox, providers: Sequence[Provider], channels: Mapping[str, Sequence[str]]) -> Relay:
    """`app.relay`. Raises ConfigError where nobody could say who sends what."""
    by_name = {one.contract.name: one for one in providers}
    if not providers or len(by_name) < len(providers):
        raise ConfigError("app.relay: give it at least one provider, each with a name of its own")
    for channel, names in channels.items():
        if channel not in CHANNELS or not all(name in by_name for name in names):
            known = f"channels are {', '.join(CHANNELS)}, and the providers {', '.join(by_name)}"
            raise ConfigError(f"app.relay: channels={{{channel!r}: {list(names)!r}}}: {known}")
    return Relay(outbox, by_name, routes_of((one.contract for one in providers), channels))
