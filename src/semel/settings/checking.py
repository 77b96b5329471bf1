"""What doctor thinks of settings that can be read: do the times fit together, is what is promised kept, who gets in?

It looks at plain facts and answers with findings; only where the name of a host leads is asked outside. `semel run`
does not start when one of them is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil

from msgspec import Struct

from semel.core.handlers import Handler
from semel.ledger_urls import has_password
from semel.ports import Inbox, Ledger, Traits
from semel.settings.findings import Finding as Finding
from semel.settings.findings import Level as Level
from semel.settings.findings import RouteFacts as RouteFacts
from semel.settings.findings import span as span
from semel.settings.problems import nearest
from semel.settings.provider_checking import open_callbacks, provider_findings, providers_ok, told_in_the_clear
from semel.settings.schema import Destination, Endpoint, Route, Settings
from semel.settings.secret import SENSITIVE
from semel.settings.source_checking import shown_secrets, sources_ok, wrong_sources
from semel.settings.topics import misspelt
from semel.settings.urls import host_of, is_loopback, leads_somewhere, shown
from semel.values.effect import KEYED_SHARE
from semel.values.errors import ConfigError
from semel.values.retry import backoff_s

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
    letterbox: bool = False  # what it gives up on is kept in another store


def store_facts(ledger: Ledger) -> StoreFacts:
    return StoreFacts(ledger.traits, isinstance(ledger, Inbox), hasattr(ledger, "letterbox"))


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
        *_one("durability", _durability(settings, store.traits), f"{store.traits.name} keeps what it has answered"),
        *_one("letters", _letters(store), "what is given up on waits for a person in a store that keeps it"),
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
        handed_on = bool(settings.endpoints)
        return "no routes: all events are handed on" if handed_on else "no endpoints and no routes: the HTTP API alone"
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


def _letters(store: StoreFacts) -> Iterator[Finding]:
    """A store with an inbox keeps letters as safely as that. Elsewhere a replay cannot bring the event by itself."""
    if store.inbox or store.letterbox:
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
