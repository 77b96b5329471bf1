"""Checks of valid settings: whether times fit together, what providers promise, and who has access.

The checks are functions of plain values and return findings. Only the name of the host is resolved outside. `semel
doctor` shows all findings. `semel run` does not start if one of them is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from semel.core.routing import Handler
from semel.ports import Inbox, Ledger, SeparateDeadLetters, Traits
from semel.settings.adapter_options import brokers_in, channels_of
from semel.settings.errors import nearest
from semel.settings.rules import misspelt
from semel.settings.schema import (
    AnySource,
    DestinationSettings,
    EndpointSettings,
    KafkaBroker,
    KafkaSourceSettings,
    ProviderSettings,
    RabbitBroker,
    RabbitSourceSettings,
    Route,
    Settings,
    SqsSourceSettings,
    Verify,
)
from semel.settings.urls import host_of, is_loopback, resolves, shown
from semel.values.delivery_state import Contract
from semel.values.effect import KEYED_SHARE
from semel.values.errors import ConfigError
from semel.values.redaction import has_password
from semel.values.retry import backoff_s
from semel.values.secret import SENSITIVE, Secret
from semel.wiring import calls_of
from semel.wiring import provider as open_provider

REDELIVERIES = 2  # retention covers the redelivery window this many times
SECRET_CHARS = 16  # a shorter secret can be guessed
ANSWER_WITHIN = (5.0, "an EventBridge API destination gives up after 5 s")  # how long a sender waits inline
ANSWER_WITHIN_OF = {"genesys": (10.0, "Genesys Open Messaging gives up after 10 s")}  # by scheme of verification
INBOX_LEDGERS = "sqlite:///semel.db or postgresql://…"

Level: TypeAlias = Literal["error", "warning", "ok"]


class Finding(Struct, frozen=True):
    """The result of a check: a fact or a problem, and its remedy."""

    level: Level
    what: str
    change: str = ""  # the remedy
    check: str = ""  # a stable name, for programs


class RouteFacts(Struct, frozen=True):
    """The properties of a handler that the checks use. The handler is a route of the settings or of a Python app."""

    name: str
    effect: str
    timeout_s: float | None  # None: no limit, the lease is renewed
    lease_s: float
    retention_s: float
    window_s: float
    max_attempts: int = 8
    patterns: tuple[str, ...] = ()

    @property
    def duration(self) -> str:
        """The longest duration of a run, for people."""
        return "an unlimited time" if self.timeout_s is None else span(self.timeout_s)


class StoreFacts(Struct, frozen=True):
    """The properties of a ledger that the checks use."""

    traits: Traits
    inbox: bool = True  # it can store accepted events until they are handled
    dead_letter_store: bool = False  # its dead letters are kept in another store


def span(seconds: float) -> str:
    """A duration for people, in the largest unit that gives a whole number."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def facts_of(handlers: Iterable[Handler]) -> list[RouteFacts]:
    return [
        RouteFacts(
            name=handler.name,
            effect=handler.effect,
            timeout_s=handler.timeout_s,
            lease_s=handler.lease_s,
            retention_s=handler.retention_ms / 1000,
            window_s=handler.window_s,
            max_attempts=handler.max_attempts,
            patterns=tuple(pattern.text for pattern in handler.patterns),
        )
        for handler in handlers
    ]


def store_facts(ledger: Ledger) -> StoreFacts:
    return StoreFacts(ledger.traits, isinstance(ledger, Inbox), isinstance(ledger, SeparateDeadLetters))


