"""A mail server that answers wrongly on request, as far as SMTP allows: lies after the final dot, refusals before it.

500, 502, 503, a page   a reply that is not SMTP, after the dot
429                     450 at RCPT
400                     550 at RCPT
409                     451 after the dot
"""

from __future__ import annotations

import asyncio
import base64
import time
from contextlib import suppress
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default as mail_policy

from semel.testing.simulator.state import Lie, LieSchedule, SimulatedMessage, SimulatorState

NAME = "smtp"
USER, SECRET = "smtp-user", "smtp-secret"
PROOF = base64.b64encode(f"\0{USER}\0{SECRET}".encode()).decode()
LINE_MAX_BYTES = 64 * 1024
STALL_S = 3_600.0


class MailServer:
    def __init__(self, state: SimulatorState, lies: LieSchedule) -> None:
        self._state = state
        self._lies = lies

    async def serve(self, port: int = 0) -> asyncio.Server:
        return await asyncio.start_server(self._connected, "127.0.0.1", port, limit=LINE_MAX_BYTES)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _Session(self._state, self._lies, reader, writer).run()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client closed the connection
        finally:
            with suppress(ConnectionError):
                writer.close()


class _Session:
    def __init__(
        self, state: SimulatorState, lies: LieSchedule, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._state = state
        self._lies = lies
        self._reader = reader
        self._writer = writer
        self._signed_in = False
        self._to = ""
        self._lie: Lie | None = None

    async def run(self) -> None:
        await self._reply("220 simulator")
        while True:
            line = (await self._reader.readuntil(b"\r\n")).decode().rstrip("\r\n")
            match line.split(" ", 2):
                case ["EHLO", _]:
                    await self._reply("250-simulator\r\n250-SIZE 1000000\r\n250 AUTH PLAIN LOGIN")
                case ["AUTH", "PLAIN", proof]:
                    self._signed_in = proof == PROOF
                    await self._reply("235 welcome" if self._signed_in else f"535 not known: {proof}")
                case ["QUIT"]:
                    await self._reply("221 bye")
                    return
                case _ if not self._signed_in:
                    await self._reply("530 sign in first")
                case ["MAIL", _] | ["RSET"]:
                    await self._reply("250 ok")
                case ["RCPT", path]:
                    await self._reply(self._recipient(path))
                case ["DATA"]:
                    await self._reply("354 go on")
                    if not await self._mail():
                        return
                case _:
                    await self._reply("502 what?")

    def _recipient(self, path: str) -> str:
        self._state.requests.append((NAME, time.time()))
        self._to = path.removeprefix("TO:<").removesuffix(">")
        self._lie = self._lies.next(NAME, SimulatedMessage(self._to, ""))
        return {"429": "450 not now", "400": "550 no such recipient"}.get(self._lie.hears, "250 ok")

    async def _mail(self) -> bool:
        """Returns whether the connection stays open."""
        raw = (await self._reader.readuntil(b"\r\n.\r\n"))[:-3].replace(b"\r\n..", b"\r\n.")
        assert self._lie is not None
        if self._lie.delivers:
            self._deliver(raw)
        if self._state.latency_s:
            await asyncio.sleep(self._state.latency_s)
        match self._lie.hears:
            case "the answer":
                await self._reply("250 taken")
                return True
            case "409":
                await self._reply("451 busy")
                return True
            case "nothing":
                return False
            case "a reset":
                self._writer.transport.abort()
                return False
            case "silence":
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(STALL_S)
                return False
        await self._reply("HTTP/1.1 500 what is this?")
        return False

    def _deliver(self, raw: bytes) -> None:
        parsed = message_from_bytes(raw, _class=EmailMessage, policy=mail_policy)
        parts = {part.get_content_type(): part.get_content() for part in parsed.walk() if not part.is_multipart()}
        text, html = parts.get("text/plain", ""), parts.get("text/html", "")
        message_id = str(parsed["Message-ID"]).strip("<>")
        ours = message_id.partition("@")[0]
        message = SimulatedMessage(self._to, text, ours=ours, subject=str(parsed["Subject"]), html=html)
        self._state.deliver(NAME, message, message_id)

    async def _reply(self, lines: str) -> None:
        self._writer.write(lines.encode() + b"\r\n")
        await self._writer.drain()
