"""How one made-up event is spelled in each of the shapes in which platforms send it.

The texts are put together from parts, most of which are the same for a whole conversation: a load generator shares its
processors with what it loads.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import lru_cache
from random import Random
from typing import Any, Literal, get_args

Shape = Literal["eventbridge", "detail", "webhook", "open-messaging", "cloudevents"]
SHAPES: tuple[Shape, ...] = get_args(Shape)

STEPS = ("customer.start", "acd.start", "acd.end", "user.start", "user.end", "acw", "customer.end")
KINDS = ("created", "queued", "routed", "accepted", "left", "wrapped", "ended")  # the same steps, of the webhook
SENT_AGAIN_S = 90  # a producer that got no reply tries again within so long

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Organisation:
    """Fields of all events of an organisation."""

    def __init__(self, random: Random) -> None:
        self.id = uuid(random)
        self.source = f"aws.partner/genesys.com/cloud/{self.id}/prod"


class Conversation:
    """Fields of all events of a conversation, and the ids of each event."""

    STEPS = len(STEPS)

    def __init__(self, random: Random) -> None:
        caller = random.randrange(10**7)
        some = uuids(random, 9)
        self.members: dict[str, Any] = {
            "conversationId": some[0],
            "participantId": some[1],
            "sessionId": some[2],
            "mediaType": random.choice(("CHAT", "VOICE", "EMAIL", "MESSAGE")),
            "provider": "PureCloud Messaging",
            "direction": "INBOUND",
            "ani": f"tel:+1555{caller:07}",
            "dnis": "tel:+15557654321",
            "addressTo": "queue@example.com",
            "addressFrom": f"customer{caller}@example.com",
            "externalOrganizationId": some[3],
            "externalContactId": some[4],
            "divisionIds": [some[5], some[6]],
            "messageType": "WEBMESSAGING",
            "journeyContext": {
                "customer": {"id": some[7], "idType": "cookie"},
                "customerSession": {"id": some[8], "type": "web"},
            },
        }
        self.id: str = self.members["conversationId"]
        self.text = _encode(self.members)[1:-1]
        self.ids = uuids(random, len(STEPS))  # of EventBridge, or of the message
        self.correlations = uuids(random, len(STEPS))
        self.durations_ms = [random.randrange(600_000) for _ in STEPS]

    def topic(self, step: int) -> str:
        return f"v2.detail.events.conversation.{self.id}.{STEPS[step]}"


def spell(shape: Shape, organisation: Organisation, conversation: Conversation, step: int, moment_ms: int) -> bytes:
    match shape:
        case "eventbridge":
            detail = _detail(conversation, step, moment_ms)
            return _envelope(organisation, step, conversation.ids[step], _second(moment_ms // 1000), detail).encode()
        case "detail":
            return _detail(conversation, step, moment_ms).encode()
        case "webhook":
            return _webhook(conversation, step, moment_ms).encode()
        case "open-messaging":
            return _encode(_message(organisation, conversation, step, moment_ms)).encode()
        case "cloudevents":
            return _cloudevent(organisation, conversation, step, moment_ms).encode()


def spell_again(
    shape: Shape, organisation: Organisation, conversation: Conversation, step: int, moment_ms: int, random: Random
) -> bytes:
    """The same event as its producer sends it once more."""
    if shape == "eventbridge":
        detail = _detail(conversation, step, moment_ms)
        later = _second(moment_ms // 1000 + random.randint(1, SENT_AGAIN_S))
        return _envelope(organisation, step, uuid(random), later, detail).encode()
    return json.dumps(json.loads(spell(shape, organisation, conversation, step, moment_ms))).encode()


def uuid(random: Random) -> str:
    return uuids(random, 1)[0]


def uuids(random: Random, count: int) -> list[str]:
    """Several from one draw, which is quicker."""
    digits = f"{random.getrandbits(128 * count):0{32 * count}x}"
    return [
        f"{digits[at : at + 8]}-{digits[at + 8 : at + 12]}-4{digits[at + 13 : at + 16]}"
        f"-a{digits[at + 17 : at + 20]}-{digits[at + 20 : at + 32]}"
        for at in range(0, 32 * count, 32)
    ]


def _body(conversation: Conversation, step: int, moment_ms: int) -> str:
    ended = "PEER" if STEPS[step].endswith("end") else "NONE"
    return (
        f'{{"eventTime":{moment_ms},{conversation.text},"disconnectType":"{ended}",'
        f'"interactingDurationMs":{conversation.durations_ms[step]}}}'
    )


def _detail(conversation: Conversation, step: int, moment_ms: int) -> str:
    return (
        f'{{"topicName":"{conversation.topic(step)}","version":"2","eventBody":{_body(conversation, step, moment_ms)},'
        f'"metadata":{{"CorrelationId":"{conversation.correlations[step]}"}},"timestamp":"{_iso(moment_ms)}"}}'
    )


def _envelope(organisation: Organisation, step: int, own_id: str, time: str, detail: str) -> str:
    return (
        f'{{"version":"0","id":"{own_id}","detail-type":"v2.detail.events.conversation.{{id}}.{STEPS[step]}",'
        f'"source":"{organisation.source}","account":"123456789012","time":"{time}Z","region":"eu-central-1",'
        f'"resources":[],"detail":{detail}}}'
    )


def _webhook(conversation: Conversation, step: int, moment_ms: int) -> str:
    return (
        f'{{"id":"{conversation.ids[step]}","type":"interaction.{KINDS[step]}","createdTime":{moment_ms},'
        f'"data":{_body(conversation, step, moment_ms)}}}'
    )


def _message(organisation: Organisation, conversation: Conversation, step: int, moment_ms: int) -> dict[str, Any]:
    """Genesys Open Messaging, outbound: what an agent wrote to a customer."""
    own_id = conversation.ids[step]
    return {
        "id": own_id,
        "channel": {
            "id": conversation.members["sessionId"],
            "platform": "Open",
            "type": "Private",
            "messageId": own_id,
            "to": {"id": conversation.members["addressFrom"], "idType": "Email"},
            "from": {"id": organisation.id, "nickname": "Service"},
            "time": _iso(moment_ms),
        },
        "type": "Text",
        "text": f"Your request {conversation.id[:8]} was {KINDS[step]}. Thank you for your patience – we are here.",
        "originatingEntity": "Human",
        "direction": "Outbound",
        "conversationId": conversation.id,
    }


def _cloudevent(organisation: Organisation, conversation: Conversation, step: int, moment_ms: int) -> str:
    return (
        f'{{"specversion":"1.0","id":"{conversation.ids[step]}","source":"urn:genesys:{organisation.id}",'
        f'"type":"v2.detail.events.conversation.{STEPS[step]}","subject":"{conversation.id}","time":"{_iso(moment_ms)}",'
        f'"datacontenttype":"application/json","data":{_body(conversation, step, moment_ms)}}}'
    )


def _iso(moment_ms: int) -> str:
    return f"{_second(moment_ms // 1000)}.{moment_ms % 1000:03}Z"


@lru_cache(maxsize=1024)
def _second(epoch_s: int) -> str:
    return f"{datetime.fromtimestamp(epoch_s, UTC):%Y-%m-%dT%H:%M:%S}"