def check(
    settings: Settings,
    routes: Sequence[RouteFacts],
    store: StoreFacts,
    leads: Callable[[str], bool] = resolves,
) -> list[Finding]:
    """Run all checks. A check without a problem returns one finding with level "ok".

    `leads` returns whether the name of a host has an address.
    """
    drain = span(settings.server.drain)
    redelivery = span(settings.redelivery)
    checks: list[tuple[str, Iterable[Finding], str]] = [
        ("routes", _routes(settings, routes), _routes_ok(settings, routes)),
        ("timeout", _timeouts(routes), "the timeout of every handler is shorter than its lease"),
        ("retention", _retention(settings, routes), f"keys are kept for at least twice the redelivery of {redelivery}"),
        ("window", _windows(routes), "every key window is longer than all retries"),
        ("destination", _destinations(settings, routes), "every destination times out before its route"),
        ("drain", _drain(settings, routes), f"every handler can finish within the drain of {drain}"),
        ("inline", _inline(settings, routes, store), "no inline handler exceeds the time that its sender waits"),
        ("inbox", _inbox(settings, store), _inbox_ok(settings)),
        ("sources", _sources(settings, routes), _sources_ok(settings)),
        ("providers", provider_findings(settings), "no providers: no notifications are sent"),
        ("credentials", _credentials(settings), "no credential of a provider is a placeholder or malformed"),
        ("durability", _durability(settings, store.traits), f"{store.traits.name} keeps all acknowledged writes"),
        ("dead_letters", _dead_letters(store), "dead letters are kept in a durable store"),
        ("access", _access(settings, leads), _access_ok(settings)),
        ("secrets", _secrets(settings), "no secret is short or sent unencrypted"),
        ("fail-open", _fail_open(settings.routes), "fail_open: off for every route"),
    ]
    findings: list[Finding] = []
    for name, found, ok in checks:
        findings += [replace(finding, check=name) for finding in found] or [Finding("ok", ok, "", name)]
    return findings


def errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == "error"]


def refuse(findings: Iterable[Finding]) -> None:
    """Raise ConfigError if a finding is an error. `semel run` calls this before it starts."""
    if wrong := errors(findings):
        lines = [f"{finding.what}: {finding.change}".removesuffix(": ") for finding in wrong]
        raise ConfigError("not started because of errors (`semel doctor` shows all findings):\n" + "\n".join(lines))


# ------------------------------------------------------------------------------------------------------------- routes


def _routes(settings: Settings, routes: Sequence[RouteFacts]) -> Iterator[Finding]:
    if not routes and any(endpoint.accept == "inbox" for endpoint in settings.endpoints):
        change = "add [[routes]], or name an app: `semel run module:app`; for the HTTP API alone, set endpoints = []"
        yield Finding("warning", "there are no routes and no handlers: events are only written to the console", change)
    for route in routes:
        for pattern in route.patterns:
            if meant := misspelt(pattern):
                yield Finding("warning", f'route {route.name}: "{pattern}" looks misspelt', f'did you mean "{meant}"?')


def _routes_ok(settings: Settings, routes: Sequence[RouteFacts]) -> str:
    if not routes:
        forwarded = bool(settings.endpoints)
        return "no routes: all events are forwarded" if forwarded else "no endpoints and no routes: the HTTP API alone"
    return f"{len(routes)} {'route' if len(routes) == 1 else 'routes'}"


def _timeouts(routes: Sequence[RouteFacts]) -> Iterator[Finding]:
    for route in routes:
        if route.timeout_s is not None and route.timeout_s >= route.lease_s:
            what = (
                f"route {route.name}: its timeout of {route.duration} is not below its lease of {span(route.lease_s)}"
            )
            yield Finding("error", what, f"set timeout below {span(route.lease_s)}, or a longer lease")


def _retention(settings: Settings, routes: Sequence[RouteFacts]) -> Iterator[Finding]:
    least = REDELIVERIES * settings.redelivery
    for route in routes:
        if route.retention_s < least:
            what = (
                f"route {route.name}: keys are kept for {span(route.retention_s)}, and sources may redeliver for "
                f"{span(settings.redelivery)}: a late duplicate would run again"
            )
            change = (
                f"set retention to {ceil(least)} ({span(least)}) or more, or set redelivery as your sources have it"
            )
            yield Finding("error", what, change)


def _windows(routes: Sequence[RouteFacts]) -> Iterator[Finding]:
    for route in routes:
        if route.effect != "keyed":
            continue
        usable = KEYED_SHARE * route.window_s
        if route.lease_s >= usable:
            what = (
                f"route {route.name}: its lease of {span(route.lease_s)} is longer than the usable part of its key "
                f"window, {span(usable)}: every crash would park the event"
            )
            yield Finding("error", what, 'set a longer window, a shorter lease, or effect = "park"')
        elif _retries_s(route, usable) > usable:
            what = (
                f"route {route.name}: {route.max_attempts} attempts may take longer than the usable part of its key "
                f"window, {span(usable)}: a long outage parks events as uncertain"
            )
            yield Finding("warning", what, "set a longer window, if the destination honours it, or fewer max_attempts")


def _retries_s(route: RouteFacts, enough: float) -> float:
    """The longest duration of all attempts, or any value above `enough`."""
    total = 0.0
    for attempt in range(1, route.max_attempts):
        total += (route.timeout_s or route.lease_s) + backoff_s(attempt, lambda: 1.0)
        if total > enough:
            break
    return total


