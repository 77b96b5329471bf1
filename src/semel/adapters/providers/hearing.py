"""Answers with their headers: some providers say there what a message is called, or how much more they will take.

The wire tells only what every caller needs. This hears the rest, and changes nothing of what is sent or concluded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from msgspec.structs import asdict

from semel.adapters.wire.answers import Answer, Answered
from semel.adapters.wire.client import Client

HEADERS_MAX = 100

_HEARD: ContextVar[Mapping[str, str] | None] = ContextVar("heard", default=None)
"""Of the request that this task makes. Tasks that share a client do not hear each other."""


class Heard(Answered, frozen=True):
    """A status came back, with these headers. Names are in lower case."""

    headers: Mapping[str, str] = {}


class Hearing(Client):
    async def ask(self, url: str, body: bytes | None, headers: Mapping[str, str], method: str = "POST") -> Answer:
        _HEARD.set(None)
        answer = await super().ask(url, body, headers, method)
        return Heard(**asdict(answer), headers=_HEARD.get() or {}) if isinstance(answer, Answered) else answer

    def _session(self) -> Any:
        return _Listener(super()._session())


class _Listener:
    """As much of a session as its client uses."""

    def __init__(self, session: Any) -> None:
        self._session = session

    @asynccontextmanager
    async def request(self, method: str, url: str, **how: Any) -> AsyncIterator[Any]:
        async with self._session.request(method, url, **how) as response:
            _HEARD.set({name.lower(): value for name, value in list(response.headers.items())[:HEADERS_MAX]})
            yield response
