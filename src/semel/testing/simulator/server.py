"""The simulator's HTTP server: every provider below a path of its own, and control paths for tests."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from semel.testing.simulator.callbacks import CallbackPlan, CallbackSender
from semel.testing.simulator.dialect import Dialect
from semel.testing.simulator.http import (
    HEAD_MAX_BYTES,
    HttpRequest,
    SimulatedResponse,
    as_json,
    read_request,
    write_response,
)
from semel.testing.simulator.smtp import NAME as SMTP
from semel.testing.simulator.smtp import MailServer
from semel.testing.simulator.state import (
    LIES,
    Lie,
    LieSchedule,
    PlannedLie,
    RequestBudget,
    SimulatedMessage,
    SimulatorState,
)

STALL_S = 3_600.0  # longer than any client waits
CONTROL = "/_simulator/"


class Simulator:
    """Serves each dialect below `/NAME/…`."""

    def __init__(self, dialects: Mapping[str, Dialect], state: SimulatorState, dice: random.Random) -> None:
        self._dialects = dialects
        self._state = state
        self._lies = LieSchedule(state, dice)
        self._caller = CallbackSender()
        self._mails = MailServer(state, self._lies)

    async def serve(self, port: int = 0) -> asyncio.Server:
        return await asyncio.start_server(self._connected, "127.0.0.1", port, limit=HEAD_MAX_BYTES)

    async def serve_mail(self, port: int = 0) -> asyncio.Server:
        return await self._mails.serve(port)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                if not await self._answer(request, writer):
                    return
        except ConnectionError:
            pass  # the client closed the connection
        finally:
            with suppress(ConnectionError):
                writer.close()

    async def _answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        """Returns whether the connection stays open."""
        if request.path.startswith(CONTROL):
            await write_response(writer, self._control(request))
            return True
        name, _, rest = request.path[1:].partition("/")
        dialect = self._dialects.get(name)
        if dialect is None:
            await write_response(writer, as_json(404, {"message": f"unknown provider {name}"}))
            return True
        request = request._replace(path=f"/{rest}")
        response = dialect.other(request, self._state)
        if response is not None:
            return await self._respond(writer, dialect, response)
        return await self._message(dialect, request, writer)

    async def _message(self, dialect: Dialect, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        self._state.requests.append((dialect.name, time.time()))
        if (budget := self._state.budgets.get(dialect.name)) is not None:
            if budget.count >= budget.allowed:
                return await self._limited(writer, dialect, budget.reset_s)
            budget.count += 1
        try:
            message = dialect.parse(request)
        except ValueError as error:
            return await self._respond(writer, dialect, dialect.refused(400, str(error)))
        lie = self._lies.next(dialect.name, message)
        known = self._state.known(dialect.name, message.key)
        if known is not None and known.body != request.body:
            return await self._respond(writer, dialect, dialect.repeated(message, known.reference, same=False))
        response = self._accept(dialect, request, message, known.reference if known else "") if lie.delivers else None
        if self._state.latency_s:
            await asyncio.sleep(self._state.latency_s)
        return await self._respond_with_lie(lie, dialect, response, writer)

    def _accept(
        self, dialect: Dialect, request: HttpRequest, message: SimulatedMessage, known: str
    ) -> SimulatedResponse:
        if known:
            return dialect.repeated(message, known, same=True)
        reference = self._state.reference(dialect.prefix)
        self._state.deliver(dialect.name, message, reference)
        self._state.remember(dialect.name, message.key, reference, request.body)
        self._caller.schedule(dialect, message, reference)
        return dialect.accepted(message, reference)

    async def _respond_with_lie(
        self, lie: Lie, dialect: Dialect, response: SimulatedResponse | None, writer: asyncio.StreamWriter
    ) -> bool:
        match lie.hears:
            case "the answer":
                return await self._respond(writer, dialect, response or dialect.refused(500, "not accepted"))
            case "nothing":
                return False
            case "a reset":
                writer.transport.abort()
                return False
            case "silence":
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(STALL_S)
                return False
            case "a page":
                page = SimulatedResponse(
                    200, b"<html>Please sign in</html>", {"Content-Type": "text/html; charset=utf-8"}
                )
                await write_response(writer, page)
                return True
            case "429":
                return await self._limited(writer, dialect, 1.0)
            case status:
                return await self._respond(writer, dialect, dialect.refused(int(status), "a planned failure"))

    async def _limited(self, writer: asyncio.StreamWriter, dialect: Dialect, after_s: float) -> bool:
        refusal = dialect.refused(429, "too many requests")
        return await self._respond(writer, dialect, _with(refusal, dialect.retry_headers(after_s)))

    async def _respond(self, writer: asyncio.StreamWriter, dialect: Dialect, response: SimulatedResponse) -> bool:
        await write_response(writer, _with(response, dialect.common_headers(self._state)))
        return True

    # ---------------------------------------------------------------------------------------------------- for tests

    def _control(self, request: HttpRequest) -> SimulatedResponse:
        command = request.path.removeprefix(CONTROL)
        if request.method == "GET":
            return self._show(command, request.query)
        try:
            self._apply(command, request.json())
        except (KeyError, ValueError, TypeError) as error:
            return as_json(400, {"message": f"{command}: {error}"})
        return as_json(200, {})

    def _show(self, command: str, query: Mapping[str, str]) -> SimulatedResponse:
        state = self._state
        match command:
            case "phone":
                to = query.get("to")
                return as_json(200, [message for message in state.phone if to is None or message.to == to])
            case "told":
                book = {"told": state.told, "about": state.lied_about, "requests": state.requests}
                return as_json(200, {**book, "tokens": state.granted})
            case "book":
                return as_json(200, state.book)
            case "called":
                return as_json(200, self._caller.called)
        return as_json(404, {"message": "no such path"})

    def _apply(self, command: str, body: Any) -> None:
        """Apply a command. Raises KeyError, ValueError or TypeError for an invalid one."""
        state = self._state
        names = ["", *self._dialects, SMTP]  # empty: all providers
        if "provider" in body and body["provider"] not in names:
            raise ValueError(f"there is no provider {body['provider']!r}: expected one of {', '.join(names[1:])}")
        match command:
            case "lie":
                plan = PlannedLie(body["lie"], body["times"], body.get("share", 1.0))
                if plan.lie not in LIES:
                    raise ValueError(f"expected one of {', '.join(LIES)}")
                if to := body.get("to", ""):
                    state.plans_for.setdefault((body["provider"], to), deque()).append(plan)
                else:
                    state.plans.setdefault(body["provider"], deque()).append(plan)
            case "truth":
                state.plans.clear()
                state.plans_for.clear()
                state.budgets.clear()
                self._caller.plans.clear()
            case "key_window":
                if provider := body["provider"]:
                    state.key_windows_s[provider] = float(body["seconds"])
                else:
                    state.key_window_s = float(body["seconds"])
            case "latency":
                state.latency_s = float(body["seconds"])
            case "forget_keys":
                state.keys.clear()
            case "end_tokens":
                state.tokens.clear()
            case "allow":
                state.budgets[body["provider"]] = RequestBudget(int(body["requests"]), float(body["reset_s"]))
            case "callbacks":
                self._caller.plans[body.pop("provider")] = msgspec.convert(body, CallbackPlan)
            case _:
                raise ValueError("no such path")


def _with(response: SimulatedResponse, headers: Mapping[str, str]) -> SimulatedResponse:
    return response._replace(headers={**response.headers, **headers}) if headers else response
