"""What a type cannot say: names that must be known, settings that need or exclude each other. One function a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial

from semel.ports import Provider
from semel.settings.adapter_options import broker_options, brokers_in, source_options
from semel.settings.errors import Fault, SettingPath, did_you_mean, plain, quoted
from semel.settings.schema import (
    AnySource,
    Callbacks,
    Destination,
    Endpoint,
    KafkaSource,
    RabbitBroker,
    RabbitSource,
    Route,
    Settings,
    Verify,
)
from semel.settings.schema import Provider as ProviderSettings
from semel.settings.urls import host_of, internal_kind, is_host_or_range, shown, url_problem
from semel.values.effect import KEYED_WINDOW_S
from semel.values.errors import ConfigError
from semel.values.key import Pattern
from semel.values.notification import CHANNELS
from semel.values.redaction import is_broken, without_secrets
from semel.values.secret import Secret
from semel.wiring import SCHEMES, calls_of, open_ledger, provider, publisher, source

# Topics that everybody has heard of: a pattern that nearly is one of them is probably meant to be it.

FAMILIES = (  # how topics of Genesys Cloud begin; others exist, so only near misses are told
    "v2.analytics",
    "v2.audits",
    "v2.conversations",
    "v2.detail.events.conversation",
    "v2.outbound",
    "v2.routing.queues",
    "v2.users",
)
NEAR = 0.88  # of similarity: one letter in a short name, two in a long one


def misspelt(pattern: str) -> str:
    """The pattern as it was probably meant; empty when nothing speaks against it."""
    parts = pattern.split(".")
    if any(parts[: len(family.split("."))] == family.split(".") for family in FAMILIES):
        return ""
    for family in FAMILIES:
        length = len(family.split("."))
        begins, rest = ".".join(parts[:length]), parts[length:]
        if "*" not in begins and SequenceMatcher(None, begins.lower(), family).ratio() >= NEAR:
            return ".".join([family, *rest])
    return ""


# What a type cannot say of sources and brokers: what excludes each other, and what their adapters think of them.

AMQP = ("amqp://", "amqps://")

_OPTION = re.compile(r"(\w+)\s*[=:]")  # how an adapter begins, when it is about one option


def broken_source_rules(settings: Settings) -> Iterator[Fault]:
    yield from _twice_source(settings.sources)
    for index, said in enumerate(settings.sources):
        yield from _source(said, settings, ("sources", index))
    for kind, broker in brokers_in(settings).items():
        at = ("brokers", kind)
        faults = list(_amqp(broker.url, at)) if isinstance(broker, RabbitBroker) else []
        yield from faults or _judged(partial(publisher, kind, broker_options(broker)), at, broker)
    for index, endpoint in enumerate(settings.endpoints):
        yield from _accept(endpoint, settings, ("endpoints", index))


def _twice_source(sources: Sequence[AnySource]) -> Iterator[Fault]:
    """Two sources on one queue would only take from each other; more of one is `workers`, or more processes."""
    places: set[tuple[object, ...]] = set()
    names: set[str] = set()
    for index, said in enumerate(sources):
        if (place := _place(said)) in places:
            key = "topics" if isinstance(said, KafkaSource) else "queue"
            what = "another of [[sources]] takes from the same place already: give that one more workers"
            yield Fault(("sources", index, key), what)
        elif said.label in names:
            what = f"another of [[sources]] is called {quoted(said.label)} already: give each of them a name"
            yield Fault(("sources", index, "name"), what)
        places.add(place)
        names.add(said.label)


def _place(said: AnySource) -> tuple[object, ...]:
    match said:
        case KafkaSource():
            return said.servers, said.group, tuple(sorted(said.topics))
        case RabbitSource():
            return said.url, said.queue
        case _:
            return (said.queue,)


def _source(said: AnySource, settings: Settings, at: SettingPath) -> Iterator[Fault]:
    faults = []
    if said.type_path is not None and said.id_path is None:
        what = "type_path is only read together with id_path: say where the id is, too"
        faults.append(Fault((*at, "type_path"), what, about=((*at, "id_path"),)))
    if said.dead_letters is not None and said.dead_letters in said.takes_from.split(","):
        what = "dead_letters: what is rejected would come again: name another place than the one it is taken from"
        faults.append(Fault((*at, "dead_letters"), what))
    if isinstance(said, RabbitSource):
        faults += _amqp(said.url, at)
    yield from faults or _judged(partial(source, said.kind, source_options(said, settings)), at, said)


def _amqp(url: Secret, at: SettingPath) -> Iterator[Fault]:
    """The URL is not repeated: it may hold a password."""
    of = f"{url.reference} is no URL of RabbitMQ: " if url.reference else ""
    if not url.reveal().startswith(AMQP):
        yield Fault((*at, "url"), f'url: {of}expected a URL that begins with amqp:// or amqps://, or "env:NAME"')
    elif is_broken(url.reveal()):
        what = f"url: {of}write special characters of a password in percent, '#' as %23 and '/' as %2F"
        yield Fault((*at, "url"), what)


def _judged(make: Callable[[], object], at: SettingPath, said: object) -> Iterator[Fault]:
    """An adapter knows its options best; it opens nothing yet."""
    try:
        make()
    except ConfigError as error:
        url = getattr(said, "url", None)
        what = without_secrets(str(error), url.reveal()) if isinstance(url, Secret) else str(error)
        option = _OPTION.match(what)
        known = option is not None and hasattr(said, option[1])
        yield Fault((*at, option[1]) if option is not None and known else at, what)


def _accept(endpoint: Endpoint, settings: Settings, at: SettingPath) -> Iterator[Fault]:
    accept = endpoint.accept
    if accept == "inbox":
        return
    if endpoint.mode == "inline":
        what = f'accept: {quoted(accept)} hands events on, and mode = "inline" handles them here: leave one of them out'
        yield Fault((*at, "accept"), what, about=((*at, "mode"),))
    if accept not in brokers_in(settings):
        what = f"accept: there is no [brokers.{accept}], which says where events go"
        yield Fault((*at, "accept"), what, about=(("brokers",), ("brokers", accept)))


# What a type cannot say of providers and channels: what their adapters think of them, and who sends what.

PROVES_QUERY = ("twilio", "header", "basic", "none")  # schemes after which the query of a URL may be believed

_ABOUT = re.compile(
    r"provider '[^']*'(?: \([^)]*\))?: (?P<what>(?:there is no option '(?P<unknown>[^']+)'|(?P<option>\w+)).*)",
    re.DOTALL,
)


_PLACE = re.compile(r"destination '[^']*': its url (?P<what>.*)", re.DOTALL)


def broken_provider_rules(settings: Settings) -> Iterator[Fault]:
    made: dict[str, Provider] = {}
    for name, said in settings.providers.items():
        try:
            made[name] = provider(said.kind, name, said.options)
        except ConfigError as error:
            yield _fault(str(error), ("providers", name))
    for name, said in settings.providers.items():
        callback = said.options.get("callback", "")
        if callback and (wrong := url_problem(callback.partition("#")[0])):  # behind it, Twilio is told how to try
            yield Fault(("providers", name, "callback"), f"callback: {wrong}")
        if said.callbacks is not None:
            yield from _callbacks(said, said.callbacks, ("providers", name))
    if len(made) == len(settings.providers):  # else nobody knows what they can send
        yield from _channels(settings, made)


def _fault(said: str, at: SettingPath) -> Fault:
    """An adapter names its option first: the line of that one is told."""
    if (of_url := _PLACE.fullmatch(said)) is not None:
        return Fault((*at, "url"), f"url: it {of_url['what']}")
    about = _ABOUT.fullmatch(said)
    if about is None:
        return Fault(at, said)
    if about["what"].startswith("there is no kind"):
        return Fault((*at, "kind"), f"kind: {about['what']}")
    option = about["unknown"] or about["option"]
    return Fault((*at, option) if option else at, about["what"])


def _callbacks(said: ProviderSettings, callbacks: Callbacks, at: SettingPath) -> Iterator[Fault]:
    calls = calls_of(said.kind)
    if calls is None:
        yield Fault(
            (*at, "callbacks"), f"{said.kind} calls nobody back: leave out [{'.'.join(map(str, at))}.callbacks]"
        )
        return
    in_query = said.kind == "twilio" and "callback" in said.options
    if in_query and callbacks.verify is not None and callbacks.verify.scheme not in PROVES_QUERY:
        what = f"scheme: our id is in the query of its callbacks, and only {', '.join(PROVES_QUERY)} prove that"
        yield Fault((*at, "callbacks", "verify", "scheme"), f'{what}: use "{calls.scheme}"')


def _channels(settings: Settings, made: Mapping[str, Provider]) -> Iterator[Fault]:
    for channel in CHANNELS:
        able = [name for name, one in made.items() if channel in one.contract.channels]
        said: list[str] = getattr(settings.channels, channel)
        for index, name in enumerate(said):
            at = ("channels", channel, index)
            if name not in made:
                what = f"{channel}: there is no provider {quoted(name)}"
                yield Fault(at, what + (did_you_mean(name, made) or f"; add [providers.{name}]"), (("providers",),))
            elif name not in able:
                what = f"{channel}: provider {quoted(name)} sends {', '.join(made[name].contract.channels)}"
                yield Fault(at, f"{what}; if it does send {channel}, say so in its channels", (("providers", name),))
            elif name in said[:index]:
                yield Fault(at, f"{channel}: {quoted(name)} is there twice")
        if not said and len(able) > 1:
            names = ", ".join(map(quoted, able))
            what = f"{channel} can be sent by {names}: say which one does, and which one is asked after a refusal"
            yield Fault(("channels", channel), f"{what}: {channel} = [{names}] in [channels]", (("providers",),))


KEYS = ("event", "delivery", "content")
LETTERS = ("sqlite:///letters.db", "postgresql://user@host/database", "eventbridge://bus?region=eu-central-1")
RESERVED = ("/healthz", "/readyz", "/metrics", "/openapi.json", "/v1")  # and what is below them
SEMEL_HEADERS = {
    "idempotency-key",
    "semel-attempt",
    "traceparent",
    "tracestate",
}  # headers that a destination's may not be
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
NOT_FORWARDED = {  # effects that a request to somewhere else cannot have
    "transaction": "no transaction of the ledger can hold what a route does elsewhere",
    "fenced": "nothing there checks ctx.token",
}
VERIFY: dict[str, tuple[set[str], set[str]]] = {  # scheme: what it needs, what it may have besides
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

_SHAPES = {  # of public keys, which people copy: base64 of a P-256 key in DER, and of 32 bytes
    "sendgrid": (re.compile(r"MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE[A-Za-z0-9+/]{86}=="), "MFkwEwYH…"),
    "telnyx": (re.compile(r"[A-Za-z0-9+/]{43}="), "44 letters of base64"),
}
_WHSEC = re.compile(r"whsec_(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)")


def broken_rules(settings: Settings) -> Iterator[Fault]:
    yield from _ledger(settings)
    yield from _twice("endpoints", "path", [endpoint.path for endpoint in settings.endpoints])
    yield from _twice("routes", "name", [route.name for route in settings.routes])
    yield from _twice("tokens", "name", [token.name for token in settings.tokens])
    yield from _twice("tokens", "digest", [token.digest for token in settings.tokens])
    for index, endpoint in enumerate(settings.endpoints):
        yield from _endpoint(endpoint, ("endpoints", index))
    yield from broken_source_rules(settings)
    yield from broken_provider_rules(settings)
    taken = {endpoint.path for endpoint in settings.endpoints}
    for name, named in settings.providers.items():
        if (callbacks := named.callbacks) is not None:
            at = ("providers", name, "callbacks")
            yield from _path(callbacks.path, at)
            if callbacks.path in taken:
                yield Fault((*at, "path"), f"path: something else is at {quoted(callbacks.path)} already")
            if callbacks.verify is not None:
                yield from _verify(callbacks.verify, (*at, "verify"))
            taken.add(callbacks.path)
    for name, destination in settings.destinations.items():
        yield from _destination(destination, ("destinations", name))
    for index, route in enumerate(settings.routes):
        yield from _route(route, settings, ("routes", index))


def _ledger(settings: Settings) -> Iterator[Fault]:
    faults = list(_store("ledger", settings.ledger))
    dead_letters = settings.dead_letters
    if dead_letters is not None and not dead_letters.reveal().startswith(
        "eventbridge:"
    ):  # a bus is no store: it is judged below
        faults += _store("dead_letters", dead_letters)
    yield from faults
    if settings.dead_letters is not None and not faults:  # each of them is right: do they fit together?
        try:
            open_ledger(settings.ledger.reveal(), dead_letters=settings.dead_letters.reveal())
        except ConfigError as error:
            yield Fault(("dead_letters",), str(error), about=(("ledger",),))


def _store(name: str, url: Secret) -> Iterator[Fault]:
    """A URL is judged by the adapter of its scheme, which opens nothing yet."""
    examples = SCHEMES if name == "ledger" else LETTERS
    schemes = [example.partition(":")[0] for example in SCHEMES]
    scheme, colon, _ = url.reveal().partition("://")
    of = f"{url.reference} is no URL of a store: " if url.reference and not colon else ""
    if not colon or scheme not in (*schemes, "postgres"):
        guess = did_you_mean(scheme, [example.partition(":")[0] for example in examples]) if colon else ""
        yield Fault((name,), f"{name}: {of}expected one of {', '.join(examples)}{guess}")
        return
    try:
        open_ledger(url.reveal())
    except ConfigError as error:
        said = str(error)
        yield Fault((name,), said if said.startswith(f"{name}:") else f"{name}: {said.removeprefix('ledger ')}")


def _twice(table: str, key: str, values: list[str]) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            shown = "" if key == "digest" else f" {quoted(value)}"
            yield Fault((table, index, key), f"another of [[{table}]] has the {key}{shown} already")
        seen.add(value)


def _path(path: str, at: SettingPath) -> Iterator[Fault]:
    if any(part in ("", ".", "..") for part in path.split("/")[1:]):
        yield Fault((*at, "path"), f"path: {quoted(path)} has an empty part or a dot for a name")
    elif any(path == taken or path.startswith(f"{taken}/") for taken in RESERVED):
        yield Fault((*at, "path"), f"path: {quoted(path)} is Semel's own; use another, such as /events")


def _endpoint(endpoint: Endpoint, at: SettingPath) -> Iterator[Fault]:
    yield from _path(endpoint.path, at)
    if endpoint.type_path is not None and endpoint.id_path is None:
        what = "type_path is only read together with id_path: say where the id is, too"
        yield Fault((*at, "type_path"), what, about=((*at, "id_path"),))
    if endpoint.verify is not None:
        yield from _verify(endpoint.verify, (*at, "verify"))


def _verify(verify: Verify, at: SettingPath) -> Iterator[Fault]:
    needed, allowed = VERIFY[verify.scheme]
    for name in ("secrets", "header", "username", "topics", "url"):
        given = bool(getattr(verify, name))
        about = ((*at, "scheme"),)
        if name in needed and not given:
            example = ' = ["env:NAME"]' if name == "secrets" else ""
            yield Fault((*at, name), f"scheme {quoted(verify.scheme)} needs {name}{example}", about)
        elif given and name not in needed | allowed:
            yield Fault((*at, name), f"scheme {quoted(verify.scheme)} has no {name}: leave it out", about)
    if ":" in verify.username:
        yield Fault((*at, "username"), "username: a user name of HTTP Basic has no colon")
    for index, secret in enumerate(verify.secrets):
        if wrong := _unusable(secret.reveal(), verify.scheme):
            yield Fault(
                (*at, "secrets", index), f"secrets[{index}]: {secret.reference} {wrong}", about=((*at, "scheme"),)
            )


def _unusable(secret: str, scheme: str) -> str:
    """Why a secret cannot be right, without telling anything of it."""
    if secret != secret.strip() or _has_control(secret):
        return "has white space at an end, or a line break or control character in it: remove that"
    if scheme == "standard-webhooks" and not _WHSEC.fullmatch(secret):
        return "is no secret of Standard Webhooks: whsec_ and then base64, as the sender shows it"
    if scheme in _SHAPES and not _SHAPES[scheme][0].fullmatch(secret):
        return f"is no public key as {scheme} shows it: {_SHAPES[scheme][1]}, on one line"
    return ""


def _has_control(text: str) -> bool:
    return any(char < " " or "\x7f" <= char <= "\x9f" for char in text)


def _destination(destination: Destination, at: SettingPath) -> Iterator[Fault]:
    if wrong := url_problem(destination.url):
        yield Fault((*at, "url"), f"url: {wrong}")
    seen: set[str] = set()
    for name, value in destination.headers.items():
        here = (*at, "headers", name)
        if name.lower() in seen:
            yield Fault(here, f"headers.{name} is there twice: capitals make no difference")
        seen.add(name.lower())
        if name.lower() in SEMEL_HEADERS | HOP_BY_HOP_HEADERS:
            yield Fault(here, f"headers.{name} is set by Semel or by the connection: leave it out")
        if _has_control(value.reveal()):
            of = f" of {value.reference}" if value.reference else ""
            yield Fault(here, f"headers.{name}: the value{of} has a control character, such as a line break")
    for index, host in enumerate(destination.allow):
        if not is_host_or_range(host):
            what = f"allow[{index}]: expected a host or a range such as 10.0.0.0/8, got {quoted(host)}"
            yield Fault((*at, "allow", index), what)


def _route(route: Route, settings: Settings, at: SettingPath) -> Iterator[Fault]:
    yield from _topics(route.topics, at)
    yield from _target(route, settings, at)
    yield from _key(route.key, (*at, "key"))
    if route.effect in NOT_FORWARDED:
        why = NOT_FORWARDED[route.effect]
        yield Fault((*at, "effect"), f'effect: {quoted(route.effect)}: {why}; use "keyed", "retry" or "park"')
    if route.window != KEYED_WINDOW_S and route.effect != "keyed":
        what = 'window is how long a destination honours an Idempotency-Key; only effect = "keyed" has one'
        yield Fault((*at, "window"), what, about=((*at, "effect"),))
    if route.fail_open and not any(endpoint.mode == "inline" for endpoint in settings.endpoints):
        what = 'fail_open: runs without the ledger happen only at an endpoint with mode = "inline", and there is none'
        modes = [("endpoints", index, "mode") for index in range(len(settings.endpoints))]
        yield Fault((*at, "fail_open"), what, about=(("endpoints",), *modes))
    if route.fail_open and route.effect == "park":
        what = 'fail_open: without the ledger nobody can promise "at most once", which effect = "park" is for'
        yield Fault((*at, "fail_open"), what, about=((*at, "effect"),))


def _topics(topics: Iterable[str], at: SettingPath) -> Iterator[Fault]:
    for index, text in enumerate(topics):
        try:
            Pattern(text)
        except ConfigError as error:
            yield Fault((*at, "topics", index), str(error))


def _target(route: Route, settings: Settings, at: SettingPath) -> Iterator[Fault]:
    here, console = (*at, "forward"), (*at, "console")
    if bool(route.forward) == route.console:
        what = (
            "a route has forward or console, not both"
            if route.console
            else 'say where events go: forward = "https://…" or the name of a destination, or console = true'
        )
        yield Fault(here, what, about=(console,))
    if not route.forward:
        return
    if any(sign in route.forward for sign in ":/"):
        if wrong := url_problem(route.forward):
            yield Fault(here, f"forward: {wrong}")
        elif kind := internal_kind(host := host_of(route.forward)):
            what = (
                f"forward: {host} is {kind}, and is not called unless a destination allows it: write "
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
