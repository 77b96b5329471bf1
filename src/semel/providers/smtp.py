"""SMTP: mail through any server, without idempotency keys and without a look-up.

The Message-ID contains the notification id and is the same for every attempt.

    no connection, refused before DATA, 4xx   refused, this attempt
    530, 534, 535, 538                        refused, this attempt: the settings are wrong, not the mail
    5xx                                       refused for good
    250 after the final dot                   accepted
    no reply after the final dot              unknown
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

from semel.http_client.client import why_not
from semel.http_client.resolver import CheckedResolver, ServerAddress
from semel.providers.auth import redact_secrets
from semel.providers.http import EVIDENCE_CHARS, SENT_BY_FORMER_PROVIDER_DECIDE, idempotency_key
from semel.providers.options import Host, MailSender, Port, ProviderOptions, SecretValue, Text
from semel.providers.rendering import build_mail, mail_bytes, parse_address
from semel.values.delivery_state import Accepted, Answer, Contract, Refused, Unknown
from semel.values.errors import ConfigError
from semel.values.outbox import DeliveryReport, Dispatch, LookedUp, Unclear, check_first_byte

LINE_MAX_BYTES = 4096
LINES_MAX = 100
CLOSE_S = 0.5  # the outcome is known before the close, and the relay's own margin is under a second

Tls: TypeAlias = Literal["starttls", "implicit", "off"]


class SmtpReply(NamedTuple):
    code: int
    text: str


def is_configuration(code: int) -> bool:
    """Whether a reply refuses the settings and not the mail (RFC 4954): 530 and 538 require authentication or TLS,
    534 a stronger mechanism, 535 other credentials."""
    return code in (530, 534, 535, 538)


class SmtpProtocolError(Exception):
    """The peer does not follow the SMTP protocol, or closed the connection."""


class SmtpRejection(Exception):
    """The server rejected a step of the session."""

    def __init__(self, step: str, reply: SmtpReply) -> None:
        super().__init__(f"{step}: {reply.code} {reply.text}")
        self.configuration = is_configuration(reply.code) or (step == "AUTH" and reply.code >= 500)
        self.final = reply.code >= 500 and not self.configuration


class SmtpSession:
    """One SMTP session, for one mail. `data_sent`: the final dot may have been sent.

    greeting → EHLO → (STARTTLS → EHLO) → (AUTH) → MAIL → RCPT → DATA → the mail and its final dot ┆ the reply
                                                                      nothing has been accepted    ┆ unknown until 250
    """

    def __init__(self) -> None:
        self.data_sent = False
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self._plain_writer: asyncio.StreamWriter | None = None
        self._offers: frozenset[str] = frozenset()

    async def connect(
        self, host: str, port: int, tls: Tls, allow: Sequence[str], context: ssl.SSLContext | None
    ) -> None:
        """`context` is required for TLS."""
        secure = (context, host) if tls == "implicit" else (None, None)
        failure: OSError = OSError("the host has no address")
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
            reply = await self._command(f"AUTH PLAIN {plain_proof(username, password)}")
        elif "LOGIN" in self._offers:
            await self._command("AUTH LOGIN")
            await self._command(base64.b64encode(username.encode()).decode())
            reply = await self._command(base64.b64encode(password.encode()).decode())
        else:
            raise SmtpProtocolError("the server offers neither AUTH PLAIN nor LOGIN")
        if reply.code != 235:
            raise SmtpRejection("AUTH", reply)

    async def deliver(self, sender: str, to: str, data: str) -> SmtpReply:
        """Send the mail. Returns the reply to the final dot."""
        self._expect("MAIL", await self._command(f"MAIL FROM:<{sender}>"), 250)
        self._expect("RCPT", await self._command(f"RCPT TO:<{to}>"), 250, 251)
        self._expect("DATA", await self._command("DATA"), 354)
        stuffed = "\r\n".join(f".{line}" if line.startswith(".") else line for line in data.split("\r\n"))
        check_first_byte()
        self.data_sent = True
        return await self._command(f"{stuffed}\r\n.")

    async def offer(self, sender: str) -> None:
        """Send MAIL FROM and reset, to detect a refused sender without sending a mail."""
        self._expect("MAIL", await self._command(f"MAIL FROM:<{sender}>"), 250)
        await self._command("RSET")

    async def end(self, politely: bool) -> None:
        if self._writer is None:
            return
        if politely:
            self._writer.write(b"QUIT\r\n")
            self._writer.close()
        else:
            self._writer.transport.abort()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._writer.wait_closed()

    async def _hello(self) -> None:
        reply = await self._command("EHLO semel")
        self._expect("EHLO", reply, 250)
        self._offers = frozenset(reply.text.upper().replace("=", " ").split())

    async def _secure(self, host: str, context: ssl.SSLContext) -> None:
        """Upgrade to TLS, without a fallback: a server without STARTTLS, or an attacker who strips it, gets no mail."""
        if "STARTTLS" not in self._offers:
            raise SmtpProtocolError("the server offers no STARTTLS")
        self._expect("STARTTLS", await self._command("STARTTLS"), 220)
        assert self._writer is not None
        # A new reader: bytes that arrived before the handshake must not be read after it.
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LINE_MAX_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport = await loop.start_tls(self._writer.transport, protocol, context, server_hostname=host)
        if transport is None:
            raise SmtpProtocolError("the server closed the connection during the TLS handshake")
        protocol.connection_made(transport)
        self._plain_writer = self._writer  # its finalizer would close the connection
        self._reader, self._writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)
        await self._hello()

    async def _command(self, line: str) -> SmtpReply:
        assert self._writer is not None
        self._writer.write(line.encode("ascii") + b"\r\n")
        await self._writer.drain()
        return await self._read()

    async def _read(self) -> SmtpReply:
        texts: list[str] = []
        for _ in range(LINES_MAX):
            try:
                raw = await self._reader.readuntil(b"\n")
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                raise SmtpProtocolError("the server closed the connection without a reply") from None
            line = raw.decode("ascii", "replace").rstrip("\r\n")
            if not (line[:3].isascii() and line[:3].isdigit()) or line[3:4] not in ("", " ", "-"):
                raise SmtpProtocolError("the reply is not SMTP")
            texts.append(line[4:])
            if line[3:4] != "-":
                return SmtpReply(int(line[:3]), " ".join(texts))
        raise SmtpProtocolError("the reply does not end")

    @staticmethod
    def _expect(step: str, reply: SmtpReply, *codes: int) -> None:
        if reply.code in codes:
            return
        if not 400 <= reply.code < 600:
            raise SmtpProtocolError(f"{step}: unexpected reply {reply.code}")
        raise SmtpRejection(step, reply)


def plain_proof(username: str, password: str) -> str:
    return base64.b64encode(f"\0{username}\0{password}".encode()).decode()


CHECK_S = 5.0  # `semel doctor` waits for it
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class _Envelope(Struct, frozen=True):
    """The stored mail, so that a retry sends the same bytes."""

    sender: str
    to: str
    message_id: str
    data: str


_encode = msgspec.json.Encoder(order="deterministic").encode
_envelope = msgspec.json.Decoder(_Envelope).decode


PORTS: Mapping[Tls, int] = {"starttls": 587, "implicit": 465, "off": 25}


class SmtpOptions(ProviderOptions, frozen=True, kw_only=True):
    sender: MailSender = ""
    host: Annotated[Host, "host of the mail server"]
    port: Annotated[Port, "587 with starttls, 465 with implicit"] | None = None
    tls: Annotated[Tls, Meta(description="one of starttls, implicit, off"), "how the connection is secured"] = (
        "starttls"
    )
    username: Annotated[Text, "if the server requires authentication"] = ""
    password: Annotated[SecretValue, "of that user"] | None = None
    domain: Annotated[Host, "domain of the Message-ID; the sender's by default"] = ""


class Smtp:
    OPTIONS: ClassVar[type[SmtpOptions]] = SmtpOptions
    CONTRACT: ClassVar[Contract] = Contract(name="smtp", channels=("email",), timeout_s=30.0)

    def __init__(self, options: SmtpOptions, contract: Contract) -> None:
        self.contract = contract
        if (options.password is not None) != bool(options.username):
            raise ConfigError(f"provider {contract.name!r}: username and password belong together")
        if options.password is not None and options.tls == "off" and options.host not in LOOPBACK:
            raise ConfigError(f'provider {contract.name!r}: a password needs tls = "starttls" or "implicit"')
        self._options = options
        port = options.port or PORTS[options.tls]
        self.address, self.allow = ServerAddress(options.host, port, secure=options.tls == "implicit"), options.allow
        self._context: ssl.SSLContext | None = None  # created on first use: loading certificates is slow

    def prepare(self, dispatch: Dispatch) -> bytes:
        mail = build_mail(dispatch, "smtp", self._options.sender)
        id = idempotency_key(dispatch)
        message_id = f"{id}@{self._options.domain or mail.sender.email.rpartition('@')[2]}"
        data = mail_bytes(mail, message_id, f"semel-{id}", dispatch.taken_ms)
        return _encode(_Envelope(mail.sender.email, mail.to, message_id, data))

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        try:
            envelope = self._decode(dispatch, request)
        except ConfigError as error:
            return Refused(str(error), final=True)
        if envelope is None:
            return Refused(SENT_BY_FORMER_PROVIDER_DECIDE)
        session = SmtpSession()
        answer: Answer | None = None
        try:
            async with asyncio.timeout(self.contract.timeout_s):
                await self._open(session)
                reply = await session.deliver(envelope.sender, envelope.to, envelope.data)
                answer = self._classify(envelope, reply)
        except SmtpRejection as error:
            answer = Refused(self._redact(str(error)), final=error.final, configuration=error.configuration)
        except TimeoutError:
            answer = self._without_reply(session, f"no reply within {self.contract.timeout_s:g} s")
        except SmtpProtocolError as error:
            answer = self._without_reply(session, str(error))
        except OSError as error:
            answer = self._without_reply(session, why_not(error))
        finally:
            await session.end(politely=isinstance(answer, Accepted))
        return answer

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        return Unclear("a mail server has no look-up")

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        return []  # mail servers send no callbacks

    async def close(self) -> None:
        """Holds no connection: every session ends with its mail."""

    def _decode(self, dispatch: Dispatch, request: bytes) -> _Envelope | None:
        """The stored envelope. If a former provider with the same name built the request, it is rebuilt, or None if
        that provider may have sent it."""
        try:
            return _envelope(request)
        except msgspec.DecodeError:
            return None if dispatch.delivery_state.doubt_ms else _envelope(self.prepare(dispatch))

    async def check_access(self) -> str | None:
        """For `semel doctor`: authenticate and offer the sender, without sending a mail. Returns the reason of a
        failure, or None."""
        session = SmtpSession()
        try:
            async with asyncio.timeout(min(CHECK_S, self.contract.timeout_s)):
                await self._open(session)
                if self._options.sender:
                    await session.offer(parse_address(self._options.sender, "smtp").email)
        except (SmtpRejection, SmtpProtocolError) as error:
            return self._redact(str(error))
        except TimeoutError:
            return "no reply in time"
        except OSError as error:
            return why_not(error)
        finally:
            await session.end(politely=True)
        return None

    async def _open(self, session: SmtpSession) -> None:
        if self._context is None and self._options.tls != "off":
            self._context = ssl.create_default_context()
        await session.connect(self.address.host, self.address.port, self._options.tls, self.allow, self._context)
        if self._options.password is not None:
            await session.sign_in(self._options.username, self._options.password.reveal())

    def _classify(self, envelope: _Envelope, reply: SmtpReply) -> Answer:
        evidence = self._redact(f"{reply.code} {reply.text}")
        match reply.code // 100:
            case 2:
                return Accepted(envelope.message_id, evidence)
            case 4:
                return Refused(evidence)
            case 5:
                configuration = is_configuration(reply.code)
                return Refused(evidence, final=not configuration, configuration=configuration)
        return Unknown(evidence)

    @staticmethod
    def _without_reply(session: SmtpSession, why: str) -> Answer:
        return Unknown(why) if session.data_sent else Refused(why)

    def _redact(self, text: str) -> str:
        if self._options.password is not None:
            password = self._options.password.reveal()
            alone = base64.b64encode(password.encode()).decode()  # as LOGIN sends it
            text = redact_secrets(text, password, alone, plain_proof(self._options.username, password))
        return "".join(char if char.isprintable() else " " for char in text)[:EVIDENCE_CHARS]
