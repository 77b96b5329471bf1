"""Sources for `app.consume`, with the options of `[[sources]]` in `semel.toml`. `app.consume` opens them.

    from semel import Semel, sources

    await app.consume(sources.sqs("https://sqs.eu-central-1.amazonaws.com/123456789012/events", dead_letters="https://…"))

Common options:

    dead_letters            queue or topic that keeps rejected messages, with the reason
    tenant, origin          default tenant and origin of its events
    id_path, type_path      dotted paths to the id and the type of an event in any JSON document
    forwarded               endpoints of Semel fill it: metadata of a message is trusted, including its tenant

Each function raises ConfigError for an invalid option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semel import wiring
from semel.values.event import PLAIN, DecodeOptions
from semel.wiring import OpenSource


def sqs(
    queue: str,
    *,
    dead_letters: str = "",
    region: str = "",
    endpoint: str = "",
    pollers: int = 4,
    max_in_flight: int = 256,
    visibility: int = 30,
    wait: int = 20,
    tenant: str = "",
    origin: str = "",
    id_path: str | None = None,
    type_path: str | None = None,
    forwarded: bool = False,
) -> OpenSource:
    """An Amazon SQS queue, standard or FIFO, by its URL. Credentials come from the usual AWS chain.

    dead_letters: the URL of another queue; without it the queue needs a redrive policy.
    visibility: seconds for which a received message is invisible. It must exceed the lease of every handler; the source
        extends it while the message is in flight.
    """
    return _source("sqs", locals())


def kafka(
    servers: str,
    topics: Sequence[str],
    *,
    group: str,
    dead_letters: str,
    in_order: bool = False,
    max_in_flight: int = 1_000,
    options: Mapping[str, str] | None = None,
    tenant: str = "",
    origin: str = "",
    id_path: str | None = None,
    type_path: str | None = None,
    forwarded: bool = False,
) -> OpenSource:
    """Kafka topics, read as a member of a consumer group.

    in_order: messages of one key run one after the other. options: options of librdkafka, for example TLS and SASL.
    """
    return _source("kafka", locals())


def rabbitmq(
    url: str,
    queue: str,
    *,
    dead_letters: str,
    prefetch: int = 250,
    declare: bool = False,
    consumer_timeout: float = 1800.0,
    tenant: str = "",
    origin: str = "",
    id_path: str | None = None,
    type_path: str | None = None,
    forwarded: bool = False,
) -> OpenSource:
    """A RabbitMQ queue, with an amqp:// or amqps:// URL.

    declare: create missing queues. consumer_timeout: the broker's setting, in seconds.
    """
    return _source("rabbitmq", locals())


def _source(kind: str, options: dict[str, Any]) -> OpenSource:
    """Build a source from the arguments of its function: they are the options of its adapter, by the same names."""
    decode_options = DecodeOptions(options.pop("origin"), options.pop("id_path"), options.pop("type_path"))
    return wiring.source(kind, {**options, "decode_options": None if decode_options == PLAIN else decode_options})