def _destinations(settings: Settings, routes: Sequence[RouteFacts]) -> Iterator[Finding]:
    facts = {route.name: route for route in routes}
    for route, name, destination in forwards(settings):
        fact = facts.get(route.name)
        limit = min(route.lease, (fact.timeout_s if fact else route.timeout) or route.lease)
        if destination.timeout >= limit:
            what = (
                f"route {route.name}: {name} may take {span(destination.timeout)} to answer, but the run is cut after "
                f"{span(limit)}"
            )
            yield Finding("error", what, f"set the timeout of {name} below {span(limit)}, or raise the route's")
    used = {route.forward for route in settings.routes}
    for name in settings.destinations:
        if name not in used:
            yield Finding("warning", f"destination {name}: no route forwards to it", "add a route, or remove it")


def forwards(settings: Settings) -> Iterator[tuple[Route, str, DestinationSettings]]:
    """Every route that forwards, with the label of its destination and the destination."""
    for route in settings.routes:
        if route.forward in settings.destinations:
            yield route, f"destination {route.forward}", settings.destinations[route.forward]
        elif route.forward:
            yield route, shown(route.forward), DestinationSettings(url=route.forward)


def _drain(settings: Settings, routes: Sequence[RouteFacts]) -> Iterator[Finding]:
    drain = settings.server.drain
    for route in routes:
        if route.timeout_s is None or route.timeout_s > drain:
            what = f"route {route.name}: a run may take {route.duration}, but a drain ends after {span(drain)}"
            change = "set a longer drain in [server], or a shorter timeout: an interrupted run runs again"
            yield Finding("warning", what, change)


def _inline(settings: Settings, routes: Sequence[RouteFacts], store: StoreFacts) -> Iterator[Finding]:
    """A sender that times out sends the event again. Nothing runs twice, but some senders drop the event at last."""
    for endpoint in settings.endpoints:
        if endpoint.mode != "inline":
            continue
        waits_s, reason = ANSWER_WITHIN_OF.get(endpoint.verify.scheme if endpoint.verify else "", ANSWER_WITHIN)
        for route in routes:
            if route.timeout_s is None or route.timeout_s > waits_s:
                what = (
                    f"route {route.name}: a run may take {route.duration} inline at endpoint {endpoint.path}, but "
                    f"{reason}"
                )
                shorter = f"a timeout of {span(waits_s)} for the route"
                elsewhere = f"set {shorter}, or a ledger with an inbox: {INBOX_LEDGERS}"
                yield Finding("warning", what, f'set mode = "inbox" there, or {shorter}' if store.inbox else elsewhere)


def _fail_open(routes: Sequence[Route]) -> Iterator[Finding]:
    for route in routes:
        if route.fail_open:
            what = f"route {route.name}: it runs without the ledger during an outage, so an event may run twice"
            yield Finding("warning", what, "remove fail_open if a second run is worse than a late one")


# ------------------------------------------------------------------------------------------------------------- ledger


def _inbox(settings: Settings, store: StoreFacts) -> Iterator[Finding]:
    if store.inbox:
        return
    for endpoint in settings.endpoints:
        if endpoint.mode == "inbox" and endpoint.accept == "inbox":
            what = f"endpoint {endpoint.path} accepts into the inbox, but {store.traits.name} has none"
            inline = 'set mode = "inline" there, with timeouts as short as its sender waits'
            yield Finding("error", what, f"{inline}, or a ledger with an inbox: {INBOX_LEDGERS}")


def _inbox_ok(settings: Settings) -> str:
    accepted = {endpoint.accept for endpoint in settings.endpoints if endpoint.mode == "inbox"}
    if "inbox" in accepted:
        return "accepted events are kept in the ledger until they are handled"
    return "accepted events are forwarded to a broker" if accepted else "no event is accepted before it is handled"


