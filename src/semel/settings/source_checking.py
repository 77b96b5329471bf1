"""What doctor thinks of sources, without asking anybody: do the times fit, and is what they bring wanted here?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from semel.ledger_urls import has_password
from semel.settings.findings import Finding, RouteFacts, span
from semel.settings.options import brokers_in
from semel.settings.schema import AnySource, KafkaBroker, KafkaSource, RabbitBroker, RabbitSource, Settings, SqsSource
from semel.settings.secret import Secret


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
    if theirs and theirs in said.takes_from.split(",") and not said.handed_on:
        what = f"source {said.label}: endpoints here fill it, and the notes beside their events are not believed"
        yield Finding(
            "warning", what, "set handed_on = true: then they keep their tenant, and are read in the same way"
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
