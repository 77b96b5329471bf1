"""Builds a service from its settings: the app with its routes, endpoints, destinations, sources, publishers and
providers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

import aiohttp
from msgspec import Struct

from semel import wiring
from semel.app import Semel
from semel.core.breaker import State
from semel.core.handler_run import Context
from semel.core.resend import needed_outbox
from semel.core.routing import UnmatchedAnswer
from semel.ports import Provider, Publisher
from semel.service.endpoints import ServedEndpoint
from semel.service.logging import one_line
from semel.settings.adapter_options import broker_options, brokers_in, channels_of, endpoint_reading, source_options
from semel.settings.schema import DestinationSettings, EndpointSettings, Route, Settings, Verify
from semel.values import keys
from semel.values.effect import KEYED_WINDOW_S
from semel.values.errors import ConfigError
from semel.values.event import PLAIN, DecodeOptions, Event
from semel.values.log import log
from semel.wiring import OpenSource

CERTIFICATE_MAX_BYTES = 16 * 1024
TIMEOUT_S = 5.0
ABSENT = (403, 404, 410)  # no such certificate: a definite answer, which the caller may cache


async def fetch_certificate(url: str) -> bytes:
    """Fetch a certificate that signs SNS messages. The caller has checked the address.

    Returns the body of a 200, or nothing if there is no such certificate. Raises OSError otherwise."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
            async with session.get(url, allow_redirects=False) as answer:
                if answer.status in ABSENT:
                    return b""
                if answer.status != 200:
                    raise OSError(f"{url} answered {answer.status}")
                body = await answer.content.read(CERTIFICATE_MAX_BYTES + 1)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise OSError(f"{url}: {type(error).__name__}") from error
    if len(body) > CERTIFICATE_MAX_BYTES:
        raise OSError(f"{url} is larger than a certificate")
    return body


BuiltDestination = Any  # a destination of the adapters, which only wiring names

Trace: TypeAlias = Callable[[], Mapping[str, str]]

CONSOLE_S = 20.0
MARGIN_S = 2.0  # added to the timeout of a destination, to get the timeout of its route


class BreakerObserver(Protocol):
    def set_state(self, state: State) -> None: ...


class DestinationObserver(Protocol):
    """Receives the state changes of destination breakers. `Metrics` implements it."""

    def destination(self, name: str) -> BreakerObserver: ...


class SourceSpec(Struct, frozen=True):
    """A source of the settings, and how it is consumed."""

    name: str
    make: Callable[[], OpenSource]  # called once per loop, and again to reopen the source after an error
    workers: int
    unmatched: UnmatchedAnswer


class BuiltService(Struct, frozen=True):
    """The app with all its routes, and the destinations, sources, publishers and providers of the settings."""

    app: Semel
    settings: Settings
    destinations: dict[str, BuiltDestination]  # by the name of a destination, or by its URL
    sources: list[SourceSpec] = []
    publishers: dict[str, Publisher] = {}  # by the kind of their broker
    providers: dict[str, Provider] = {}  # by name
    channels: dict[str, list[str]] = {}  # provider names per channel, in order of preference

    @property
    def reaches(self) -> dict[str, Callable[[], Awaitable[str | None]]]:
        """A connection check per destination and provider. It returns why it failed, or None."""
        checks: dict[str, Callable[[], Awaitable[str | None]]] = {}
        checks |= {name: partial(wiring.reach, destination) for name, destination in self.destinations.items()}
        for name, provider in self.providers.items():
            checks[f"provider {name}"] = partial(wiring.reach_provider, provider)
        return checks

    def breakers(self) -> list[dict[str, Any]]:
        """The breaker of every destination, with the routes that forward to it."""
        return [
            {
                "destination": destination.name,
                "routes": [route.name for route in self.settings.routes if route.forward == forward],
                **destination.breaker_report(),
            }
            for forward, destination in self.destinations.items()
        ]

    async def close(self) -> None:
        for destination in self.destinations.values():
            await destination.close()
        for publisher in self.publishers.values():
            await publisher.close()
        for provider in self.providers.values():
            await provider.close()


def build(
    settings: Settings,
    app: Semel | None = None,
    observer: DestinationObserver | None = None,
    trace: Trace | None = None,
) -> BuiltService:
    """Build the app of these settings. `app` is one written in Python; it gets the routes besides its handlers.

    `observer` receives changes of breakers. `trace` returns the headers that propagate a trace."""
    if app is None:
        dead_letters = "" if settings.dead_letters is None else settings.dead_letters.reveal()
        tenant, origin = settings.tenant, settings.origin
        app = Semel(settings.ledger.reveal(), dead_letters=dead_letters, tenant=tenant, origin=origin)
    destinations = {name: _destination(name, spec, observer, trace) for name, spec in settings.destinations.items()}
    for route in settings.routes:
        if not route.console and route.forward not in destinations:  # `forward` is a URL, not a configured name
            destinations[route.forward] = _destination(
                route.name, DestinationSettings(url=route.forward), observer, trace
            )
        _add_route(app, route, destinations)
    sources = [
        SourceSpec(
            source.label,
            partial(wiring.source, source.kind, source_options(source, settings)),
            source.workers,
            source.unmatched,
        )
        for source in settings.sources
    ]
    brokers = brokers_in(settings)
    kinds = sorted({endpoint.accept for endpoint in settings.endpoints} & set(brokers))  # that endpoints forward to
    publishers: dict[str, Publisher] = {kind: wiring.publisher(kind, broker_options(brokers[kind])) for kind in kinds}
    providers = {name: wiring.provider(one.kind, name, one.options) for name, one in settings.providers.items()}
    if providers:
        needed_outbox(app.ledger)
    channels = channels_of(settings, providers)
    return BuiltService(app, settings, destinations, sources, publishers, providers, channels)


