"""What a type cannot say of sources and brokers: what excludes each other, and what their adapters think of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from semel.ledger_urls import is_broken, without_secrets
from semel.settings.options import broker_options, brokers_in, source_options
from semel.settings.problems import Fault, Path, quoted
from semel.settings.schema import AnySource, Endpoint, KafkaSource, RabbitBroker, RabbitSource, Settings
from semel.settings.secret import Secret
from semel.values.errors import ConfigError
from semel.wiring import publisher, source

AMQP = ("amqp://", "amqps://")

_OPTION = re.compile(r"(\w+)\s*[=:]")  # how an adapter begins, when it is about one option


def broken_source_rules(settings: Settings) -> Iterator[Fault]:
    yield from _twice(settings.sources)
    for index, said in enumerate(settings.sources):
        yield from _source(said, settings, ("sources", index))
    for kind, broker in brokers_in(settings).items():
        at = ("brokers", kind)
        faults = list(_amqp(broker.url, at)) if isinstance(broker, RabbitBroker) else []
        yield from faults or _judged(partial(publisher, kind, broker_options(broker)), at, broker)
    for index, endpoint in enumerate(settings.endpoints):
        yield from _accept(endpoint, settings, ("endpoints", index))


def _twice(sources: Sequence[AnySource]) -> Iterator[Fault]:
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


def _source(said: AnySource, settings: Settings, at: Path) -> Iterator[Fault]:
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


def _amqp(url: Secret, at: Path) -> Iterator[Fault]:
    """The URL is not repeated: it may hold a password."""
    of = f"{url.reference} is no URL of RabbitMQ: " if url.reference else ""
    if not url.reveal().startswith(AMQP):
        yield Fault((*at, "url"), f'url: {of}expected a URL that begins with amqp:// or amqps://, or "env:NAME"')
    elif is_broken(url.reveal()):
        what = f"url: {of}write special characters of a password in percent, '#' as %23 and '/' as %2F"
        yield Fault((*at, "url"), what)


def _judged(make: Callable[[], object], at: Path, said: object) -> Iterator[Fault]:
    """An adapter knows its options best; it opens nothing yet."""
    try:
        make()
    except ConfigError as error:
        url = getattr(said, "url", None)
        what = without_secrets(str(error), url.reveal()) if isinstance(url, Secret) else str(error)
        option = _OPTION.match(what)
        known = option is not None and hasattr(said, option[1])
        yield Fault((*at, option[1]) if option is not None and known else at, what)


def _accept(endpoint: Endpoint, settings: Settings, at: Path) -> Iterator[Fault]:
    accept = endpoint.accept
    if accept == "inbox":
        return
    if endpoint.mode == "inline":
        what = f'accept: {quoted(accept)} hands events on, and mode = "inline" handles them here: leave one of them out'
        yield Fault((*at, "accept"), what, about=((*at, "mode"),))
    if accept not in brokers_in(settings):
        what = f"accept: there is no [brokers.{accept}], which says where events go"
        yield Fault((*at, "accept"), what, about=(("brokers",), ("brokers", accept)))
