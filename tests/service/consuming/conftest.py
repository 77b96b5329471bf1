"""Queues and topics for services that consume them."""

from __future__ import annotations

from tests.sources.conftest import aws, new_queue, queue, server
from tests.sources.kafka.conftest import kafka, new_topics, topics
from tests.sources.rabbitmq.conftest import broker, client, new_place, place

# Fixtures are found by their names here.
__all__ = [
    "aws",
    "broker",
    "client",
    "kafka",
    "new_place",
    "new_queue",
    "new_topics",
    "place",
    "queue",
    "server",
    "topics",
]