def served_endpoints(
    settings: Settings,
    publishers: Mapping[str, Publisher] | None = None,
    providers: Mapping[str, Provider] | None = None,
    own: DecodeOptions = PLAIN,
) -> list[ServedEndpoint]:
    """The endpoints for deliveries and for provider callbacks. `own` is how the app decodes events."""
    deliveries = [
        _endpoint(endpoint, settings, (publishers or {}).get(endpoint.accept), own) for endpoint in settings.endpoints
    ]
    return deliveries + [
        _callback_endpoint(name, provider, settings)
        for name, provider in (providers or {}).items()
        if settings.providers[name].callbacks
    ]


# --------------------------------------------------------------------------------------------------------- routes


def _add_route(app: Semel, route: Route, destinations: dict[str, BuiltDestination]) -> None:
    handler: Any
    if route.console:
        handler, timeout_s = _to_console, route.timeout or CONSOLE_S
    else:
        handler = wiring.forward(destinations[route.forward], route.select, park=route.effect == "park")
        timeout_s = route.timeout or destinations[route.forward].timeout_s + MARGIN_S
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
    """Print one event. Types and ids come from the sender, so control characters are escaped."""
    print(f"{one_line(event.type)}  {one_line(event.id)}  attempt {ctx.attempt}", flush=True)


def _key(key: str | list[str]) -> keys.Strategy:
    if isinstance(key, list):
        return keys.fields(*key)
    known: dict[str, keys.Strategy] = {"event": keys.event, "delivery": keys.delivery, "content": keys.content}
    if key not in known:
        raise ConfigError(f"key = {key!r}: expected {', '.join(known)}, or a list of paths")
    return known[key]


def _destination(
    name: str, settings: DestinationSettings, observer: DestinationObserver | None, trace: Trace | None
) -> BuiltDestination:
    moved: Callable[[State], None] | None = None
    if observer is not None:
        set_state = observer.destination(name).set_state

        def moved(state: State) -> None:
            set_state(state)
            log.warning("destination_breaker", destination=name, state=state)

    return wiring.destination(
        name,
        settings.url,
        headers=settings.headers,
        timeout_s=settings.timeout,
        concurrency=settings.concurrency,
        allow=settings.allow,
        breaker_failures=settings.breaker_failures,
        breaker_open_s=settings.breaker_open,
        retry_budget=settings.retry_budget,
        trace_headers=trace,
        moved=moved,
    )


# ------------------------------------------------------------------------------------------------------ endpoints


def _endpoint(
    endpoint: EndpointSettings, settings: Settings, publisher: Publisher | None, own: DecodeOptions
) -> ServedEndpoint:
    verify = endpoint.verify
    return ServedEndpoint(
        endpoint.path,
        mode=endpoint.mode,
        tenant=endpoint.tenant,
        decode_options=endpoint_reading(endpoint, settings, own),
        verifier=None if verify is None or verify.scheme == "none" else _verifier(verify),
        unwrap=wiring.unwrap_sns if verify is not None and verify.scheme == "sns" else None,
        busy_status=endpoint.busy_status,
        overload_status=endpoint.overload_status,
        body_max=endpoint.body_max or settings.server.body_max,
        publisher=publisher,
    )


def _callback_endpoint(name: str, provider: Provider, settings: Settings) -> ServedEndpoint:
    """The endpoint of one provider's callbacks. It also takes callbacks about providers of the same kind that have no
    endpoint of their own."""
    kind, callbacks = settings.providers[name].kind, settings.providers[name].callbacks
    calls = wiring.calls_of(kind)
    if callbacks is None or calls is None:
        raise ConfigError(f"provider {name!r}: {kind} sends no callbacks: remove [providers.{name}.callbacks]")
    verify = callbacks.verify
    aliases = [other for other, one in settings.providers.items() if one.kind == kind and one.callbacks is None]
    return ServedEndpoint(
        callbacks.path,
        verifier=None if verify is None or verify.scheme == "none" else _verifier(verify),
        unwrap=wiring.unwrap_sns if verify is not None and verify.scheme == "sns" else None,
        overload_status=calls.again,
        body_max=callbacks.body_max or max(calls.body_max or 0, settings.server.body_max),
        callback_provider=provider,
        aliases=tuple(aliases),
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
