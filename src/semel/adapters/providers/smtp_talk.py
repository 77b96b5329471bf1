"""One conversation with a mail server, to the point from which on nobody can tell.

greeting → EHLO → (STARTTLS → EHLO) → (AUTH) → MAIL → RCPT → DATA → the mail and its final dot ┆ the answer
                                                                  nothing has been accepted    ┆ unknown until 250
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, TypeAlias

from semel.adapters.wire.resolving import CheckedResolver
from semel.values.first_byte import check_first_byte

LINE_MAX_BYTES = 4096
LINES_MAX = 100
GOODBYE_S = 0.5  # for a close that nobody needs; whoever waits for the answer allows for less than a second

Tls: TypeAlias = Literal["starttls", "implicit", "off"]


class Reply(NamedTuple):
    code: int
    text: str


def is_configuration(code: int) -> bool:
    """Whether a reply refuses the settings and not the mail (RFC 4954): 530 and 538 want a sign-in or TLS first, 534 a
    stronger mechanism, 535 other credentials."""
    return code in (530, 534, 535, 538)


class Broken(Exception):
    """Who answers does not speak SMTP, or has gone."""


class Denied(Exception):
    """A step was answered with no."""

    def __init__(self, step: str, reply: Reply) -> None:
        super().__init__(f"{step}: {reply.code} {reply.text}")
        self.configuration = is_configuration(reply.code) or (step == "AUTH" and reply.code >= 500)
        self.final = reply.code >= 500 and not self.configuration


class Talk:
    """`told_all`: the final dot may have left."""

    def __init__(self) -> None:
        self.told_all = False
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self._before: asyncio.StreamWriter | None = None
        self._offers: frozenset[str] = frozenset()

    async def connect(
        self, host: str, port: int, tls: Tls, allow: Sequence[str], context: ssl.SSLContext | None
    ) -> None:
        """`context`: where there is TLS."""
        secure = (context, host) if tls == "implicit" else (None, None)
        failure: OSError = OSError("it has no address")
        for found in await CheckedResolver(host, allow).resolve(host, port):
            try:
                self._reader, self._writer = await asyncio.open_connection(
                    found["host"], port, limit=LINE_MAX_BYTES, ssl=secure[0], server_hostname=secure[1]
                )
                break
            except OSError as error:
                failure = error
        else:
            raise failure
        self._expect("greeting", await self._read(), 220)
        await self._hello()
        if tls == "starttls" and context is not None:
            await self._secure(host, context)

    async def sign_in(self, username: str, password: str) -> None:
        if "PLAIN" in self._offers:
            reply = await self._ask(f"AUTH PLAIN {plain_proof(username, password)}")
        elif "LOGIN" in self._offers:
            await self._ask("AUTH LOGIN")
            await self._ask(base64.b64encode(username.encode()).decode())
            reply = await self._ask(base64.b64encode(password.encode()).decode())
        else:
            raise Broken("it offers neither AUTH PLAIN nor LOGIN")
        if reply.code != 235:
            raise Denied("AUTH", reply)

    async def deliver(self, sender: str, to: str, data: str) -> Reply:
        """The answer to the final dot."""
        self._expect("MAIL", await self._ask(f"MAIL FROM:<{sender}>"), 250)
        self._expect("RCPT", await self._ask(f"RCPT TO:<{to}>"), 250, 251)
        self._expect("DATA", await self._ask("DATA"), 354)
        stuffed = "\r\n".join(f".{line}" if line.startswith(".") else line for line in data.split("\r\n"))
        check_first_byte()
        self.told_all = True
        return await self._ask(f"{stuffed}\r\n.")

    async def offer(self, sender: str) -> None:
        """Name the sender, and take it back: what a server refuses before any mail is found without sending one."""
        self._expect("MAIL", await self._ask(f"MAIL FROM:<{sender}>"), 250)
        await self._ask("RSET")

    async def end(self, politely: bool) -> None:
        if self._writer is None:
            return
        if politely:
            self._writer.write(b"QUIT\r\n")
            self._writer.close()
        else:
            self._writer.transport.abort()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._writer.wait_closed()

    async def _hello(self) -> None:
        reply = await self._ask("EHLO semel")
        self._expect("EHLO", reply, 250)
        self._offers = frozenset(reply.text.upper().replace("=", " ").split())

    async def _secure(self, host: str, context: ssl.SSLContext) -> None:
        """Never without: a server that does not offer it, or somebody between us who takes it out, gets no mail."""
        if "STARTTLS" not in self._offers:
            raise Broken("it offers no STARTTLS")
        self._expect("STARTTLS", await self._ask("STARTTLS"), 220)
        assert self._writer is not None
        # A reader of its own: what was said before the handshake must not be heard after it.
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LINE_MAX_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport = await loop.start_tls(self._writer.transport, protocol, context, server_hostname=host)
        if transport is None:
            raise Broken("it has gone during the TLS handshake")
        protocol.connection_made(transport)
        self._before = self._writer  # it would close the connection if it went
        self._reader, self._writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)
        await self._hello()

    async def _ask(self, line: str) -> Reply:
        assert self._writer is not None
        self._writer.write(line.encode("ascii") + b"\r\n")
        await self._writer.drain()
        return await self._read()

    async def _read(self) -> Reply:
        texts: list[str] = []
        for _ in range(LINES_MAX):
            try:
                raw = await self._reader.readuntil(b"\n")
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                raise Broken("it closed the connection without an answer") from None
            line = raw.decode("ascii", "replace").rstrip("\r\n")
            if not (line[:3].isascii() and line[:3].isdigit()) or line[3:4] not in ("", " ", "-"):
                raise Broken("its answer is no SMTP")
            texts.append(line[4:])
            if line[3:4] != "-":
                return Reply(int(line[:3]), " ".join(texts))
        raise Broken("its answer does not end")

    @staticmethod
    def _expect(step: str, reply: Reply, *codes: int) -> None:
        if reply.code in codes:
            return
        if not 400 <= reply.code < 600:
            raise Broken(f"{step}: it answered {reply.code}")
        raise Denied(step, reply)


def plain_proof(username: str, password: str) -> str:
    return base64.b64encode(f"\0{username}\0{password}".encode()).decode()