def _dead_letters(store: StoreFacts) -> Iterator[Finding]:
    """A ledger with an inbox keeps dead letters as safely as its inbox. Other ledgers do not store the event itself."""
    if store.inbox or store.dead_letter_store:
        return
    loses = store.traits.loses
    by_loss: dict[str, list[str]] = {}
    for fault, lost in (("a kill", loses.store_killed), ("power loss", loses.power_loss), ("failover", loses.failover)):
        by_loss.setdefault(lost or "", []).append(fault)
    losses = "; ".join(f"by {' or '.join(faults)}, {lost}" for lost, faults in by_loss.items() if lost)
    volatile = "" if store.traits.durable else " They are lost when the process ends."
    what = (
        f"dead letters are kept in {store.traits.name} itself, and a replay waits until the event is sent again."
        f"{volatile}{f' It may lose, {losses}.' if losses else ''}"
    )
    change = (
        'set another store: dead_letters = "sqlite:///dead-letters.db", a PostgreSQL database or an eventbridge:// bus'
    )
    yield Finding("warning", what, change)


def _durability(settings: Settings, traits: Traits) -> Iterator[Finding]:
    if not traits.durable:
        change = 'set ledger = "sqlite:///semel.db"'
        what = f"the {traits.name} ledger is lost when the process ends: later duplicates run again"
        yield Finding("warning", what, change)
        if settings.server.workers > 1:
            what = (
                f"the {traits.name} ledger is not shared by {settings.server.workers} workers: each would run the event"
            )
            yield Finding("error", what, f"{change}, or workers = 1")
    elif traits.caveat:
        change = (
            "change its URL or its server (docs/ledgers.md), or accept the risk: the facts of the ledger show its "
            "configuration, and docs/guarantees.md lists the possible losses"
        )
        yield Finding("warning", f"{traits.name}: {traits.caveat}", change)


# ------------------------------------------------------------------------------------------------ sources and brokers


def _sources(settings: Settings, routes: Sequence[RouteFacts]) -> Iterator[Finding]:
    brokers = brokers_in(settings)
    for source in settings.sources:
        if not routes:
            what = f"source {source.label}: there are no routes and no handlers: all its events would be discarded"
            yield Finding("error", what, "add [[routes]], or name an app: `semel run module:app`")
        for route in routes:
            yield from _source_times(source, route)
        broker = brokers.get(source.kind)
        target = broker.topic if isinstance(broker, KafkaBroker) else broker.queue if broker is not None else ""
        if target and target in source.takes_from.split(",") and not source.forwarded:
            what = f"source {source.label}: endpoints here forward events to it, but it ignores their metadata"
            change = "set forwarded = true: then events keep their tenant and their decode options"
            yield Finding("warning", what, change)
    used = {endpoint.accept for endpoint in settings.endpoints}
    for kind in brokers:
        if kind not in used:
            what = f"broker {kind}: no endpoint forwards events to it"
            yield Finding("warning", what, f'set accept = "{kind}" in [[endpoints]], or remove it')


def _sources_ok(settings: Settings) -> str:
    count = len(settings.sources)
    if not count:
        return "no sources"
    return f"{count} {'source' if count == 1 else 'sources'}: no delivery is returned to its source during a run"


def _source_times(source: AnySource, route: RouteFacts) -> Iterator[Finding]:
    """A source must not redeliver an event before its lease ends."""
    if isinstance(source, SqsSourceSettings) and route.lease_s >= source.visibility:
        what = (
            f"route {route.name}: its lease of {span(route.lease_s)} is not below the visibility of source "
            f"{source.label}, {span(source.visibility)}: after a crash the queue would redeliver an event that is "
            "still leased"
        )
        yield Finding("error", what, f"set visibility above {span(route.lease_s)}, or a shorter lease")
    if isinstance(source, RabbitSourceSettings) and (
        route.timeout_s is None or route.timeout_s >= source.consumer_timeout
    ):
        what = (
            f"route {route.name}: a run may take {route.duration}, but the broker of source {source.label} takes a "
            f"delivery back after {span(source.consumer_timeout)}"
        )
        change = "set a shorter timeout, or a longer consumer_timeout here and at the broker"
        yield Finding("warning" if route.timeout_s is None else "error", what, change)


# ---------------------------------------------------------------------------------------------------------- providers


