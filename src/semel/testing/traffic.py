"""Made-up traffic of a Genesys Cloud organisation, as EventBridge delivers it: duplicated, late and out of order.

The same seed gives the same bytes. Two kinds of copies are made. A *redelivery* has the same bytes: the transport sent
it again. A *producer's retry* has the same `detail` in a new envelope, with another EventBridge `id` and `time`: it was
sent again because a reply was lost. Both are the same event.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

BEGIN = datetime(2026, 3, 19, 22, 0, tzinfo=UTC)
STEP_MS = 7  # between two events: a contact centre with about 140 events a second
REORDER_EVENTS = 8.0  # neighbours this far apart swap places
SOON_EVENTS = 40.0  # how far behind its original a copy usually is
LATE = 0.1  # share of copies that come at any later time
PRODUCER = 0.3  # share of copies that Genesys made, in a new envelope
COPIES_MAX = 10.0  # for each event

STEPS = ("customer.start", "acd.start", "acd.end", "user.start", "user.end", "acw", "customer.end")


@dataclass(frozen=True)
class Storm:
    """Deliveries in the order of their arrival, and what is in them."""

    deliveries: list[bytes]
    distinct: int  # different events
    redeliveries: int  # copies with the same bytes
    producer_retries: int  # copies in a new envelope


def storm(events: int, duplicates: float, seed: int = 0) -> Storm:
    """`events` different events, and as many copies of them as `duplicates` says: 0.3 is 30 for 100 events."""
    if events < 1 or not 0 <= duplicates <= COPIES_MAX:
        raise ValueError(f"events={events!r}, duplicates={duplicates!r}: at least 1, and 0 to {COPIES_MAX:g}")
    random = Random(seed)
    originals = list(_envelopes(events, random))
    arrivals = [(at + random.gauss(0, REORDER_EVENTS), _bytes(original)) for at, original in enumerate(originals)]
    producer_retries = 0
    copies = round(events * duplicates)
    for _ in range(copies):
        at = random.randrange(events)
        arrived, body = arrivals[at]
        late = random.uniform(0, events) if random.random() < LATE else random.expovariate(1 / SOON_EVENTS)
        if random.random() < PRODUCER:
            producer_retries += 1
            body = _bytes(_sent_again(originals[at], random))
        arrivals.append((arrived + late, body))
    arrivals.sort(key=lambda arrival: arrival[0])
    return Storm([body for _, body in arrivals], events, copies - producer_retries, producer_retries)


def events(count: int, seed: int = 0) -> Iterator[bytes]:
    """Different events without copies, in order."""
    return map(_bytes, _envelopes(count, Random(seed)))


def _envelopes(count: int, random: Random) -> Iterator[dict[str, Any]]:
    organisation = _uuid(random)
    conversation: dict[str, Any] = {}
    for at in range(count):
        step = at % len(STEPS)
        if step == 0:
            conversation = _conversation(random)
        yield _envelope(organisation, conversation, STEPS[step], BEGIN + timedelta(milliseconds=STEP_MS * at), random)


def _conversation(random: Random) -> dict[str, Any]:
    """What all events of a conversation say."""
    caller = random.randrange(10**7)
    return {
        "conversationId": _uuid(random),
        "participantId": _uuid(random),
        "sessionId": _uuid(random),
        "mediaType": random.choice(("CHAT", "VOICE", "EMAIL", "MESSAGE")),
        "provider": "PureCloud Messaging",
        "direction": "INBOUND",
        "ani": f"tel:+1555{caller:07}",
        "dnis": "tel:+15557654321",
        "addressTo": "queue@example.com",
        "addressFrom": f"customer{caller}@example.com",
        "externalOrganizationId": _uuid(random),
        "externalContactId": _uuid(random),
        "divisionIds": [_uuid(random), _uuid(random)],
        "messageType": "WEBMESSAGING",
        "journeyContext": {
            "customer": {"id": _uuid(random), "idType": "cookie"},
            "customerSession": {"id": _uuid(random), "type": "web"},
        },
    }


def _envelope(
    organisation: str, conversation: dict[str, Any], step: str, moment: datetime, random: Random
) -> dict[str, Any]:
    topic = f"v2.detail.events.conversation.{{id}}.{step}"
    body = {
        "eventTime": int(moment.timestamp() * 1000),
        **conversation,
        "disconnectType": "PEER" if step.endswith("end") else "NONE",
        "interactingDurationMs": random.randrange(600_000),
    }
    return {
        "version": "0",
        "id": _uuid(random),
        "detail-type": topic,
        "source": f"aws.partner/genesys.com/cloud/{organisation}/prod",
        "account": "123456789012",
        "time": f"{moment:%Y-%m-%dT%H:%M:%SZ}",
        "region": "eu-central-1",
        "resources": [],
        "detail": {
            "topicName": topic.replace("{id}", conversation["conversationId"]),
            "version": "2",
            "eventBody": body,
            "metadata": {"CorrelationId": _uuid(random)},
            "timestamp": f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z",
        },
    }


def _sent_again(envelope: dict[str, Any], random: Random) -> dict[str, Any]:
    later = datetime.fromisoformat(envelope["time"]) + timedelta(seconds=random.randint(1, 90))
    return {**envelope, "id": _uuid(random), "time": f"{later:%Y-%m-%dT%H:%M:%SZ}"}


def _uuid(random: Random) -> str:
    return str(UUID(int=random.getrandbits(128), version=4))


def _bytes(envelope: dict[str, Any]) -> bytes:
    return json.dumps(envelope, separators=(",", ":")).encode()
