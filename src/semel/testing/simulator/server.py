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

from semel.testing.simulator.callbacks import Caller, Calls
from semel.testing.simulator.dialect import Dialect
from semel.testing.simulator.http import (
    HEAD_MAX_BYTES,
    Request,
    Response,
    as_json,
    read_request,
    write_response,
)
from semel.testing.simulator.smtp import NAME as SMTP
from semel.testing.simulator.smtp import MailServer
from semel.testing.simulator.state import LIES, Budget, Lie, Message, Planned, State, Teller

STALL_S = 3_600.0  # longer than any client waits
CONTROL = "/_simulator/"


class Simulator:
    """Serves each dialect below `/NAME/…`."""

    def __init__(self, dialects: Mapping[str, Dialect], state: State, dice: random.Random) -> None:
        self._dialects = dialects
        self._state = state
        self._teller = Teller(state, dice)
        self._caller = Caller()
        self._mails = MailServer(state, self._teller)

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
            pass  # the client has gone while it was answered
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
            return await self._say(writer, dialect, response)
        return await self._message(dialect, asked, writer)

    async def _message(self, dialect: Dialect, request: Request, writer: asyncio.StreamWriter) -> bool:
        self._state.requests.append((dialect.name, time.time()))
        if (budget := self._state.budgets.get(dialect.name)) is not None:
            if budget.count >= budget.allowed:
                return await self._limited(writer, dialect, budget.reset_s)
            budget.count += 1
        try:
            message = dialect.read(request)
        except ValueError as error:
            return await self._say(writer, dialect, dialect.refused(400, str(error)))
        lie = self._teller.next(dialect.name, message)
        known = self._state.known(dialect.name, message.key)
        if known is not None and known.body != request.body:
            return await self._say(writer, dialect, dialect.repeated(message, known.reference, same=False))
        response = self._accept(dialect, request, message, known.reference if known else "") if lie.delivers else None
        if self._state.latency_s:
            await asyncio.sleep(self._state.latency_s)
        return await self._hear(lie, dialect, response, writer)

    def _accept(self, dialect: Dialect, request: Request, message: Message, known: str) -> Response:
        if known:
            return dialect.repeated(message, known, same=True)
        reference = self._state.reference(dialect.prefix)
        self._state.deliver(dialect.name, message, reference)
        self._state.remember(dialect.name, message.key, reference, request.body)
        self._caller.about(dialect, message, reference)
        return dialect.accepted(message, reference)

    async def _hear(self, lie: Lie, dialect: Dialect, response: Response | None, writer: asyncio.StreamWriter) -> bool:
        match lie.hears:
            case "the answer":
                return await self._say(writer, dialect, response or dialect.refused(500, "it was not accepted"))
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
                page = Response(200, b"<html>Please sign in</html>", {"Content-Type": "text/html; charset=utf-8"})
                await write_response(writer, page)
                return True
            case "429":
                return await self._limited(writer, dialect, 1.0)
            case status:
                return await self._say(writer, dialect, dialect.refused(int(status), "as it was told"))

    async def _limited(self, writer: asyncio.StreamWriter, dialect: Dialect, after_s: float) -> bool:
        refusal = dialect.refused(429, "too many requests")
        return await self._say(writer, dialect, _with(refusal, dialect.wait(after_s)))

    async def _say(self, writer: asyncio.StreamWriter, dialect: Dialect, response: Response) -> bool:
        await write_response(writer, _with(response, dialect.about(self._state)))
        return True

    # ---------------------------------------------------------------------------------------------------- for tests

    def _control(self, request: Request) -> Response:
        word = request.path.removeprefix(CONTROL)
        if request.method == "GET":
            return self._show(word, request.query)
        try:
            self._order(word, request.json())
        except (KeyError, ValueError, TypeError) as error:
            return as_json(400, {"message": f"{word}: {error}"})
        return as_json(200, {})

    def _show(self, word: str, query: Mapping[str, str]) -> Response:
        state = self._state
        match word:
            case "phone":
                to = query.get("to")
                return as_json(200, [one for one in state.phone if to is None or one.to == to])
            case "told":
                book = {"told": state.told, "about": state.lied_about, "requests": state.requests}
                return as_json(200, {**book, "tokens": state.granted})
            case "book":
                return as_json(200, state.book)
            case "called":
                return as_json(200, self._caller.called)
        return as_json(404, {"message": "no such word"})

    def _order(self, word: str, said: Any) -> None:
        """Raises KeyError, ValueError or TypeError for an order that makes no sense."""
        state = self._state
        names = ["", *self._dialects, SMTP]  # without one: of all
        if "provider" in said and said["provider"] not in names:
            raise ValueError(f"there is no provider {said['provider']!r}: expected one of {', '.join(names[1:])}")
        match word:
            case "lie":
                plan = Planned(said["lie"], said["times"], said.get("share", 1.0))
                if plan.lie not in LIES:
                    raise ValueError(f"expected one of {', '.join(LIES)}")
                if to := said.get("to", ""):
                    state.plans_for.setdefault((said["provider"], to), deque()).append(plan)
                else:
                    state.plans.setdefault(said["provider"], deque()).append(plan)
            case "truth":
                state.plans.clear()
                state.plans_for.clear()
                state.budgets.clear()
                self._caller.plans.clear()
            case "key_window":
                if provider := said["provider"]:
                    state.key_windows_s[provider] = float(said["seconds"])
                else:
                    state.key_window_s = float(said["seconds"])
            case "latency":
                state.latency_s = float(said["seconds"])
            case "forget_keys":
                state.keys.clear()
            case "end_tokens":
                state.tokens.clear()
            case "allow":
                state.budgets[said["provider"]] = Budget(int(said["requests"]), float(said["reset_s"]))
            case "callbacks":
                self._caller.plans[said.pop("provider")] = msgspec.convert(said, Calls)
            case _:
                raise ValueError("no such word")


def _with(response: Response, headers: Mapping[str, str]) -> Response:
    return response._replace(headers={**response.headers, **headers}) if headers else response
