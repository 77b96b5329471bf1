"""The peers on Redis: one event at a time, as most consumers are written, and as aws-lambda-powertools does it.

Each works through all deliveries with a handler that does nothing, and returns how often that handler ran.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast

import redis
import redis.asyncio
from pydantic import BaseModel, ConfigDict, Field

KEPT_S = 38 * 86_400  # as long as Semel keeps a settled key
IDENTITY = "detail.[topicName, eventBody.participantId, eventBody.sessionId, eventBody.eventTime]"


class Body(BaseModel):
    model_config = ConfigDict(extra="allow")
    eventTime: int  # noqa: N815 - as on the wire
    conversationId: str  # noqa: N815
    participantId: str  # noqa: N815
    sessionId: str  # noqa: N815


class Detail(BaseModel):
    model_config = ConfigDict(extra="allow")
    topicName: str  # noqa: N815
    eventBody: Body  # noqa: N815


class Envelope(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: str
    detail_type: str = Field(alias="detail-type")
    source: str
    detail: Detail

    @property
    def key(self) -> str:
        said = self.detail.eventBody
        return f"{self.detail.topicName}|{said.participantId}|{said.sessionId}|{said.eventTime}"


def set_nx_loop(client: redis.Redis, bodies: Sequence[bytes]) -> int:
    """The loop of most tutorials: mark the key, then act. A crash in between loses the event."""
    ran = 0
    for body in bodies:
        envelope = Envelope.model_validate_json(body)
        if client.set(envelope.key, b"1", nx=True, ex=KEPT_S):
            ran += 1
    return ran


async def set_nx_loop_async(client: redis.asyncio.Redis, bodies: Sequence[bytes]) -> int:
    """The same in an async program, such as a webhook."""
    ran = 0
    for body in bodies:
        envelope = Envelope.model_validate_json(body)
        if await client.set(envelope.key, b"1", nx=True, ex=KEPT_S):
            ran += 1
    return ran


class Powertools:
    """A Lambda handler under `@idempotent`, called as the runtime calls it: with the decoded document."""

    def __init__(self, client: redis.Redis) -> None:
        with warnings.catch_warnings(), _without_boto3():
            warnings.simplefilter("ignore", DeprecationWarning)  # the class has a newer name, and is still the same
            from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent
            from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer

            store = CachePersistenceLayer(client=cast(Any, client))
        self._ran = 0

        @idempotent(persistence_store=store, config=IdempotencyConfig(IDENTITY, expires_after_seconds=KEPT_S))
        def handler(event: dict[str, Any], context: Any) -> None:
            self._ran += 1

        self._handler = handler

    def loop(self, bodies: Sequence[bytes]) -> int:
        self._ran = 0
        context = LambdaContext()
        for body in bodies:
            self._handler(json.loads(body), context)
        return self._ran


class LambdaContext:
    def get_remaining_time_in_millis(self) -> int:
        return 25_000


@contextmanager
def _without_boto3() -> Iterator[None]:
    """Importing Powertools imports boto3, for DynamoDB, which its cache layer never touches: an empty one will do."""
    missing = importlib.util.find_spec("boto3") is None
    if missing:
        empty, types = ModuleType("boto3"), ModuleType("boto3.dynamodb.types")
        types.TypeDeserializer = object  # type: ignore[attr-defined] # the one name it asks for
        sys.modules.update({"boto3": empty, "boto3.dynamodb": ModuleType("boto3.dynamodb"), types.__name__: types})
    try:
        yield
    finally:
        for name in ("boto3", "boto3.dynamodb", "boto3.dynamodb.types") if missing else ():
            sys.modules.pop(name, None)