def provider_findings(settings: Settings) -> Iterator[Finding]:
    """One line with the promise of each provider, and its problems."""
    opened = {name: open_provider(table.kind, name, table.options) for name, table in settings.providers.items()}
    routed = {name for names in channels_of(settings, opened).values() for name in names}
    for name, provider in opened.items():
        contract, table = provider.contract, settings.providers[name]
        reports = table.callbacks is not None and calls_of(table.kind) is not None and not _uses_account_key(table)
        yield Finding("ok", f"provider {name} ({table.kind}): {promise(contract, calls=reports)}")
        if contract.timeout_s > settings.server.drain:
            drain = span(settings.server.drain)
            what = f"provider {name}: a message may take {span(contract.timeout_s)}, but a drain ends after {drain}"
            change = "set a longer drain in [server]: an interrupted message is uncertain afterwards"
            yield Finding("warning", what, change)
        if contract.policy == "resend":
            after = span(contract.policy_after_s)
            what = f'provider {name}: policy = "resend" sends a message again that may have arrived, after {after}'
            yield Finding("warning", what, 'use "hold" if a second message is worse than none')
        if name not in routed:
            what = f"provider {name}: no channel uses it; it sends only notifications that name it"
            yield Finding("warning", what, "name it in [channels], or remove it")
    yield from _shared_accounts(settings)
    yield from _useless_callbacks(settings)
    outbox = settings.outbox
    if outbox.identity < outbox.retention:
        what = (
            f"outbox: identities are deleted after {span(outbox.identity)}, before the content of their notifications, "
            f"after {span(outbox.retention)}"
        )
        yield Finding("error", what, "set identity to at least retention")
    if outbox.identity < outbox.max_age:
        what = (
            f"outbox: a notification may wait for {span(outbox.max_age)}, but its identity is deleted after "
            f"{span(outbox.identity)}"
        )
        yield Finding("error", what, "set identity well above max_age")


def promise(contract: Contract, *, calls: bool = True) -> str:
    """The delivery promise of a provider, in one line. `calls`: its status callbacks arrive here."""
    after = span(contract.policy_after_s)
    resolution = {
        "hold": "an operator decides",
        "presume_sent": f"it is presumed to be sent after {after}",
        "resend": f"it is sent again after {after}, and may arrive twice",
        "give_up": f"it is given up after {after}",
    }[contract.policy]
    if contract.key is not None:
        usable = span(KEYED_SHARE * contract.key.window_s)
        return f"effectively once: an unknown outcome is retried with the same key for {usable}; then {resolution}"
    if contract.looks_up:
        settled = span(contract.settle_s)
        return f"at most once: an unknown outcome is looked up after {settled}; if that is unclear, {resolution}"
    return f"at most once: after an unknown outcome, {'a callback reports it, or ' if calls else ''}{resolution}"


def _uses_account_key(table: ProviderSettings) -> bool:
    """Vonage sends callbacks only for messages that were sent with the token of an application."""
    return table.kind == "vonage" and "api_key" in table.options


def _shared_accounts(settings: Settings) -> Iterator[Finding]:
    """Accounts that all tenants may use, if tokens of several tenants may add notifications."""
    tenants = {token.tenant for token in settings.tokens if "notify" in token.scopes}
    if len(tenants) < 2:
        return
    for name, table in settings.providers.items():
        if "tenants" not in table.options:
            what = f"provider {name}: every tenant may send through this account ({len(tenants)} tenants have tokens)"
            yield Finding("warning", what, f"set tenants in [providers.{name}] to the tenants that own the account")


def _useless_callbacks(settings: Settings) -> Iterator[Finding]:
    """Callbacks that fail verification or never arrive. Twilio signs the URL that it calls."""
    for name, table in settings.providers.items():
        verify = table.callbacks.verify if table.callbacks is not None else None
        callback = table.options.get("callback", "").partition("#")[0].partition("?")[0]
        if table.kind == "twilio" and callback and verify is not None and verify.url and verify.url != callback:
            what = f"provider {name}: it calls {shown(callback)}…, but verify.url is another URL: no callback is valid"
            yield Finding("warning", what, "set url of verify to callback, up to its ? or #")
        if table.callbacks is not None and _uses_account_key(table):
            what = f"provider {name}: Vonage sends no callbacks for messages that were sent with the key of an account"
            yield Finding("warning", what, "use application_id and private_key instead of api_key and api_secret")


# Credentials are checked by their text only. Not every kind of key has a harmless request, and a request with a wrong
# key may lock an account. A well-formed key may still be wrong; the provider's first response then pauses it.

