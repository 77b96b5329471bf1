"""What doctor thinks of providers, without asking anybody: what each of them promises, and do the times fit?"""

from __future__ import annotations

from collections.abc import Iterator

from semel.settings.findings import Finding, span
from semel.settings.options import channels_of
from semel.settings.schema import Provider, Settings
from semel.settings.secret import SENSITIVE
from semel.settings.urls import host_of, is_loopback, shown
from semel.values.effect import KEYED_SHARE
from semel.values.sending import Contract
from semel.wiring import calls_of, provider

URLS = ("url", "login_url", "token_url")  # options that say where secrets go


def provider_findings(settings: Settings) -> Iterator[Finding]:
    """One line of promise for each, and what is wrong with it."""
    made = {name: provider(said.kind, name, said.options) for name, said in settings.providers.items()}
    routed = {name for names in channels_of(settings, made).values() for name in names}
    for name, one in made.items():
        contract, said = one.contract, settings.providers[name]
        yield Finding("ok", f"provider {name} ({said.kind}): {promise(contract, calls=_is_called(said))}")
        if contract.timeout_s > settings.server.drain:
            drain = span(settings.server.drain)
            what = f"provider {name}: a message may take {span(contract.timeout_s)}, and a drain ends after {drain}"
            yield Finding("warning", what, "set a longer drain in [server]: what is cut is uncertain afterwards")
        if contract.policy == "resend":
            what = f'provider {name}: policy = "resend" sends again what may have arrived, after {_after(contract)}'
            yield Finding("warning", what, 'use "hold" where a second message is worse than none')
        if name not in routed:
            what = f"provider {name}: no channel is sent by it; only a notification that names it"
            yield Finding("warning", what, "name it in [channels], or remove it")
    yield from _shared_accounts(settings)
    yield from unheard_callbacks(settings)
    if settings.outbox.identity < settings.outbox.retention:
        what = (
            f"outbox: a notification is forgotten after {span(settings.outbox.identity)}, before its content is, after "
            f"{span(settings.outbox.retention)}"
        )
        yield Finding("error", what, "set identity to at least what retention is")
    if settings.outbox.identity < settings.outbox.max_age:
        what = f"outbox: what waits for {span(settings.outbox.max_age)} outlives what is known of it"
        yield Finding("error", what, "set identity well above max_age")


def _shared_accounts(settings: Settings) -> Iterator[Finding]:
    """Providers that every tenant may send through, where tokens of several tenants may add notifications."""
    tenants = {token.tenant for token in settings.tokens if "notify" in token.scopes}
    if len(tenants) < 2:
        return
    for name, said in settings.providers.items():
        if "tenants" not in said.options:
            what = f"provider {name}: every tenant may send through this account ({len(tenants)} tenants have tokens)"
            yield Finding("warning", what, f"set tenants in [providers.{name}] to the tenants that own the account")


def promise(contract: Contract, *, calls: bool = True) -> str:
    """What may be promised of a message by this provider, in one line. `calls`: it tells us later what became of it."""
    rest = {
        "hold": "a person decides",
        "presume_sent": f"it is presumed to be sent after {_after(contract)}",
        "resend": f"it is sent again after {_after(contract)}, and may arrive twice",
        "give_up": f"it is given up after {_after(contract)}",
    }[contract.policy]
    if contract.key is not None:
        usable = span(KEYED_SHARE * contract.key.window_s)
        return f"effectively once: it honours a key, which is sent again for {usable} when nobody knows; then {rest}"
    if contract.looks_up:
        settled = span(contract.settle_s)
        return f"at most once: when nobody knows, its own list is asked after {settled}; if that says nothing, {rest}"
    return f"at most once: when nobody knows, {'a callback tells, or ' if calls else ''}{rest}"


def _is_called(said: Provider) -> bool:
    """Its callbacks come, and there is somebody who hears them."""
    return said.callbacks is not None and calls_of(said.kind) is not None and not _by_account(said)


def _by_account(said: Provider) -> bool:
    """Vonage calls back only what is sent with the token of an application."""
    return said.kind == "vonage" and "api_key" in said.options


def _after(contract: Contract) -> str:
    return span(contract.policy_after_s)


def providers_ok(settings: Settings) -> str:
    return "no providers: nothing is sent"


def open_callbacks(settings: Settings) -> Iterator[Finding]:
    """Whoever can reach them from outside can tell us what became of messages."""
    for name, said in settings.providers.items():
        host = settings.server.host
        if is_loopback(host):
            host = host_of(said.options.get("callback", ""))
        if said.callbacks is None:
            continue
        if not host or is_loopback(host):
            if said.callbacks.verify is None:
                what = f"provider {name}: callbacks at {said.callbacks.path} are not verified"
                change = f"add [providers.{name}.callbacks.verify] before a proxy or a tunnel lets anybody reach them"
                yield Finding("warning", what, change)
            continue
        what = (
            f"provider {name}: anybody who reaches {host} can tell us at {said.callbacks.path} what became of messages"
        )
        if said.callbacks.verify is None:
            calls = calls_of(said.kind)
            scheme = f' with scheme = "{calls.scheme}"' if calls is not None else ""
            change = f'add [providers.{name}.callbacks.verify]{scheme}; "none" says that something in front verifies'
            yield Finding("error", what, change)
        elif said.callbacks.verify.scheme == "none":
            yield Finding("warning", what, "verify it here, or make sure that something in front of it does")


def told_in_the_clear(settings: Settings) -> Iterator[Finding]:
    """Secrets and customers' messages on a road where everybody can read them."""
    for name, said in settings.providers.items():
        for option in URLS:
            url = said.options.get(option, "")
            if url.lower().startswith("http:") and not is_loopback(host_of(url)):
                what = f"provider {name}: its secrets and messages go to {shown(url)} in the clear"
                yield Finding("warning", what, f"use https:// in {option}")
        host = said.options.get("host", "")
        if said.kind == "smtp" and said.options.get("tls") == "off" and not is_loopback(host):
            yield Finding("warning", f"provider {name}: mails go to {host} in the clear", 'set tls = "starttls"')
        for header, value in said.options.get("headers", {}).items():
            if not value.reference and header.lower() in SENSITIVE:
                what = f"provider {name}: {header} stands in the settings as it is, for everybody who reads them"
                yield Finding("warning", what, 'write "env:NAME" for what is secret in it, as in "Bearer env:NAME"')


def unheard_callbacks(settings: Settings) -> Iterator[Finding]:
    """Twilio signs the URL that it was told. Verified with another one, none of its callbacks is ever believed. And
    Vonage calls back nobody who has no application."""
    for name, said in settings.providers.items():
        verify = said.callbacks.verify if said.callbacks is not None else None
        callback = said.options.get("callback", "").partition("#")[0].partition("?")[0]
        if said.kind == "twilio" and callback and verify is not None and verify.url and verify.url != callback:
            what = f"provider {name}: it calls {shown(callback)}…, and verify.url is another one: none is believed"
            yield Finding("warning", what, "make url of verify the same as callback, up to its ? or #")
        if said.callbacks is not None and _by_account(said):
            what = f"provider {name}: with the key of an account Vonage calls nobody back: its callbacks never come"
            yield Finding("warning", what, "use application_id and private_key in place of api_key and api_secret")
