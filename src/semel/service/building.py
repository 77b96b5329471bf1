"""From settings to a running service: the one place where its parts are put together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from semel import wiring
from semel.app import Semel
from semel.core.act import Context
from semel.core.breaker import State
from semel.core.outboxes import needed_outbox
from semel.core.unmatched import Then
from semel.ports import Provider, Publisher
from semel.service.doors import Door
from semel.service.masking import one_line
from semel.settings.options import broker_options, brokers_in, channels_of, endpoint_reading, source_options
from semel.settings.schema import AnySource, Destination, Endpoint, Route, Settings, Verify
from semel.values import keys
from semel.values.effect import KEYED_WINDOW_S
from semel.values.errors import ConfigError
from semel.values.event import Event
from semel.values.log import log
from semel.values.reading import PLAIN, Reading
from semel.wiring import OpenSource

Place = Any  # a destination of the adapters, which only wiring names

Trace: TypeAlias = Callable[[], Mapping[str, str]]

CONSOLE_S = 20.0
MARGIN_S = 2.0  # a route may take this much longer than its destination, before its own time is up


class BreakerWatch(Protocol):
    def says(self, state: State) -> None: ...


class Watch(Protocol):
    """Is told what becomes of destinations."""

    def destination(self, name: str) -> BreakerWatch: ...


class Supply(Struct, frozen=True):
    """A source of the settings, and how it is consumed."""

    name: str
    make: Callable[[], OpenSource]  # one for each loop, and a new one when it could not go on
    workers: int
    unmatched: Then


class Built(Struct, frozen=True):
    """An app with all its routes, what it takes from, what it forwards and hands on to, and who sends its messages."""

    app: Semel
    settings: Settings
    places: dict[str, Place]  # by the name of a destination, or by its URL
    supplies: list[Supply] = []
    publishers: dict[str, Publisher] = {}  # by the kind of their broker
    providers: dict[str, Provider] = {}  # by their names
    channels: dict[str, list[str]] = {}  # the names of those that send each, in their order

    @property
    def reaches(self) -> dict[str, Callable[[], Awaitable[str | None]]]:
        """A way to try each destination and provider: it answers why it cannot be reached, or None."""
        sending = {f"provider {name}": partial(wiring.reach_provider, one) for name, one in self.providers.items()}
        return {**{name: partial(wiring.reach, place) for name, place in self.places.items()}, **sending}

    def breakers(self) -> list[dict[str, Any]]:
        """The breaker of every destination, with the routes that forward to it."""
        return [
            {
                "destination": place.name,
                "routes": [route.name for route in self.settings.routes if route.forward == forward],
                **place.breaker_report(),
            }
            for forward, place in self.places.items()
        ]

    async def close(self) -> None:
        for place in self.places.values():
            await place.close()
        for publisher in self.publishers.values():
            await publisher.close()
        for provider in self.providers.values():
            await provider.close()


def build(
    settings: Settings, app: Semel | None = None, watch: Watch | None = None, trace: Trace | None = None
) -> Built:
    """The app of these settings; `app` is one that was written in Python, which gets the routes besides its handlers.

    `watch` is told when a breaker moves; `trace` gives the headers that pass a trace on."""
    own = app if app is not None else _own_app(settings)
    places = {name: _place(name, one, watch, trace) for name, one in settings.destinations.items()}
    for route in settings.routes:
        if not route.console and route.forward not in places:  # a URL of its own
            places[route.forward] = _place(route.name, Destination(url=route.forward), watch, trace)
        _add_route(own, route, places)
    supplies = [_supply(said, settings) for said in settings.sources]
    providers = {name: wiring.provider(one.kind, name, one.options) for name, one in settings.providers.items()}
    if providers:
        needed_outbox(own.ledger)
    channels = channels_of(settings, providers)
    return Built(own, settings, places, supplies, _publishers(settings), providers, channels)


def _own_app(settings: Settings) -> Semel:
    letters = settings.dead_letters
    return Semel(
        settings.ledger.reveal(),
        dead_letters="" if letters is None else letters.reveal(),
        tenant=settings.tenant,
        origin=settings.origin,
    )


def doors(
    settings: Settings,
    publishers: Mapping[str, Publisher] | None = None,
    providers: Mapping[str, Provider] | None = None,
    own: Reading = PLAIN,
) -> list[Door]:
    """The paths that take deliveries, and those that hear callbacks; who hands on or is heard is found among these.

    `own` is how the app decodes events."""
    taking = [
        _door(endpoint, settings, (publishers or {}).get(endpoint.accept), own) for endpoint in settings.endpoints
    ]
    return taking + [
        _hearing_door(name, one, settings)
        for name, one in (providers or {}).items()
        if settings.providers[name].callbacks
    ]


# ------------------------------------------------------------------------------------------------ sources and brokers


def _supply(said: AnySource, settings: Settings) -> Supply:
    make = partial(wiring.source, said.kind, source_options(said, settings))
    return Supply(said.label, make, said.workers, said.unmatched)


def _publishers(settings: Settings) -> dict[str, Publisher]:
    """Those that an endpoint hands on to."""
    brokers = brokers_in(settings)
    wanted = {endpoint.accept for endpoint in settings.endpoints} & set(brokers)
    return {kind: wiring.publisher(kind, broker_options(brokers[kind])) for kind in sorted(wanted)}


# --------------------------------------------------------------------------------------------------------- routes


def _add_route(app: Semel, route: Route, places: dict[str, Place]) -> None:
    handler: Any
    if route.console:
        handler, timeout_s = _to_console, route.timeout or CONSOLE_S
    else:
        handler = wiring.forward(places[route.forward], route.select, park=route.effect == "park")
        timeout_s = route.timeout or places[route.forward].timeout_s + MARGIN_S
    app.on(
        *route.topics,
        name=route.name,
        key=_key(route.key),
        effect=route.effect,
        timeout=timeout_s,
        lease=route.lease,
        max_attempts=route.max_attempts,
        retention=route.retention,
        window=route.window if route.effect == "keyed" else KEYED_WINDOW_S,
        fail_open=route.fail_open,
    )(handler)


async def _to_console(event: Event, ctx: Context) -> None:
    """Types and ids are the sender's: what a terminal would obey is escaped."""
    print(f"{one_line(event.type)}  {one_line(event.id)}  attempt {ctx.attempt}", flush=True)