PLACEHOLDER = re.compile(
    r"change[-_ ]?(me|it|this)|replace[-_ ]?me|to[-_ ]?do|tbd|placeholder|dummy|x{3,}|\*{3,}|…|\.{3}|<.*>|"
    r"(my|your)[-_ ].*|(insert|enter)[-_ ].*|.*(EXAMPLE|EXAMPLEKEY)",
    re.IGNORECASE | re.DOTALL,
)
CREDENTIAL_FORMS: Mapping[tuple[str, str], tuple[re.Pattern[str], str]] = {  # by kind and option
    ("twilio", "account"): (re.compile(r"AC[0-9a-fA-F]{32}"), "AC and 32 hexadecimal digits"),
    ("sendgrid", "api_key"): (re.compile(r"SG\..+"), "a text that begins with SG."),
    ("resend", "api_key"): (re.compile(r"re_.+"), "a text that begins with re_"),
    ("telnyx", "api_key"): (re.compile(r"KEY.+"), "a text that begins with KEY"),
    ("brevo", "api_key"): (re.compile(r"xkeysib-.+"), "a text that begins with xkeysib-"),
    ("ses", "access_key_id"): (re.compile(r"AKIA[A-Z0-9]{16}"), "AKIA and 16 capital letters or digits"),
    ("ses", "secret_access_key"): (re.compile(r"[A-Za-z0-9/+=]{40}"), "40 letters, digits, / and +"),
}


def _credentials(settings: Settings) -> Iterator[Finding]:
    """One warning for each credential that cannot be right. No finding shows a value."""
    for name, table in settings.providers.items():
        for option, text in _credential_texts(table):
            if problem := _credential_problem(table, option, text):
                what = f"provider {name}: {option} {problem}"
                yield Finding("warning", what, f"set {option} in [providers.{name}] to the one of your account")


def _credential_texts(table: ProviderSettings) -> Iterator[tuple[str, str]]:
    for option, value in table.options.items():
        if isinstance(value, Secret):
            yield option, value.reveal()
        elif isinstance(value, str) and (table.kind, option) in CREDENTIAL_FORMS:
            yield option, value
        elif isinstance(value, Mapping):
            for header, secret in value.items():
                if isinstance(secret, Secret) and secret.reference:
                    yield f"{option}.{header}", secret.reveal().removeprefix("Bearer ")


def _credential_problem(table: ProviderSettings, option: str, text: str) -> str:
    if PLACEHOLDER.fullmatch(text):
        return "is a placeholder"
    if text != text.strip():
        return "begins or ends with a space or a line end"
    form = CREDENTIAL_FORMS.get((table.kind, option))
    if form is None or "url" in table.options:  # an emulator, or a gateway with its own keys
        return ""
    pattern, expected = form
    return "" if pattern.fullmatch(text) else f"does not have the form of such a key: expected {expected}"


# ------------------------------------------------------------------------------------------------- access and secrets


def _access(settings: Settings, leads: Callable[[str], bool]) -> Iterator[Finding]:
    host = settings.server.host
    if is_loopback(host):
        yield from _unverified_callbacks(settings)  # a proxy may make them reachable
        return
    if not leads(host):
        meant = f'did you mean "{near}"? ' if (near := nearest(host, ["localhost"])) else ""
        what = f"host: {host} has no address here, so the service cannot listen on it"
        yield Finding("error", what, f'{meant}"127.0.0.1" is this machine only, "0.0.0.0" is every network')
        return
    if not settings.tokens:
        what = f"{host} is reachable from other machines, and there are no [[tokens]]"
        yield Finding("error", what, 'add one (`semel token NAME --scope claims`), or set host = "127.0.0.1"')
    for endpoint in settings.endpoints:
        what = f"endpoint {endpoint.path}: everyone who can reach {host} can send events to it"
        if endpoint.verify is None:
            change = 'add [endpoints.verify]; scheme = "none" means that a proxy in front of it verifies'
            alone = (
                "; to take no events at all, set endpoints = [] at the top" if endpoint == EndpointSettings() else ""
            )
            yield Finding("error", what, change + alone)
        elif endpoint.verify.scheme == "none":
            yield Finding("warning", what, "verify it here, or make sure that a proxy in front of it does")
    yield from _unverified_callbacks(settings)


def _access_ok(settings: Settings) -> str:
    if is_loopback(settings.server.host):
        return f"{settings.server.host} is reachable from this machine only"
    verified = "every endpoint verifies its sender, and " if settings.endpoints else ""
    return f"{verified}the API requires a token"


