"""Status callbacks: what a provider tells about a message that it has, once or twice, late, out of order, or never; and
signed as it signs them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from msgspec import Struct

from semel.testing.simulator.dialects import Dialect
from semel.testing.simulator.signing import signature
from semel.testing.simulator.state import Message

Mode: TypeAlias = Literal["never", "once", "twice", "late", "out of order"]
MODES: tuple[str, ...] = get_args(Mode)
Ending: TypeAlias = Literal["delivered", "undelivered"]
PATIENCE_S = 30.0


class Calls(Struct, frozen=True):
    """How a provider calls back."""

    mode: Mode
    url: str = ""  # where the request names none
    late_s: float = 0.5
    ending: Ending = "delivered"


class Called(Struct, frozen=True):
    """One callback, and what was answered; 0: nobody was there."""

    provider: str
    reference: str
    word: str
    status: int


class Caller:
    def __init__(self) -> None:
        self.plans: dict[str, Calls] = {}
        self.called: list[Called] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def about(self, dialect: Dialect, message: Message, reference: str) -> None:
        plan = self.plans.get(dialect.name)
        if plan is None or plan.mode == "never" or not (message.callback or plan.url):
            return
        task = asyncio.create_task(self._tell(plan, dialect, message, reference))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, plan: Calls, dialect: Dialect, message: Message, reference: str) -> None:
        words = ["accepted", plan.ending]
        match plan.mode:
            case "late":
                await asyncio.sleep(plan.late_s)
            case "twice":
                words = [word for word in words for _ in range(2)]
            case "out of order":
                words.reverse()
        for word in words:
            callback = dialect.callback(message, reference, word)
            if callback is None:
                return
            url, (content_type, body) = message.callback or plan.url, callback
            headers = {"Content-Type": content_type, **signature(dialect.name, url, body)}
            status = await _post(url, headers, body)
            self.called.append(Called(dialect.name, reference, word, status))


async def _post(url: str, headers: Mapping[str, str], body: bytes) -> int:
    """The status; 0: no answer."""
    parts = urlsplit(url)
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    usual = {"Host": parts.netloc, "Content-Length": str(len(body)), "Connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**usual, **headers}.items())
    head = f"POST {target} HTTP/1.1\r\n{lines}\r\n"
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(head.encode("latin-1") + body)
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.close()
        return int(line.split(b" ")[1])
    except (OSError, TimeoutError, ValueError, IndexError):
        return 0