def _key(said: str | list[str]) -> keys.Strategy:
    if isinstance(said, list):
        return keys.fields(*said)
    known: dict[str, keys.Strategy] = {"event": keys.event, "delivery": keys.delivery, "content": keys.content}
    if said not in known:
        raise ConfigError(f"key = {said!r}: expected {', '.join(known)}, or a list of paths")
    return known[said]


def _place(name: str, said: Destination, watch: Watch | None, trace: Trace | None) -> Place:
    return wiring.destination(
        name,
        said.url,
        headers=said.headers,
        timeout_s=said.timeout,
        concurrency=said.concurrency,
        allow=said.allow,
        breaker_failures=said.breaker_failures,
        breaker_open_s=said.breaker_open,
        retry_budget=said.retry_budget,
        trace_headers=trace,
        moved=_telling(name, watch),
    )


def _telling(name: str, watch: Watch | None) -> Callable[[State], None] | None:
    if watch is None:
        return None
    says = watch.destination(name).says

    def moved(state: State) -> None:
        says(state)
        log.warning("destination_breaker", destination=name, state=state)

    return moved


# ---------------------------------------------------------------------------------------------------------- doors


def _door(endpoint: Endpoint, settings: Settings, publisher: Publisher | None, own: Reading) -> Door:
    verify = endpoint.verify
    return Door(
        endpoint.path,
        mode=endpoint.mode,
        tenant=endpoint.tenant,
        reading=endpoint_reading(endpoint, settings, own),
        verifier=None if verify is None or verify.scheme == "none" else _verifier(verify),
        unwrap=wiring.unwrap_sns if verify is not None and verify.scheme == "sns" else None,
        busy_status=endpoint.busy_status,
        overload_status=endpoint.overload_status,
        body_max=endpoint.body_max or settings.server.body_max,
        publisher=publisher,
    )


def _hearing_door(name: str, provider: Provider, settings: Settings) -> Door:
    """A provider without callbacks of its own is told of at the door of another one of its kind."""
    kind, callbacks = settings.providers[name].kind, settings.providers[name].callbacks
    calls = wiring.calls_of(kind)
    if callbacks is None or calls is None:
        raise ConfigError(f"provider {name!r}: {kind} calls nobody back: leave out [providers.{name}.callbacks]")
    verify = callbacks.verify
    silent = [other for other, one in settings.providers.items() if one.kind == kind and one.callbacks is None]
    return Door(
        callbacks.path,
        verifier=None if verify is None or verify.scheme == "none" else _verifier(verify),
        unwrap=wiring.unwrap_sns if verify is not None and verify.scheme == "sns" else None,
        overload_status=calls.again,
        body_max=callbacks.body_max or max(calls.body_max or 0, settings.server.body_max),
        hears=provider,
        also=tuple(silent),
    )


def _verifier(verify: Verify) -> Any:
    return wiring.verifier(
        verify.scheme,
        secrets=[secret.reveal() for secret in verify.secrets],
        header=verify.header,
        username=verify.username,
        topics=verify.topics,
        url=verify.url,
    )
