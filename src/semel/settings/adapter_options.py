"""From what is written to what an adapter is given: the options of sources and brokers, and who sends what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict, replace

from semel.ports import Provider
from semel.settings.schema import (
    AnySource,
    Endpoint,
    KafkaBroker,
    KafkaSource,
    RabbitBroker,
    RabbitSource,
    Settings,
    SqsBroker,
    SqsSource,
)
from semel.values.delivery_state import routes_of
from semel.values.event import PLAIN, DecodeOptions


def decode_options_of(said: Endpoint | AnySource, settings: Settings) -> DecodeOptions | None:
    """How its events are read; None: in the app's own way, which may come from Python."""
    decode_options = DecodeOptions(said.origin, said.id_path, said.type_path)
    if decode_options == PLAIN:
        return None
    return decode_options if said.origin else replace(decode_options, origin=settings.origin)


def endpoint_reading(endpoint: Endpoint, settings: Settings, own: DecodeOptions) -> DecodeOptions | None:
    """How the events of an endpoint are decoded; None: as the app decodes them, which is `own`.

    Senders choose their own ids. An endpoint with a secret or an id_path of its own therefore has an id space of its
    own, named by its path, for all shapes that do not name the platform that made them."""
    decode_options = decode_options_of(endpoint, settings)
    verified = endpoint.verify is not None and endpoint.verify.scheme != "none"
    if not verified and endpoint.id_path is None:
        return decode_options
    return replace(decode_options or own, default_origin=endpoint.path)


def source_options(said: AnySource, settings: Settings) -> dict[str, Any]:
    """Those of the adapter of its kind."""
    own: dict[str, Any]
    match said:
        case SqsSource():
            own = {
                "queue": said.queue,
                "region": said.region,
                "endpoint": said.endpoint,
                "pollers": said.pollers,
                "max_in_flight": said.max_in_flight,
                "visibility": said.visibility,
                "wait": said.wait,
            }
        case KafkaSource():
            own = {
                "servers": said.servers,
                "topics": said.topics,
                "group": said.group,
                "in_order": said.in_order,
                "max_in_flight": said.max_in_flight,
                "options": {name: value.reveal() for name, value in said.options.items()},
            }
        case RabbitSource():
            own = {
                "url": said.url.reveal(),
                "queue": said.queue,
                "prefetch": said.prefetch,
                "declare": said.declare,
                "consumer_timeout": said.consumer_timeout,
            }
    return {
        **own,
        "dead_letters": said.dead_letters or "",
        "tenant": said.tenant,
        "decode_options": decode_options_of(said, settings),
        "forwarded": said.forwarded,
    }


def broker_options(said: SqsBroker | KafkaBroker | RabbitBroker) -> dict[str, Any]:
    """Those of the adapter that hands events on to it."""
    own: dict[str, Any]
    match said:
        case SqsBroker():
            own = {"queue": said.queue, "region": said.region, "endpoint": said.endpoint}
        case KafkaBroker():
            options = {name: value.reveal() for name, value in said.options.items()}
            own = {"servers": said.servers, "topic": said.topic, "options": options}
        case RabbitBroker():
            own = {"url": said.url.reveal(), "queue": said.queue, "exchange": said.exchange}
            own |= {"declare": said.declare, "dead_letters": said.dead_letters or ""}
    return {**own, "timeout": said.timeout}


def brokers_in(settings: Settings) -> dict[str, SqsBroker | KafkaBroker | RabbitBroker]:
    """Those that the file has, by their kind."""
    said = settings.brokers
    return {
        kind: broker
        for kind, broker in (("sqs", said.sqs), ("kafka", said.kafka), ("rabbitmq", said.rabbitmq))
        if broker is not None
    }


def channels_of(settings: Settings, providers: Mapping[str, Provider]) -> dict[str, list[str]]:
    """The providers of each channel, in their order."""
    return routes_of((one.contract for one in providers.values()), asdict(settings.channels))
