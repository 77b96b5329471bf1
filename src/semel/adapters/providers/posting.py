"""What all providers that speak HTTP share: one request, tried once, and an honest answer.

nothing was sent, no credentials      refused, this time
2xx                                   accepted
429                                   refused, a rate limit: no attempt is burnt
401                                   refused, this time: a new token may be taken
a status of contract.refusals         refused for good
a status of contract.retriable        refused, this time
anything else, and no answer at all   unknown
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from semel.adapters.providers.auth import Auth, NoAccess
from semel.adapters.wire.answers import Answer as Wire
from semel.adapters.wire.answers import Answered, Unanswered, Unsent
from semel.adapters.wire.client import Client
from semel.adapters.wire.place import place_of
from semel.values.outbox import Dispatch, LookedUp, Unclear, Witness
from semel.values.sending import Accepted, Answer, Contract, Refused, Unknown

EVIDENCE_CHARS = 200
LOOK_UP_MAX_BYTES = 1024 * 1024  # a page of a list

_encode = msgspec.json.Encoder(order="deterministic").encode
_parse = msgspec.json.Decoder().decode


class Request(Struct, frozen=True, omit_defaults=True):
    """What is kept of a request, so that a retry sends the same bytes. It holds no secret."""

    path: str  # behind the provider's URL
    body: str
    content_type: str = "application/json"
    method: str = "POST"


_request = msgspec.json.Decoder(Request).decode


class HttpProvider:
    """A provider's file says what is written and what an acceptance looks like; the rest is here."""

    CONTRACT: ClassVar[Contract]

    def __init__(self, url: str, auth: Auth, *, contract: Contract | None = None, allow: Sequence[str] = ()) -> None:
        """`url`: without a slash at its end. `contract`: the file's own, with what the settings change."""
        self.contract = contract or self.CONTRACT
        self.url = url.rstrip("/")
        self._auth = auth
        self._client = Client(
            place_of(self.contract.name, url), allow, self.contract.timeout_s, body_max_bytes=LOOK_UP_MAX_BYTES
        )

    # ------------------------------------------------------------------------------------- what a provider's file says

    def write(self, dispatch: Dispatch) -> Request:
        """The request for a message. Raises ConfigError for what this provider cannot send."""
        raise NotImplementedError

    def reference(self, answer: Answered) -> str:
        """The provider's own id of what it has accepted, where the answer has one."""
        return ""

    def reports(self, headers: Mapping[str, str], body: bytes) -> list[Witness]:
        """What a status callback says. Raises MalformedEvent."""
        return []

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        return Unclear(f"{self.contract.name} cannot be asked")

    # ------------------------------------------------------------------------------------------------- the port

    def prepare(self, dispatch: Dispatch) -> bytes:
        return _encode(self.write(dispatch))

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        kept = _request(request)
        headers = {"Content-Type": kept.content_type}
        key = self.contract.key
        if key is not None and key.header:
            headers[key.header] = key_of(dispatch)
        try:
            answer = await self.ask(kept.path, kept.body.encode(), headers, kept.method)
        except NoAccess as error:
            return Refused(str(error))
        return self.judge(answer)

    def judge(self, answer: Wire) -> Answer:
        match answer:
            case Unsent(why=why):
                return Refused(why)
            case Unanswered(why=why):
                return Unknown(why)
            case Answered(status=status) if 200 <= status < 300:
                return Accepted(self.reference(answer), f"{status}")
            case Answered(status=429):
                return Refused(told(answer), after_s=answer.after_s, limited=True)
            case Answered(status=401):
                return Refused(told(answer))
            case Answered(status=status) if status in self.contract.refusals:
                return Refused(told(answer), final=True)
            case Answered(status=status) if status in self.contract.retriable:
                return Refused(told(answer), after_s=answer.after_s)
        return Unknown(told(answer))

    async def ask(self, path: str, body: bytes | None, headers: Mapping[str, str], method: str = "POST") -> Wire:
        """One request with credentials. Raises NoAccess."""
        usual = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "Semel"}
        answer = await self._client.ask(
            self.url + path, body, {**usual, **headers, **await self._auth.headers()}, method
        )
        if isinstance(answer, Answered) and answer.status == 401:
            self._auth.refused()
        return answer

    async def close(self) -> None:
        await self._client.close()


def key_of(dispatch: Dispatch) -> str:
    """The same for every attempt, and for nothing else."""
    return dispatch.id.hex()


def told(answer: Answered) -> str:
    """A status and the beginning of its body, as one clean line. Answers may repeat what they were sent: whoever shows
    evidence to people decides how much of it."""
    text = (answer.body or b"")[: 4 * EVIDENCE_CHARS].decode("utf-8", "replace")
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())[:EVIDENCE_CHARS]
    return f"{answer.status}: {line}" if line else f"{answer.status}"


def field(answer: Answered, *path: str) -> str:
    """A text in the JSON of an answer; empty where there is none. An acceptance without its id is one all the same."""
    try:
        value: Any = _parse(answer.body or b"null")
    except msgspec.DecodeError:
        return ""
    for name in path:
        value = value[0] if isinstance(value, list) and value else value
        value = value.get(name) if isinstance(value, dict) else None
    return str(value) if isinstance(value, (str, int)) else ""


def json_body(document: Mapping[str, Any]) -> str:
    """One spelling for each document."""
    return _encode(document).decode()


def host_of(url: str) -> str:
    return urlsplit(url).hostname or ""
