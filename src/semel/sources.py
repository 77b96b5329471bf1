"""Sources for `app.consume`, as [[sources]] of `semel.toml` has them. Nothing is opened before it is consumed.

    from semel import Semel, sources

    await app.consume(sources.sqs("https://sqs.eu-central-1.amazonaws.com/123456789012/events", dead_letters="https://…"))

What they have in common:

    dead_letters            where what nobody can act on is kept, with its reason
    tenant, origin          of its events, where they do not say
    id_path, type_path      dotted paths that make any JSON an event
    handed_on               Semel's own endpoints fill it: the note beside an event is believed, also of its tenant

All of them raise ConfigError for options that cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semel import wiring
from semel.values.reading import PLAIN, Reading
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
    handed_on: bool = False,
) -> OpenSource:
    """A queue of Amazon SQS, standard or FIFO, by its URL. Credentials come by the usual chain of AWS.

    dead_letters: the URL of another queue; without it the queue needs a redrive policy.
    visibility: seconds that a message is hidden for, above the lease of every handler; extended while it is in hand.
    """
    return wiring.source(
        "sqs",
        {
            "queue": queue,
            "dead_letters": dead_letters,
            "region": region,
            "endpoint": endpoint,
            "pollers": pollers,
            "max_in_flight": max_in_flight,
            "visibility": visibility,
            "wait": wait,
            **_reading(tenant, origin, id_path, type_path, handed_on),
        },
    )


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
    handed_on: bool = False,
) -> OpenSource:
    """Topics of Kafka, as a member of a consumer group.

    in_order: messages of one key run one after the other. options: whatever librdkafka knows, TLS and SASL for one.
    """
    return wiring.source(
        "kafka",
        {
            "servers": servers,
            "topics": topics,
            "group": group,
            "dead_letters": dead_letters,
            "in_order": in_order,
            "max_in_flight": max_in_flight,
            "options": options or {},
            **_reading(tenant, origin, id_path, type_path, handed_on),
        },
    )


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
    handed_on: bool = False,
) -> OpenSource:
    """A queue of RabbitMQ, amqp:// or amqps://.

    declare: make the queues where they are not there. consumer_timeout: the broker's, in seconds.
    """
    return wiring.source(
        "rabbitmq",
        {
            "url": url,
            "queue": queue,
            "dead_letters": dead_letters,
            "prefetch": prefetch,
            "declare": declare,
            "consumer_timeout": consumer_timeout,
            **_reading(tenant, origin, id_path, type_path, handed_on),
        },
    )


def _reading(tenant: str, origin: str, id_path: str | None, type_path: str | None, handed_on: bool) -> dict[str, Any]:
    reading = Reading(origin, id_path, type_path)
    return {"tenant": tenant, "reading": None if reading == PLAIN else reading, "handed_on": handed_on}
