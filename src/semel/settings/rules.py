"""Rules that types cannot express: names that must exist, and settings that require or exclude each other.

Each function yields the faults of one table. The adapters check their own options; they open nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from semel.ports import Provider
from semel.settings.adapter_options import broker_options, brokers_in, source_options
from semel.settings.errors import Fault, SettingPath, did_you_mean, plain, quoted
from semel.settings.schema import (
    AnySource,
    Callbacks,
    DestinationSettings,
    EndpointSettings,
    KafkaSourceSettings,
    ProviderSettings,
    RabbitBroker,
    RabbitSourceSettings,
    Route,
    Settings,
    Verify,
)
from semel.settings.urls import host_of, internal_kind, is_host_or_range, shown, url_problem
from semel.values.effect import KEYED_WINDOW_S
from semel.values.errors import ConfigError
from semel.values.key import Pattern
from semel.values.notification import CHANNELS
from semel.values.redaction import is_broken, without_secrets
from semel.values.secret import Secret
from semel.wiring import SCHEMES, calls_of, open_ledger, provider, publisher, source

KEYS = ("event", "delivery", "content")
DEAD_LETTER_STORES = (
    "sqlite:///dead-letters.db",
    "postgresql://user@host/database",
    "eventbridge://bus?region=eu-central-1",
)
RESERVED = ("/healthz", "/readyz", "/metrics", "/openapi.json", "/v1")  # and the paths below them
SEMEL_HEADERS = {"idempotency-key", "semel-attempt", "traceparent", "tracestate"}
HOP_BY_HOP_HEADERS = {
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
NOT_FORWARDED = {  # effects that a request to another system cannot have
    "transaction": "the change of a route is not part of a transaction of the ledger",
    "fenced": "the destination does not check ctx.token",
}
VERIFY: dict[str, tuple[set[str], set[str]]] = {  # by scheme: required settings, optional settings
    "genesys": ({"secrets"}, set()),
    "standard-webhooks": ({"secrets"}, set()),
    "hmac-hex": ({"secrets"}, {"header"}),
    "header": ({"secrets"}, {"header"}),
    "basic": ({"secrets", "username"}, set()),
    "sns": ({"topics"}, set()),
    "twilio": ({"secrets", "url"}, set()),
    "sendgrid": ({"secrets"}, set()),
    "telnyx": ({"secrets"}, set()),
    "vonage": ({"secrets"}, set()),
    "none": (set(), set()),
}
VERIFIES_QUERY = ("twilio", "header", "basic", "none")  # schemes that also cover the query of a URL
GENESYS_TOPICS = (  # prefixes of Genesys Cloud topics; others exist, so only near misses are reported
    "v2.analytics",
    "v2.audits",
    "v2.conversations",
    "v2.detail.events.conversation",
    "v2.outbound",
    "v2.routing.queues",
    "v2.users",
)
NEAR = 0.88  # similarity: one letter in a short name, two in a long one

_PUBLIC_KEYS = {  # base64 of a P-256 key in DER, and of 32 bytes
    "sendgrid": (re.compile(r"MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE[A-Za-z0-9+/]{86}=="), "MFkwEwYH…"),
    "telnyx": (re.compile(r"[A-Za-z0-9+/]{43}="), "44 letters of base64"),
}
_WHSEC = re.compile(r"whsec_(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)")

# Errors of adapters start with the option that they are about.
_SOURCE_OPTION = re.compile(r"(\w+)\s*[=:]")
_PROVIDER_OPTION = re.compile(
    r"provider '[^']*'(?: \([^)]*\))?: (?P<what>(?:there is no option '(?P<unknown>[^']+)'|(?P<option>\w+)).*)",
    re.DOTALL,
)
_PROVIDER_URL = re.compile(r"destination '[^']*': its url (?P<what>.*)", re.DOTALL)


def broken_rules(settings: Settings) -> Iterator[Fault]:
    yield from _ledger(settings)
    yield from _duplicates("endpoints", "path", [endpoint.path for endpoint in settings.endpoints])
    yield from _duplicates("routes", "name", [route.name for route in settings.routes])
    yield from _duplicates("tokens", "name", [token.name for token in settings.tokens])
    yield from _duplicates("tokens", "digest", [token.digest for token in settings.tokens])
    for index, endpoint in enumerate(settings.endpoints):
        yield from _endpoint(endpoint, settings, ("endpoints", index))
    yield from _duplicate_sources(settings.sources)
    for index, table in enumerate(settings.sources):
        yield from _source(table, settings, ("sources", index))
    for kind, broker in brokers_in(settings).items():
        at = ("brokers", kind)
        faults = list(_amqp_url(broker.url, at)) if isinstance(broker, RabbitBroker) else []
        yield from faults or _adapter_fault(partial(publisher, kind, broker_options(broker)), at, broker)
    yield from _providers(settings)
    for name, destination in settings.destinations.items():
        yield from _destination(destination, ("destinations", name))
    for index, route in enumerate(settings.routes):
        yield from _route(route, settings, ("routes", index))


def _duplicates(table: str, key: str, values: list[str]) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            shown = "" if key == "digest" else f" {quoted(value)}"
            yield Fault((table, index, key), f"another of [[{table}]] already has the {key}{shown}")
        seen.add(value)


# ------------------------------------------------------------------------------------------------------------- ledger


def _ledger(settings: Settings) -> Iterator[Fault]:
    dead_letters = settings.dead_letters
    faults = list(_store("ledger", settings.ledger))
    if dead_letters is not None and not dead_letters.reveal().startswith("eventbridge:"):  # a bus is not a store
        faults += _store("dead_letters", dead_letters)
    yield from faults
    if dead_letters is not None and not faults:  # each is valid: check the combination
        try:
            open_ledger(settings.ledger.reveal(), dead_letters=dead_letters.reveal())
        except ConfigError as error:
            yield Fault(("dead_letters",), str(error), about=(("ledger",),))


def _store(name: str, url: Secret) -> Iterator[Fault]:
    examples = SCHEMES if name == "ledger" else DEAD_LETTER_STORES
    schemes = [example.partition(":")[0] for example in SCHEMES]
    scheme, colon, _ = url.reveal().partition("://")
    if not colon or scheme not in (*schemes, "postgres"):
        of = f"{url.reference} is not the URL of a store: " if url.reference and not colon else ""
        guess = did_you_mean(scheme, [example.partition(":")[0] for example in examples]) if colon else ""
        yield Fault((name,), f"{name}: {of}expected one of {', '.join(examples)}{guess}")
        return
    try:
        open_ledger(url.reveal())
    except ConfigError as error:
        what = str(error)
        yield Fault((name,), what if what.startswith(f"{name}:") else f"{name}: {what.removeprefix('ledger ')}")


# ------------------------------------------------------------------------------------------ endpoints, sources, brokers


def _endpoint(endpoint: EndpointSettings, settings: Settings, at: SettingPath) -> Iterator[Fault]:
    yield from _path(endpoint.path, at)
    yield from _type_path(endpoint, at)
    if endpoint.verify is not None:
        yield from _verify(endpoint.verify, (*at, "verify"))
    accept = endpoint.accept
    if accept == "inbox":
        return
    if endpoint.mode == "inline":
        what = f'accept: {quoted(accept)} forwards events, but mode = "inline" handles them here: remove one of them'
        yield Fault((*at, "accept"), what, about=((*at, "mode"),))
    if accept not in brokers_in(settings):
        what = f"accept: there is no [brokers.{accept}]: add it, with the queue or topic of the events"
        yield Fault((*at, "accept"), what, about=(("brokers",), ("brokers", accept)))


def _path(path: str, at: SettingPath) -> Iterator[Fault]:
    if any(part in ("", ".", "..") for part in path.split("/")[1:]):
        yield Fault((*at, "path"), f"path: {quoted(path)} has an empty segment, or a dot as a segment")
    elif any(path == reserved or path.startswith(f"{reserved}/") for reserved in RESERVED):
        yield Fault((*at, "path"), f"path: {quoted(path)} is reserved by Semel; use another, such as /events")


def _type_path(table: EndpointSettings | AnySource, at: SettingPath) -> Iterator[Fault]:
    if table.type_path is not None and table.id_path is None:
        what = "type_path is only used together with id_path: set id_path too"
        yield Fault((*at, "type_path"), what, about=((*at, "id_path"),))


def _verify(verify: Verify, at: SettingPath) -> Iterator[Fault]:
    required, optional = VERIFY[verify.scheme]
    about = ((*at, "scheme"),)
    values: dict[str, Any] = {
        "secrets": verify.secrets,
        "header": verify.header,
        "username": verify.username,
        "topics": verify.topics,
        "url": verify.url,
    }
    for name, value in values.items():
        if name in required and not value:
            example = ' = ["env:NAME"]' if name == "secrets" else ""
            yield Fault((*at, name), f"scheme {quoted(verify.scheme)} needs {name}{example}", about)
        elif value and name not in required | optional:
            yield Fault((*at, name), f"scheme {quoted(verify.scheme)} has no {name}: remove it", about)
    if ":" in verify.username:
        yield Fault((*at, "username"), "username: a user name of HTTP Basic must not contain a colon")
    for index, secret in enumerate(verify.secrets):
        if problem := _secret_problem(secret.reveal(), verify.scheme):
            yield Fault((*at, "secrets", index), f"secrets[{index}]: {secret.reference} {problem}", about)


def _secret_problem(secret: str, scheme: str) -> str:
    """The reason why a secret cannot be right, without any part of it; or an empty text."""
    if secret != secret.strip() or _has_control(secret):
        return "starts or ends with white space, or contains a line break or control character: remove it"
    if scheme == "standard-webhooks" and not _WHSEC.fullmatch(secret):
        return "is not a secret of Standard Webhooks: expected whsec_ and base64, as the sender shows it"
    if scheme in _PUBLIC_KEYS and not _PUBLIC_KEYS[scheme][0].fullmatch(secret):
        return f"is not a public key as {scheme} shows it: expected {_PUBLIC_KEYS[scheme][1]}, on one line"
    return ""


def _has_control(text: str) -> bool:
    return any(char < " " or "\x7f" <= char <= "\x9f" for char in text)


def _duplicate_sources(sources: Sequence[AnySource]) -> Iterator[Fault]:
    """Two sources of one queue would only compete. More throughput comes from `workers` or from more processes."""
    queues: set[tuple[object, ...]] = set()
    names: set[str] = set()
    for index, table in enumerate(sources):
        queue: tuple[object, ...]
        match table:
            case KafkaSourceSettings():
                queue = (table.servers, table.group, *sorted(table.topics))
            case RabbitSourceSettings():
                queue = (table.url, table.queue)
            case _:
                queue = (table.queue,)
        if queue in queues:
            what = "another of [[sources]] already takes from the same place: give that one more workers"
            yield Fault(("sources", index, "topics" if isinstance(table, KafkaSourceSettings) else "queue"), what)
        elif table.label in names:
            what = f"another of [[sources]] is already called {quoted(table.label)}: give each of them a name"
            yield Fault(("sources", index, "name"), what)
        queues.add(queue)
        names.add(table.label)


def _source(table: AnySource, settings: Settings, at: SettingPath) -> Iterator[Fault]:
    faults = list(_type_path(table, at))
    if table.dead_letters is not None and table.dead_letters in table.takes_from.split(","):
        what = "dead_letters: rejected messages would be redelivered: name another queue or topic than the source's own"
        faults.append(Fault((*at, "dead_letters"), what))
    if isinstance(table, RabbitSourceSettings):
        faults += _amqp_url(table.url, at)
    yield from faults or _adapter_fault(partial(source, table.kind, source_options(table, settings)), at, table)


def _amqp_url(url: Secret, at: SettingPath) -> Iterator[Fault]:
    """Faults do not repeat the URL: it may contain a password."""
    of = f"{url.reference} is not a URL of RabbitMQ: " if url.reference else ""
    if not url.reveal().startswith(("amqp://", "amqps://")):
        yield Fault((*at, "url"), f'url: {of}expected a URL that starts with amqp:// or amqps://, or "env:NAME"')
    elif is_broken(url.reveal()):
        what = f"url: {of}write special characters of a password in percent encoding, '#' as %23 and '/' as %2F"
        yield Fault((*at, "url"), what)


def _adapter_fault(make: Callable[[], object], at: SettingPath, table: Struct) -> Iterator[Fault]:
    try:
        make()
    except ConfigError as error:
        what = str(error)
        if isinstance(table, RabbitSourceSettings | RabbitBroker):
            what = without_secrets(what, table.url.reveal())
        option = _SOURCE_OPTION.match(what)
        known = option is not None and option[1] in table.__struct_fields__
        yield Fault((*at, option[1]) if option is not None and known else at, what)


# ---------------------------------------------------------------------------------------------------------- providers


def _providers(settings: Settings) -> Iterator[Fault]:
    opened: dict[str, Provider] = {}
    paths = {endpoint.path for endpoint in settings.endpoints}
    for name, table in settings.providers.items():
        at = ("providers", name)
        try:
            opened[name] = provider(table.kind, name, table.options)
        except ConfigError as error:
            yield _provider_fault(str(error), at)
        callback = table.options.get("callback", "")
        if callback and (problem := url_problem(callback.partition("#")[0])):  # Twilio's retry options follow the #
            yield Fault((*at, "callback"), f"callback: {problem}")
        if table.callbacks is not None:
            yield from _callbacks(table, table.callbacks, paths, at)
            paths.add(table.callbacks.path)
    if len(opened) == len(settings.providers):  # otherwise their channels are unknown
        yield from _channels(settings, opened)


def _provider_fault(what: str, at: SettingPath) -> Fault:
    if (url := _PROVIDER_URL.fullmatch(what)) is not None:
        return Fault((*at, "url"), f"url: it {url['what']}")
    match = _PROVIDER_OPTION.fullmatch(what)
    if match is None:
        return Fault(at, what)
    if match["what"].startswith("there is no kind"):
        return Fault((*at, "kind"), f"kind: {match['what']}")
    option = match["unknown"] or match["option"]
    return Fault((*at, option) if option else at, match["what"])


def _callbacks(table: ProviderSettings, callbacks: Callbacks, paths: set[str], at: SettingPath) -> Iterator[Fault]:
    here = (*at, "callbacks")
    yield from _path(callbacks.path, here)
    if callbacks.path in paths:
        yield Fault((*here, "path"), f"path: {quoted(callbacks.path)} is already in use: choose another path")
    if callbacks.verify is not None:
        yield from _verify(callbacks.verify, (*here, "verify"))
    calls = calls_of(table.kind)
    if calls is None:
        yield Fault(here, f"{table.kind} sends no callbacks: remove [{'.'.join(map(str, at))}.callbacks]")
        return
    in_query = table.kind == "twilio" and "callback" in table.options
    if in_query and callbacks.verify is not None and callbacks.verify.scheme not in VERIFIES_QUERY:
        what = f"scheme: only {', '.join(VERIFIES_QUERY)} verify the query of a callback, which has the notification id"
        yield Fault((*here, "verify", "scheme"), f'{what}: use "{calls.scheme}"')


def _channels(settings: Settings, opened: Mapping[str, Provider]) -> Iterator[Fault]:
    configured: dict[str, list[str]] = asdict(settings.channels)
    for channel in CHANNELS:
        able = [name for name, opened_provider in opened.items() if channel in opened_provider.contract.channels]
        for index, name in enumerate(configured[channel]):
            at = ("channels", channel, index)
            if name not in opened:
                what = f"{channel}: there is no provider {quoted(name)}"
                yield Fault(at, what + (did_you_mean(name, opened) or f"; add [providers.{name}]"), (("providers",),))
            elif name not in able:
                supported = ", ".join(opened[name].contract.channels)
                what = f"{channel}: provider {quoted(name)} sends {supported}; if it also sends {channel}, add it to"
                yield Fault(at, f"{what} channels in [providers.{name}]", (("providers", name),))
            elif name in configured[channel][:index]:
                yield Fault(at, f"{channel}: {quoted(name)} is listed twice: remove one of them")
        if not configured[channel] and len(able) > 1:
            names = ", ".join(map(quoted, able))
            what = f"{channel} can be sent by {names}: set their order, of which the first one sends"
            yield Fault(("channels", channel), f"{what}: {channel} = [{names}] in [channels]", (("providers",),))


# --------------------------------------------------------------------------------------------- destinations and routes


def _destination(destination: DestinationSettings, at: SettingPath) -> Iterator[Fault]:
    if problem := url_problem(destination.url):
        yield Fault((*at, "url"), f"url: {problem}")
    seen: set[str] = set()
    for name, value in destination.headers.items():
        here = (*at, "headers", name)
        if name.lower() in seen:
            yield Fault(here, f"headers.{name} is set twice: header names are case-insensitive")
        seen.add(name.lower())
        if name.lower() in SEMEL_HEADERS | HOP_BY_HOP_HEADERS:
            yield Fault(here, f"headers.{name} is set by Semel or by the connection: remove it")
        if _has_control(value.reveal()):
            of = f" of {value.reference}" if value.reference else ""
            yield Fault(here, f"headers.{name}: the value{of} contains a control character, such as a line break")
    for index, host in enumerate(destination.allow):
        if not is_host_or_range(host):
            what = f"allow[{index}]: expected a host or a range such as 10.0.0.0/8, got {quoted(host)}"
            yield Fault((*at, "allow", index), what)


def _route(route: Route, settings: Settings, at: SettingPath) -> Iterator[Fault]:
    for index, text in enumerate(route.topics):
        try:
            Pattern(text)
        except ConfigError as error:
            yield Fault((*at, "topics", index), str(error))
    yield from _target(route, settings, at)
    yield from _key(route.key, (*at, "key"))
    effect = ((*at, "effect"),)
    if route.effect in NOT_FORWARDED:
        why = NOT_FORWARDED[route.effect]
        yield Fault((*at, "effect"), f'effect: {quoted(route.effect)}: {why}; use "keyed", "retry" or "park"')
    if route.window != KEYED_WINDOW_S and route.effect != "keyed":
        what = 'window: only a route with effect = "keyed" has one, the time for which its destination honours a key'
        yield Fault((*at, "window"), what, about=effect)
    if route.fail_open and not any(endpoint.mode == "inline" for endpoint in settings.endpoints):
        what = 'fail_open only applies to endpoints with mode = "inline", and there is none'
        modes = [("endpoints", index, "mode") for index in range(len(settings.endpoints))]
        yield Fault((*at, "fail_open"), what, about=(("endpoints",), *modes))
    if route.fail_open and route.effect == "park":
        what = 'fail_open: a run without the ledger may be the second one, and effect = "park" forbids that: remove it'
        yield Fault((*at, "fail_open"), what, about=effect)


def _target(route: Route, settings: Settings, at: SettingPath) -> Iterator[Fault]:
    here = (*at, "forward")
    if bool(route.forward) == route.console:
        what = (
            "a route has forward or console, not both"
            if route.console
            else 'the route has no target: set forward = "https://…" or the name of a destination, or console = true'
        )
        yield Fault(here, what, about=((*at, "console"),))
    if not route.forward:
        return
    if any(sign in route.forward for sign in ":/"):
        if problem := url_problem(route.forward):
            yield Fault(here, f"forward: {problem}")
        elif kind := internal_kind(host := host_of(route.forward)):
            what = (
                f"forward: {host} is {kind}, and only a destination can allow it: write "
                f'[destinations.NAME] with url = "{shown(route.forward)}/…" and allow = [{quoted(host)}], '
                'and in the route forward = "NAME"'
            )
            yield Fault(here, what)
    elif route.forward not in settings.destinations:
        guess = did_you_mean(route.forward, settings.destinations)
        missing = guess or f"; add [destinations.{plain(route.forward)}], or write a URL"
        what = f"forward: there is no destination {quoted(route.forward)}{missing}"
        yield Fault(here, what, about=(("destinations",),))


def _key(key: str | list[str], at: SettingPath) -> Iterator[Fault]:
    if key == []:
        yield Fault(at, "key: the list is empty; name at least one path")
    elif isinstance(key, str) and key not in KEYS:
        known = ", ".join(map(quoted, KEYS))
        hint = f"; for a path write a list: key = [{quoted(key)}]" if "." in key else did_you_mean(key, KEYS)
        yield Fault(at, f"key: expected {known} or a list of paths, got {quoted(key)}{hint}")


def misspelt(pattern: str) -> str:
    """A known topic prefix that the pattern nearly has, with the rest of the pattern; or an empty text."""
    parts = pattern.split(".")
    known = [topic.split(".") for topic in GENESYS_TOPICS]
    if any(parts[: len(topic)] == topic for topic in known):
        return ""
    for topic in known:
        start, rest = ".".join(parts[: len(topic)]), parts[len(topic) :]
        if "*" not in start and SequenceMatcher(None, start.lower(), ".".join(topic)).ratio() >= NEAR:
            return ".".join([*topic, *rest])
    return ""
