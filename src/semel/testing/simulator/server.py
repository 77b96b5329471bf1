"""The simulator itself: every provider below a path of its own, and a way for tests to tell it what to do."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from semel.testing.simulator.dialects import Dialect
from semel.testing.simulator.http import (
    HEAD_MAX_BYTES,
    Request,
    Response,
    as_json,
    read_request,
    write_response,
)
from semel.testing.simulator.lies import LIES, TRUTH, Lie
from semel.testing.simulator.state import Message, Planned, State

STALL_S = 3_600.0  # longer than anybody waits
CONTROL = "/_simulator/"


class Simulator:
    """`/NAME/…` speaks the dialect of that name."""

    def __init__(self, dialects: Mapping[str, Dialect], state: State, dice: random.Random) -> None:
        self._dialects = dialects
        self._state = state
        self._dice = dice
        self._stalled: set[asyncio.Task[None]] = set()

    async def serve(self, port: int = 0) -> asyncio.Server:
        return await asyncio.start_server(self._connected, "127.0.0.1", port, limit=HEAD_MAX_BYTES)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                if not await self._answer(request, writer):
                    return
        finally:
            with suppress(ConnectionError):
                writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """False: the connection is over."""
        if request.path.startswith(CONTROL):
            await write_response(writer, self._control(request))
            return True
        name, _, rest = request.path[1:].partition("/")
        dialect = self._dialects.get(name)
        if dialect is None:
            await write_response(writer, as_json(404, {"message": f"nobody speaks {name}"}))
            return True
        asked = request._replace(path=f"/{rest}")
        response = dialect.other(asked, self._state)
        if response is not None:
            await write_response(writer, response)
            return True
        return await self._message(dialect, asked, writer)

    async def _message(self, dialect: Dialect, request: Request, writer: asyncio.StreamWriter) -> bool:
        self._state.requests.append((dialect.name, time.time()))
        try:
            message = dialect.read(request)
        except ValueError as error:
            await write_response(writer, dialect.refused(400, str(error)))
            return True
        name, lie = self._next(dialect.name)
        if lie is not TRUTH:
            self._state.told[f"{dialect.name}: {name}"] += 1
            if lie.ambiguous:
                self._state.lied_about.append((name, message.to, message.text))
        known = self._state.known(dialect.name, message.key) if dialect.honours_keys else None
        if known is not None and known.body != request.body:
            await write_response(writer, dialect.refused(422, "the key was used with another body"))
            return True
        response = self._accept(dialect, request, message, known.reference if known else "") if lie.delivers else None
        return await self._hear(lie, dialect, response, writer)

    def _accept(self, dialect: Dialect, request: Request, message: Message, known: str) -> Response:
        reference = known or self._state.reference(dialect.prefix)
        if not known:
            self._state.deliver(dialect.name, message, reference)
            if dialect.honours_keys:
                self._state.remember(dialect.name, message.key, reference, request.body)
        return dialect.accepted(message, reference)

    async def _hear(self, lie: Lie, dialect: Dialect, response: Response | None, writer: asyncio.StreamWriter) -> bool:
        match lie.hears:
            case "the answer":
                await write_response(writer, response or dialect.refused(500, "it was not accepted"))
                return True
            case "nothing":
                return False
            case "a reset":
                writer.transport.abort()
                return False
            case "silence":
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(STALL_S)
                return False
            case "429":
                refusal = dialect.refused(429, "too many requests")
                await write_response(writer, refusal._replace(headers={**refusal.headers, "Retry-After": "1"}))
                return True
            case status:
                await write_response(writer, dialect.refused(int(status), "as it was told"))
                return True

    def _next(self, provider: str) -> tuple[str, Lie]:
        plans = self._state.plans.get(provider)
        while plans:
            plan = plans[0]
            if plan.times <= 0:
                plans.popleft()
                continue
            if self._dice.random() >= plan.share:
                if len(plans) > 1:
                    plans.rotate(-1)
                return "", TRUTH
            plans[0] = msgspec.structs.replace(plan, times=plan.times - 1)
            plans.rotate(-1)  # several plans take turns
            return plan.lie, LIES[plan.lie]
        return "", TRUTH

    # ---------------------------------------------------------------------------------------------------- for tests

    def _control(self, request: Request) -> Response:
        state = self._state
        match request.method, request.path.removeprefix(CONTROL):
            case "GET", "phone":
                return as_json(200, state.phone)
            case "GET", "told":
                return as_json(200, {"told": state.told, "about": state.lied_about, "requests": state.requests})
            case "POST", "lie":
                asked = request.json()
                plan = Planned(asked["lie"], asked["times"], asked.get("share", 1.0))
                if plan.lie not in LIES:
                    return as_json(400, {"message": f"expected one of {', '.join(LIES)}"})
                state.plans.setdefault(asked["provider"], deque()).append(plan)
                return as_json(200, {})
            case "POST", "truth":
                state.plans.clear()
                return as_json(200, {})
            case "POST", "key_window":
                state.key_window_s = float(request.json()["seconds"])
                return as_json(200, {})
        return as_json(404, {"message": "no such word"})
