"""Public factory of providers for `app.relay`: the same kinds and options as [providers.NAME] in `semel.toml`.

Creating a provider makes no network call.

from semel import Semel, providers

app = Semel("postgresql://…")
sms = providers.provider("twilio", "sms", account="AC…", token=os.environ["TWILIO_TOKEN"], sender="+49…")
await app.relay(sms).run()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from semel import wiring
from semel.core.relay import Relay
from semel.ports import Outbox, Provider
from semel.values.delivery_state import routes_of
from semel.values.errors import ConfigError
from semel.values.notification import CHANNELS
from semel.values.secret import Secret


def provider(kind: str, name: str, **options: Any) -> Provider:
    """Create a provider of a kind: twilio, genesys, cxone, sendgrid, ses, resend, telnyx, brevo, vonage, smtp, http, …

    docs/providers.md lists the options of each kind. Pass secrets as plain texts; they are wrapped and never shown.
    Raises ConfigError.
    """
    types = wiring.provider_option_types(kind)
    return wiring.provider(kind, name, {key: _wrap_secrets(types.get(key), value) for key, value in options.items()})


def _wrap_secrets(kind: Any, value: Any) -> Any:
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if bare is Secret and isinstance(value, str):
        if value.startswith(("env:", "file:")):
            raise ConfigError('pass the secret itself, os.environ["…"]; references such as env: are for semel.toml')
        return Secret(value)
    if Secret in get_args(bare) and isinstance(value, Mapping):  # headers
        return {name: _wrap_secrets(Secret, secret) for name, secret in value.items()}
    return value


def relay(outbox: Outbox, providers: Sequence[Provider], channels: Mapping[str, Sequence[str]]) -> Relay:
    """Build the relay of `app.relay`. Raises ConfigError if the routing from channels to providers is ambiguous."""
    by_name = {provider.contract.name: provider for provider in providers}
    if not providers or len(by_name) < len(providers):
        raise ConfigError("app.relay: pass at least one provider, each with a unique name")
    for channel, names in channels.items():
        if channel not in CHANNELS or not all(name in by_name for name in names):
            known = f"channels are {', '.join(CHANNELS)}; providers are {', '.join(by_name)}"
            raise ConfigError(f"app.relay: channels={{{channel!r}: {list(names)!r}}}: {known}")
    return Relay(outbox, by_name, routes_of((provider.contract for provider in providers), channels))
