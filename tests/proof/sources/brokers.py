"""The transports of the storm: each is a queue of its own, with its dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import botocore.session
from tests.proof.sources.storm import Broker
from tests.sources.places import Queue

from semel.testing.servers.sqs import SqsServer

VISIBILITY_S = 3  # above the lease of the consumers; what a killed one held is seen again then


class OnSqs:
    kind = "sqs"

    def __init__(self, server: SqsServer) -> None:
        self._server = server
        aws: Any = botocore.session.get_session().create_client(
            "sqs", region_name=server.region, endpoint_url=server.endpoint or None
        )
        self._queue = Queue(server, aws)

    @property
    def options(self) -> Mapping[str, Any]:
        return {
            "queue": self._queue.url,
            "dead_letters": self._queue.dead_url,
            "endpoint": self._server.endpoint or "",
            "region": self._server.region,
            "visibility": VISIBILITY_S,
            "wait": 1,
        }

    def send(self, bodies: Sequence[bytes]) -> None:
        self._queue.send(bodies)

    def left(self) -> int:
        return self._queue.left()

    def letters(self) -> int:
        return sum(self._queue.attributes(self._queue.dead_url).values())


def _is_a_broker(sqs: OnSqs) -> Broker:
    return sqs
