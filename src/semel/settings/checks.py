"""What doctor finds, and what it looks at: plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil

from msgspec import Struct

from semel.core.routing import Handler
from semel.ports import Inbox, Ledger, Traits
from semel.settings.adapter_options import brokers_in, channels_of
from semel.settings.credential_checks import credential_findings
from semel.settings.errors import nearest
from semel.settings.findings import Finding, RouteFacts, span
from semel.settings.rules import misspelt
from semel.settings.schema import (
    AnySource,
    Destination,
    Endpoint,
    KafkaBroker,
    KafkaSource,
    Provider,
    RabbitBroker,
    RabbitSource,
    Route,
    Settings,
    SqsSource,
)
from semel.settings.urls import host_of, is_loopback, leads_somewhere, shown
from semel.values.delivery_state import Contract
from semel.values.effect import KEYED_SHARE
from semel.values.errors import ConfigError
from semel.values.redaction import has_password
from semel.values.retry import backoff_s
from semel.values.secret import SENSITIVE, Secret
from semel.wiring import calls_of, provider

# What doctor thinks of sources, without asking anybody: do the times fit, and is what they bring wanted here?


def wrong_sources(settings: Settings, routes: Sequence[RouteFacts]) -> Iterator[Finding]:
    for said in settings.sources:
        if not routes:
            what = f"source {said.label}: there are no routes and no handlers: everything would only be forgotten"
            yield Finding("error", what, "add [[routes]], or name an app: `semel run module:app`")
        for route in routes:
            yield from _times(said, route)
        yield from _notes(said, settings)
    handed_to = {endpoint.accept for endpoint in settings.endpoints}
    for kind in brokers_in(settings):
        if kind not in handed_to:
            what = f"broker {kind}: no endpoint hands events on to it"
            yield Finding("warning", what, f'set accept = "{kind}" in [[endpoints]], or remove it')


def sources_ok(settings: Settings) -> str:
    many = len(settings.sources)
    if not many:
        return "no sources"
    return f"{many} {'source' if many == 1 else 'sources'}, and every delivery can be held for as long as it is handled"


def _times(said: AnySource, route: RouteFacts) -> Iterator[Finding]:
    """While a lease holds an event, its source must not give it to somebody else."""
    if isinstance(said, SqsSource) and route.lease_s >= said.visibility:
        what = (
            f"route {route.name}: its lease of {span(route.lease_s)} outlasts the visibility of source {said.label}, "
            f"{span(said.visibility)}: after a crash the queue would bring an event that is not free yet"
        )
        change = f"set visibility above {span(route.lease_s)}, or a shorter lease"
        yield Finding("error", what, change)
    if isinstance(said, RabbitSource) and (route.timeout_s is None or route.timeout_s >= said.consumer_timeout):
        limit = "as long as it likes" if route.timeout_s is None else span(route.timeout_s)
        what = (
            f"route {route.name}: a run may take {limit}, and the broker of source {said.label} takes a delivery back "
            f"after {span(said.consumer_timeout)}"
        )
        change = "set a shorter timeout, or a longer consumer_timeout here and at the broker"
        yield Finding("warning" if route.timeout_s is None else "error", what, change)


def _notes(said: AnySource, settings: Settings) -> Iterator[Finding]:
    broker = brokers_in(settings).get(said.kind)
    theirs = broker.topic if isinstance(broker, KafkaBroker) else broker.queue if broker is not None else ""
    if theirs and theirs in said.takes_from.split(",") and not said.forwarded:
        what = f"source {said.label}: endpoints here fill it, and the notes beside their events are not believed"
        yield Finding(
            "warning", what, "set forwarded = true: then they keep their tenant, and are read in the same way"
        )


def shown_secrets(settings: Settings) -> Iterator[Finding]:
    """Passwords that stand in the file as they are."""
    places: list[tuple[str, object]] = [(f"source {said.label}", said) for said in settings.sources]
    places += [(f"broker {kind}", said) for kind, said in brokers_in(settings).items()]
    for name, said in places:
        found: list[tuple[str, Secret]] = []
        if isinstance(said, RabbitSource | RabbitBroker) and has_password(said.url.reveal()):
            found.append(("url", said.url))
        if isinstance(said, KafkaSource | KafkaBroker):
            found += [(f"options.{key}", value) for key, value in said.options.items() if _is_secret(key)]
        for key, value in found:
            if not value.reference:
                what = f"{name}: the password in {key} stands in the settings as it is, for everybody who reads them"
                change = (
                    'write "env:NAME" for it' if key != "url" else "write env:NAME for it, as in user:env:NAME@host"
                )
                yield Finding("warning", what, change)


def _is_secret(option: str) -> bool:
    return any(word in option for word in ("password", "secret", "key.pem"))


# What doctor thinks of providers, without asking anybody: what each of them promises, and do the times fit?

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


# What doctor thinks of settings that can be read: do the times fit together, is what is promised kept, who gets in?
#
# It looks at plain facts and answers with findings; only where the name of a host leads is asked outside. `semel run`
# does not start when one of them is an error.

REDELIVERIES = 2  # retention outlives the redelivery window so many times
SECRET_CHARS = 16  # a shorter one can be guessed
ANSWER_WITHIN = (5.0, "an EventBridge API destination gives up after 5 s")  # what a sender waits for an inline answer
ANSWER_WITHIN_OF = {"genesys": (10.0, "Genesys Open Messaging gives up after 10 s")}  # where the scheme tells who it is
INBOX_LEDGERS = "sqlite:///semel.db or postgresql://…"


def facts_of(handlers: Iterable[Handler]) -> list[RouteFacts]:
    """The facts of handlers as they are registered, whoever registered them."""
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


class StoreFacts(Struct, frozen=True):
    """What decides about a ledger."""

    traits: Traits
    inbox: bool = True  # it can keep events that were accepted and not handled
    dead_letter_store: bool = False  # what it gives up on is kept in another store


def store_facts(ledger: Ledger) -> StoreFacts:
    return StoreFacts(ledger.traits, isinstance(ledger, Inbox), hasattr(ledger, "dead_letter_store"))


def check(
    settings: Settings,
    routes: Sequence[RouteFacts],
    store: StoreFacts,
    leads: Callable[[str], bool] = leads_somewhere,
) -> list[Finding]:
    """Everything that can be told without touching anything. Each check has one finding when all is well.

    `leads` says whether the name of a host has an address."""
    return [
        *_one("routes", _routes(settings, routes), _routes_ok(settings, routes)),
        *_one("timeout", _timeouts(routes), "every handler's timeout is under its lease"),
        *_one("retention", _retention(settings, routes), _retention_ok(settings)),
        *_one("window", _windows(routes), "every key window outlasts the retries"),
        *_one("destination", _destinations(settings, routes), "every destination answers or is given up in time"),
        *_one("drain", _drain(settings, routes), f"a drain of {span(settings.server.drain)} lets every handler finish"),
        *_one("inline", _inline(settings, routes, store), "no sender is kept waiting by a handler"),
        *_one("inbox", _inbox(settings, store), _inbox_ok(settings)),
        *_one("sources", wrong_sources(settings, routes), sources_ok(settings)),
        *_one("providers", provider_findings(settings), providers_ok(settings)),
        *_one("credentials", credential_findings(settings), "no key of a provider is a placeholder or of another form"),
        *_one("durability", _durability(settings, store.traits), f"{store.traits.name} keeps what it has answered"),
        *_one("dead_letters", _dead_letters(store), "what is given up on waits for a person in a store that keeps it"),
        *_one("access", _access(settings, leads), _access_ok(settings)),
        *_one("secrets", _secrets(settings), "no secret is short or sent in the clear"),
        *_one("fail-open", _fail_open(settings.routes), "nothing runs without the ledger"),
    ]


def errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == "error"]


def refuse(findings: Iterable[Finding]) -> None:
    """Raise ConfigError when there is an error among the findings: `semel run` calls this before it starts."""
    if wrong := errors(findings):
        lines = [f"{finding.what}: {finding.change}".removesuffix(": ") for finding in wrong]
        raise ConfigError("it does not start like this (`semel doctor` shows all):\n" + "\n".join(lines))


# ------------------------------------------------------------------------------------------------------ relations


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
        return "no routes: all events are handed on" if forwarded else "no endpoints and no routes: the HTTP API alone"
    return f"{len(routes)} {'route' if len(routes) == 1 else 'routes'}"


def _timeouts(routes: Sequence[RouteFacts]) -> Iterator[Finding]:
    for route in routes:
        if route.timeout_s is not None and route.timeout_s >= route.lease_s:
            what = f"route {route.name}: a run may take {span(route.timeout_s)}, and its lease is {span(route.lease_s)}"
            yield Finding("error", what, f"set timeout below {span(route.lease_s)}, or a longer lease")


def _retention(settings: Settings, routes: Sequence[RouteFacts]) -> Iterator[Finding]:
    least = REDELIVERIES * settings.redelivery
    for route in routes:
        if route.retention_s < least:
            what = (
                f"route {route.name}: keys are kept for {span(route.retention_s)}, and an event may come again for "
                f"{span(settings.redelivery)}: a late copy would act again"
            )
            change = f"set retention to {ceil(least)} ({span(least)}) or more, or redelivery to what your sources do"
            yield Finding("error", what, change)


def _retention_ok(settings: Settings) -> str:
    return f"keys are kept for twice the {span(settings.redelivery)} in which an event may come again"


def _windows(routes: Sequence[RouteFacts]) -> Iterator[Finding]:
    for route in routes:
        if route.effect != "keyed":
            continue
        usable = KEYED_SHARE * route.window_s
        if route.lease_s >= usable:
            what = (
                f"route {route.name}: after a crash the lease of {span(route.lease_s)} outlasts what may be used of "
                f"the key window, {span(usable)}: every crash would park"
            )
            yield Finding("error", what, 'set a longer window, a shorter lease, or effect = "park"')
        elif _retries_s(route, usable) > usable:
            what = (
                f"route {route.name}: {route.max_attempts} attempts may take longer than what may be used of the key "
                f"window, {span(usable)}: a long outage parks events as uncertain"
            )
            yield Finding("warning", what, "set a longer window, if the destination honours it, or fewer max_attempts")


def _retries_s(route: RouteFacts, enough: float) -> float:
    """The longest that all attempts can take, or something above `enough`."""
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
                f"route {route.name}: {name} may take {span(destination.timeout)} to answer, and the run is cut after "
                f"{span(limit)}"
            )
            yield Finding("error", what, f"set the timeout of {name} below {span(limit)}, or raise the route's")
    used = {route.forward for route in settings.routes}
    for name in settings.destinations:
        if name not in used:
            yield Finding("warning", f"destination {name}: no route forwards to it", "add a route, or remove it")


def _drain(settings: Settings, routes: Sequence[RouteFacts]) -> Iterator[Finding]:
    drain = settings.server.drain
    for route in routes:
        takes = route.timeout_s
        if takes is None or takes > drain:
            limit = "as long as it likes" if takes is None else span(takes)
            what = f"route {route.name}: a run may take {limit}, and a drain ends after {span(drain)}"
            yield Finding("warning", what, "set a longer drain in [server], or a shorter timeout: a cut run runs again")


def _inline(settings: Settings, routes: Sequence[RouteFacts], store: StoreFacts) -> Iterator[Finding]:
    """Whoever gave up waiting sends again: nothing doubles, but in the end they may drop the event."""
    for endpoint in settings.endpoints:
        if endpoint.mode != "inline":
            continue
        waits, who = ANSWER_WITHIN_OF.get(endpoint.verify.scheme if endpoint.verify else "", ANSWER_WITHIN)
        for route in routes:
            takes = route.timeout_s
            if takes is None or takes > waits:
                limit = "as long as it likes" if takes is None else span(takes)
                what = f"route {route.name}: a run may take {limit} inline at endpoint {endpoint.path}, and {who}"
                shorter = f"a timeout of {span(waits)} for the route"
                elsewhere = f"set {shorter}, or a ledger with an inbox: {INBOX_LEDGERS}"
                change = f'set mode = "inbox" there, or {shorter}' if store.inbox else elsewhere
                yield Finding("warning", what, change)


def _inbox(settings: Settings, store: StoreFacts) -> Iterator[Finding]:
    if store.inbox:
        return
    for endpoint in settings.endpoints:
        if endpoint.mode == "inbox" and endpoint.accept == "inbox":
            what = f"endpoint {endpoint.path} accepts into the inbox, and {store.traits.name} keeps none"
            inline = 'set mode = "inline" there, with timeouts as short as its sender waits'
            yield Finding("error", what, f"{inline}, or a ledger with an inbox: {INBOX_LEDGERS}")


def _inbox_ok(settings: Settings) -> str:
    accepted = {endpoint.accept for endpoint in settings.endpoints if endpoint.mode == "inbox"}
    if "inbox" in accepted:
        return "what is accepted is kept in the ledger until it is handled"
    if accepted:
        return "what is accepted is handed on to a broker"
    return "nothing is accepted before it is handled"


def _dead_letters(store: StoreFacts) -> Iterator[Finding]:
    """A store with an inbox keeps letters as safely as that. Elsewhere a replay cannot bring the event by itself."""
    if store.inbox or store.dead_letter_store:
        return
    name, loses = store.traits.name, store.traits.loses
    by_loss: dict[str, list[str]] = {}
    for fault, lost in (("a kill", loses.store_killed), ("power loss", loses.power_loss), ("failover", loses.failover)):
        by_loss.setdefault(lost or "", []).append(fault)
    told = "; ".join(f"by {' or '.join(faults)}, {lost}" for lost, faults in by_loss.items() if lost)
    forgets = "" if store.traits.durable else " It is gone when the process ends."
    what = (
        f"what is given up on is kept in {name} itself, and a replay there waits until the event is sent again."
        f"{forgets}{f' It may lose, {told}.' if told else ''}"
    )
    advice = 'name another store for it: dead_letters = "sqlite:///letters.db", a PostgreSQL or an eventbridge:// bus'
    yield Finding("warning", what, advice)


def _durability(settings: Settings, traits: Traits) -> Iterator[Finding]:
    if not traits.durable:
        change = 'set ledger = "sqlite:///semel.db"'
        what = f"the {traits.name} ledger forgets when the process ends: later copies act again"
        yield Finding("warning", what, change)
        if settings.server.workers > 1:
            what = f"the {traits.name} ledger is not shared by {settings.server.workers} workers: each would act"
            yield Finding("error", what, f"{change}, or workers = 1")
    elif traits.caveat:
        change = (
            "the ledger's own facts say how it is set up, and docs/guarantees.md what that may lose: change its URL or "
            "its server (docs/ledgers.md), or live with it"
        )
        yield Finding("warning", f"{traits.name}: {traits.caveat}", change)


# --------------------------------------------------------------------------------------------------------- access


def _access(settings: Settings, leads: Callable[[str], bool]) -> Iterator[Finding]:
    host = settings.server.host
    if is_loopback(host):
        yield from open_callbacks(settings)  # a proxy lets them in, where their provider was told to call
        return
    if not leads(host):
        meant = f'did you mean "{near}"? ' if (near := nearest(host, ["localhost"])) else ""
        what = f"host: {host} has no address here: nothing can listen there"
        yield Finding("error", what, f'{meant}"127.0.0.1" is this machine only, "0.0.0.0" every network it is in')
        return
    if not settings.tokens:
        what = f"{host} can be reached from other machines, and there are no [[tokens]]"
        yield Finding("error", what, 'add one (`semel token NAME --scope claims`), or set host = "127.0.0.1"')
    for endpoint in settings.endpoints:
        yield from _open_door(endpoint, host)
    yield from open_callbacks(settings)


def _open_door(endpoint: Endpoint, host: str) -> Iterator[Finding]:
    what = f"endpoint {endpoint.path}: anybody who reaches {host} can send events to it"
    if endpoint.verify is None:
        change = 'add [endpoints.verify]; scheme = "none" says that something in front of it verifies'
        unsaid = "; if no events are to come at all, write endpoints = [] at the top" if endpoint == Endpoint() else ""
        yield Finding("error", what, change + unsaid)
    elif endpoint.verify.scheme == "none":
        yield Finding("warning", what, "verify it here, or make sure that something in front of it does")


def _access_ok(settings: Settings) -> str:
    if is_loopback(settings.server.host):
        return f"{settings.server.host} is reached from this machine only"
    verified = "every endpoint verifies who sends, and " if settings.endpoints else ""
    return f"{verified}the API asks for a token"


def _secrets(settings: Settings) -> Iterator[Finding]:
    for name, url in (("ledger", settings.ledger), ("dead_letters", settings.dead_letters)):
        if url is not None and not url.reference and has_password(url.reveal()):
            what = f"{name}: its password stands in the settings as it is, for everybody who reads them"
            change = f'write env:NAME for it, as in user:env:NAME@host, or {name} = "env:NAME" for the whole URL'
            yield Finding("warning", what, change)
    yield from shown_secrets(settings)
    doors = [(f"endpoint {endpoint.path}", endpoint.verify) for endpoint in settings.endpoints]
    doors += [
        (f"provider {name}", said.callbacks.verify) for name, said in settings.providers.items() if said.callbacks
    ]
    for door, verify in doors:
        for secret in verify.secrets if verify is not None else ():
            if len(secret.reveal()) < SECRET_CHARS:
                what = f"{door}: {secret.reference} has less than {SECRET_CHARS} characters"
                yield Finding("warning", what, "use a longer one: what is short can be guessed")
    for name, destination in settings.destinations.items():
        secret_headers = [
            header for header, value in destination.headers.items() if value.reference or header.lower() in SENSITIVE
        ]
        clear = destination.url.lower().startswith("http:") and not is_loopback(host_of(destination.url))
        if secret_headers and clear:
            what = f"destination {name}: {', '.join(secret_headers)} goes to {shown(destination.url)} in the clear"
            yield Finding("warning", what, "use https://")
    yield from told_in_the_clear(settings)


def _fail_open(routes: Sequence[Route]) -> Iterator[Finding]:
    for route in routes:
        if route.fail_open:
            what = f"route {route.name}: runs without the ledger when that cannot be reached, so an event may act twice"
            yield Finding("warning", what, "leave out fail_open where acting twice is worse than acting late")


# ------------------------------------------------------------------------------------------------------- its parts


def forwards(settings: Settings) -> Iterator[tuple[Route, str, Destination]]:
    """Every route that forwards, with its destination and what that is called."""
    for route in settings.routes:
        if route.forward in settings.destinations:
            yield route, f"destination {route.forward}", settings.destinations[route.forward]
        elif route.forward:
            yield route, shown(route.forward), Destination(url=route.forward)


def _one(name: str, found: Iterable[Finding], well: str) -> list[Finding]:
    """What was found under the check's name, or that all is well."""
    named = [Finding(finding.level, finding.what, finding.change, name) for finding in found]
    return named or [Finding("ok", well, "", name)]
