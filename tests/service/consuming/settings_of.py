"""Settings of a service that consumes a queue of the emulator."""

from __future__ import annotations

from typing import Any

from tests.sources.places import Queue

APP = "tests.service.consuming.consumed_app:app"
ENV = {"LEASE": "1"}  # an event whose holder was killed is free again after this
SLOW = {"LEASE": "50"}  # no stall of the machine takes a lease away


def source_of(place: Queue, /, **changes: Any) -> str:
    said: dict[str, Any] = {
        "kind": "sqs",
        "name": "events",
        "queue": place.url,
        "dead_letters": place.dead_url,
        "endpoint": place.server.endpoint,
        "region": place.server.region,
        "visibility": 2,
        "wait": 1,
        "pollers": 2,
        **changes,
    }
    lines = [f"{key} = {value if isinstance(value, int) else repr(value)}" for key, value in said.items()]
    return "\n".join(["[[sources]]", *lines, ""])
