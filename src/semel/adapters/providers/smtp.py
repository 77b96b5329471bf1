"""SMTP: mail by any server. It has no idempotency and cannot be asked; the Message-ID is ours, and the same every time.

no connection, a no before the mail, a 4xx   refused, this time
530, 534, 535, 538                           refused, this time: the settings are wrong, and the mail is not
5xx                                          refused for good
250 after the final dot                      accepted
no answer after the final dot                unknown
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec
from msgspec import Struct

from semel.adapters.providers.auth import Hidden, without
from semel.adapters.providers.mime import mail_bytes
from semel.adapters.providers.posting import EVIDENCE_CHARS, WRITTEN_FOR_ANOTHER, key_of
from semel.adapters.providers.saying import address_of, mail_of
from semel.adapters.providers.smtp_talk import Broken, Denied, Reply, Talk, Tls, is_configuration, plain_proof
from semel.adapters.wire.failures import why_not
from semel.adapters.wire.place import Place
from semel.values.errors import ConfigError
from semel.values.outbox import Dispatch, LookedUp, Unclear, Witness
from semel.values.sending import Accepted, Answer, Contract, Refused, Unknown

CHECK_S = 5.0  # a person waits for it
HERE = ("127.0.0.1", "::1", "localhost")


class _Envelope(Struct, frozen=True):
    """What is kept, so that a retry sends the same bytes."""

    sender: str
    to: str
    message_id: str
    data: str


_encode = msgspec.json.Encoder(order="deterministic").encode
_envelope = msgspec.json.Decoder(_Envelope).decode


class Smtp:
    CONTRACT: ClassVar[Contract] = Contract(name="smtp", channels=("email",), timeout_s=30.0)

    def __init__(
        self,
        host: str,
        port: int,
        *,
        sender: str = "",
        tls: Tls = "starttls",
        username: str = "",
        password: Hidden | None = None,
        domain: str = "",
        contract: Contract | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        """`domain`: behind the @ of a Message-ID; empty: the sender's."""
        self.contract = contract or self.CONTRACT
        if (password is not None) != bool(username):
            raise ConfigError(f"provider {self.contract.name!r}: username and password belong together")
        if password is not None and tls == "off" and host not in HERE:
            raise ConfigError(f'provider {self.contract.name!r}: a password needs tls = "starttls" or "implicit"')
        self._host = host
        self._port = port
        self._sender = sender
        self._tls: Tls = tls
        self._username = username
        self._password = password
        self._domain = domain
        self.place, self.allow = Place(host, port, secure=tls == "implicit"), allow
        self._context: ssl.SSLContext | None = None  # reading certificates takes a while, and not all need them

    def prepare(self, dispatch: Dispatch) -> bytes:
        mail = mail_of(dispatch, "smtp", self._sender)
        id = key_of(dispatch)
        message_id = f"{id}@{self._domain or mail.sender.email.rpartition('@')[2]}"
        data = mail_bytes(mail, message_id, f"semel-{id}", dispatch.taken_ms)
        return _encode(_Envelope(mail.sender.email, mail.to, message_id, data))

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        try:
            envelope = self._kept(dispatch, request)
        except ConfigError as error:
            return Refused(str(error), final=True)
        if envelope is None:
            return Refused(WRITTEN_FOR_ANOTHER)
        talk = Talk()
        answer: Answer | None = None
        try:
            async with asyncio.timeout(self.contract.timeout_s):
                answer = self._judge(envelope, await self._tell(talk, envelope))
        except Denied as error:
            answer = Refused(self._hide(str(error)), final=error.final, configuration=error.configuration)
        except TimeoutError:
            answer = self._lost(talk, f"no answer within {self.contract.timeout_s:g} s")
        except Broken as error:
            answer = self._lost(talk, str(error))
        except OSError as error:
            answer = self._lost(talk, why_not(error))
        finally:
            await talk.end(politely=isinstance(answer, Accepted))
        return answer

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        return Unclear("a mail server cannot be asked")

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[Witness]:
        return []  # a mail server calls nobody back

    async def close(self) -> None:
        """A conversation ends with its mail."""

    def _kept(self, dispatch: Dispatch, request: bytes) -> _Envelope | None:
        """Anew where it is another provider's, who had this name before; None where that one may have sent it."""
        try:
            return _envelope(request)
        except msgspec.DecodeError:
            return None if dispatch.standing.doubt_ms else _envelope(self.prepare(dispatch))

    async def check_access(self) -> str | None:
        """Why the server would take no mail, for `semel doctor`: sign in and name the sender, and send nothing."""
        talk = Talk()
        try:
            async with asyncio.timeout(min(CHECK_S, self.contract.timeout_s)):
                await self._begin(talk)
                if self._sender:
                    await talk.offer(address_of(self._sender, "smtp").email)
        except (Denied, Broken) as error:
            return self._hide(str(error))
        except TimeoutError:
            return "no answer in time"
        except OSError as error:
            return why_not(error)
        finally:
            await talk.end(politely=True)
        return None

    async def _begin(self, talk: Talk) -> None:
        if self._context is None and self._tls != "off":
            self._context = ssl.create_default_context()
        await talk.connect(self._host, self._port, self._tls, self.allow, self._context)
        if self._password is not None:
            await talk.sign_in(self._username, self._password.reveal())

    async def _tell(self, talk: Talk, envelope: _Envelope) -> Reply:
        await self._begin(talk)
        return await talk.deliver(envelope.sender, envelope.to, envelope.data)

    def _judge(self, envelope: _Envelope, reply: Reply) -> Answer:
        told = self._hide(f"{reply.code} {reply.text}")
        match reply.code // 100:
            case 2:
                return Accepted(envelope.message_id, told)
            case 4:
                return Refused(told)
            case 5:
                wrong = is_configuration(reply.code)
                return Refused(told, final=not wrong, configuration=wrong)
        return Unknown(told)

    @staticmethod
    def _lost(talk: Talk, why: str) -> Answer:
        return Unknown(why) if talk.told_all else Refused(why)

    def _hide(self, text: str) -> str:
        if self._password is not None:
            password = self._password.reveal()
            alone = base64.b64encode(password.encode()).decode()  # as LOGIN sends it
            text = without(text, password, alone, plain_proof(self._username, password))
        return "".join(char if char.isprintable() else " " for char in text)[:EVIDENCE_CHARS]
