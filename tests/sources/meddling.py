"""A client of SQS whose requests can be counted, delayed and made to fail: what the emulator never does by itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from botocore.exceptions import ClientError

from semel.aws import Connect
from semel.sources.sqs_queue.client import client_factory

Meddle: TypeAlias = Callable[[str, Mapping[str, Any]], Any]
"""Is given the operation and the request. Raises, or returns an answer in place of the service's, or None."""


class Meddler:
    """Stands between a source and its client."""

    def __init__(self, meddle: Meddle = lambda operation, request: None) -> None:
        self.meddle = meddle
        self.requests: list[tuple[str, Mapping[str, Any]]] = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()  # requests of a kind at a time
        self.client: Any = None
        self.landed = 0  # answers and errors that are not the service's

    async def really(self, operation: str, request: Mapping[str, Any]) -> Any:
        """What the service answers. For whoever meddles with that."""
        return await getattr(self.client, operation)(**request)

    def asked(self, operation: str) -> list[Mapping[str, Any]]:
        return [request for name, request in self.requests if name == operation]

    def connect(self, server: Any, queue: str, connections: int = 20) -> Connect:
        real = client_factory(queue, server.region, server.endpoint, connections, 1)

        @asynccontextmanager
        async def connected() -> AsyncIterator[Any]:
            async with real() as client:
                self.client = client
                yield _Between(self, client)

        return connected


class _Between:
    def __init__(self, meddler: Meddler, client: Any) -> None:
        self._meddler = meddler
        self._client = client

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        meddler = self._meddler

        async def ask(**request: Any) -> Any:
            meddler.requests.append((operation, request))
            meddler.running[operation] += 1
            meddler.most[operation] = max(meddler.most[operation], meddler.running[operation])
            try:
                try:
                    answer = meddler.meddle(operation, request)
                except BaseException:
                    meddler.landed += 1
                    raise
                if answer is not None:
                    meddler.landed += 1
                    if asyncio.iscoroutine(answer):
                        answer = await answer
                    if answer is not None:
                        return answer
                return await getattr(self._client, operation)(**request)
            finally:
                meddler.running[operation] -= 1

        return ask


def refusal(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "for a test"}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        "Any",
    )


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s
