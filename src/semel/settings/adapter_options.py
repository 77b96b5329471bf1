"""Converts settings to the options of adapters: sources, brokers, decode options, and the providers of channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict, replace

from semel.ports import Provider
from semel.settings.schema import (
    AnySource,
    EndpointSettings,
    KafkaBroker,
    RabbitBroker,
    Settings,
    SqsBroker,
)
from semel.values.delivery_state import routes_of
from semel.values.event import PLAIN, DecodeOptions
from semel.values.secret import Secret

CONSUMER_FIELDS = {"name", "workers", "unmatched", "origin", "id_path", "type_path"}
"""Fields of [[sources]] that the adapter does not take as they are."""


def decode_options_of(table: EndpointSettings | AnySource, settings: Settings) -> DecodeOptions | None:
    """The decode options of an endpoint or a source. None: those of the app, which may be set in Python."""
    decode_options = DecodeOptions(table.origin, table.id_path, table.type_path)
    if decode_options == PLAIN:
        return None
    return decode_options if table.origin else replace(decode_options, origin=settings.origin)


def endpoint_reading(endpoint: EndpointSettings, settings: Settings, own: DecodeOptions) -> DecodeOptions | None:
    """The decode options of an endpoint. None: `own`, those of the app.

    Senders choose their ids. An endpoint with its own secret or id_path therefore has its own id space, named by its
    path, for all shapes that do not name the platform of their events.
    """
    decode_options = decode_options_of(endpoint, settings)
    verified = endpoint.verify is not None and endpoint.verify.scheme != "none"
    if not verified and endpoint.id_path is None:
        return decode_options
    return replace(decode_options or own, default_origin=endpoint.path)


def source_options(source: AnySource, settings: Settings) -> dict[str, Any]:
    """The keyword arguments of the source's adapter: the fields of its table, except those of the consumer."""
    options = {name: _plain(value) for name, value in asdict(source).items() if name not in CONSUMER_FIELDS}
    return {**options, "decode_options": decode_options_of(source, settings)}


def broker_options(broker: SqsBroker | KafkaBroker | RabbitBroker) -> dict[str, Any]:
    """The keyword arguments of the broker's publisher: the fields of its table."""
    return {name: _plain(value) for name, value in asdict(broker).items()}


def _plain(value: Any) -> Any:
    """The value as an adapter takes it: secrets revealed, and an empty text for None."""
    match value:
        case Secret():
            return value.reveal()
        case dict():
            return {name: _plain(item) for name, item in value.items()}
    return "" if value is None else value


def brokers_in(settings: Settings) -> dict[str, SqsBroker | KafkaBroker | RabbitBroker]:
    """The configured brokers, by kind."""
    return {kind: broker for kind, broker in asdict(settings.brokers).items() if broker is not None}


def channels_of(settings: Settings, providers: Mapping[str, Provider]) -> dict[str, list[str]]:
    """The providers of each channel, in order."""
    return routes_of((provider.contract for provider in providers.values()), asdict(settings.channels))