def _unverified_callbacks(settings: Settings) -> Iterator[Finding]:
    """Callbacks that anyone could forge."""
    for name, table in settings.providers.items():
        if table.callbacks is None:
            continue
        verify, path = table.callbacks.verify, table.callbacks.path
        host = settings.server.host
        if is_loopback(host):
            host = host_of(table.options.get("callback", ""))
        if not host or is_loopback(host):
            if verify is None:
                what = f"provider {name}: callbacks at {path} are not verified"
                change = f"add [providers.{name}.callbacks.verify] before a proxy or a tunnel makes them reachable"
                yield Finding("warning", what, change)
            continue
        what = f"provider {name}: everyone who can reach {host} can report delivery states at {path}"
        if verify is None:
            calls = calls_of(table.kind)
            scheme = f' with scheme = "{calls.scheme}"' if calls is not None else ""
            change = f'add [providers.{name}.callbacks.verify]{scheme}; "none" means that a proxy in front verifies'
            yield Finding("error", what, change)
        elif verify.scheme == "none":
            yield Finding("warning", what, "verify it here, or make sure that a proxy in front of it does")


def _secrets(settings: Settings) -> Iterator[Finding]:
    yield from _written_passwords(settings)
    verified: list[tuple[str, Verify | None]] = [
        (f"endpoint {endpoint.path}", endpoint.verify) for endpoint in settings.endpoints
    ]
    verified += [
        (f"provider {name}", table.callbacks.verify) for name, table in settings.providers.items() if table.callbacks
    ]
    for place, verify in verified:
        for secret in verify.secrets if verify is not None else ():
            if len(secret.reveal()) < SECRET_CHARS:
                what = f"{place}: {secret.reference} has less than {SECRET_CHARS} characters"
                yield Finding("warning", what, "use a longer secret: a short one can be guessed")
    yield from _unencrypted(settings)


def _written_passwords(settings: Settings) -> Iterator[Finding]:
    """Passwords that are written in the settings file themselves, not as references."""
    written: list[tuple[str, Secret, str]] = []
    for name, url in (("ledger", settings.ledger), ("dead_letters", settings.dead_letters)):
        if url is not None and has_password(url.reveal()):
            change = f'write env:NAME for it, as in user:env:NAME@host, or {name} = "env:NAME" for the whole URL'
            written.append((f"{name}: its password", url, change))
    places: list[tuple[str, object]] = [(f"source {source.label}", source) for source in settings.sources]
    places += [(f"broker {kind}", broker) for kind, broker in brokers_in(settings).items()]
    for name, table in places:
        if isinstance(table, RabbitSourceSettings | RabbitBroker) and has_password(table.url.reveal()):
            change = "write env:NAME for it, as in user:env:NAME@host"
            written.append((f"{name}: the password in url", table.url, change))
        if isinstance(table, KafkaSourceSettings | KafkaBroker):
            for option, value in table.options.items():
                if any(word in option for word in ("password", "secret", "key.pem")):
                    change = 'write "env:NAME" for it'
                    written.append((f"{name}: the password in options.{option}", value, change))
    for what, secret, change in written:
        if not secret.reference:
            yield Finding("warning", f"{what} is readable in the settings file", change)


def _unencrypted(settings: Settings) -> Iterator[Finding]:
    """Secrets and messages that are sent without TLS, and secret headers of providers in the settings file."""
    for name, destination in settings.destinations.items():
        secret = [header for header, value in destination.headers.items() if value.reference or _is_sensitive(header)]
        if secret and _is_plain_http(destination.url):
            what = f"destination {name}: {', '.join(secret)} is sent to {shown(destination.url)} without encryption"
            yield Finding("warning", what, "use https://")
    for name, table in settings.providers.items():
        options = table.options
        for option in ("url", "login_url", "token_url"):
            if _is_plain_http(url := options.get(option, "")):
                what = f"provider {name}: its secrets and messages are sent to {shown(url)} without encryption"
                yield Finding("warning", what, f"use https:// in {option}")
        host = options.get("host", "")
        if table.kind == "smtp" and options.get("tls") == "off" and not is_loopback(host):
            what = f"provider {name}: mails are sent to {host} without encryption"
            yield Finding("warning", what, 'set tls = "starttls"')
        for header, value in options.get("headers", {}).items():
            if not value.reference and _is_sensitive(header):
                what = f"provider {name}: {header} is readable in the settings file"
                yield Finding("warning", what, 'write "env:NAME" for the secret part, as in "Bearer env:NAME"')


def _is_sensitive(header: str) -> bool:
    return header.lower() in SENSITIVE


def _is_plain_http(url: str) -> bool:
    return url.lower().startswith("http:") and not is_loopback(host_of(url))
