"""What all providers that speak HTTP share: one request, tried once, and an honest answer.

nothing was sent, no credentials      refused, this time
2xx                                   accepted (a page of HTML is not: somebody else has answered)
429                                   refused, a rate limit: no attempt is burnt
401                                   refused, this time: the settings are wrong, or a new token is needed
a status of contract.refusals         refused for good
a status of contract.retriable        refused, this time
anything else, and no answer at all   unknown
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from semel.adapters.providers.auth import Asked, Auth, NoAccess, without
from semel.adapters.wire.answers import Answer as Wire
from semel.adapters.wire.answers import Answered, Unanswered, Unsent
from semel.adapters.wire.client import Client
from semel.adapters.wire.place import place_of
from semel.values.errors import ConfigError
from semel.values.outbox import Dispatch, LookedUp, Unclear, Witness
from semel.values.sending import Accepted, Answer, Contract, Refused, Unknown
from semel.values.strict_json import decode_any

EVIDENCE_CHARS = 200
EVIDENCE_READ_BYTES = 16 * 1024  # of an answer: secrets are taken out of all of it, before it is cut
TOKEN_LEAST = 12  # characters of a part of a URL that may be one; names of paths are shorter
LOOK_UP_MAX_BYTES = 1024 * 1024  # a page of a list
WRITTEN_FOR_ANOTHER = "it may have left by another provider, which had this name before: a person decides"
ASKED_ELSEWHERE = "it may have left by another provider, which had this name before"
USUAL = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "Semel"}

_encode = msgspec.json.Encoder(order="deterministic").encode


class Request(Struct, frozen=True, omit_defaults=True):
    """What is kept of a request, so that a retry sends the same bytes. It holds no secret."""

    path: str  # behind the provider's URL
    body: str
    content_type: str = "application/json"
    method: str = "POST"
    whose: str = ""  # by kind, host and account: under one name there may be another one tomorrow


_request = msgspec.json.Decoder(Request).decode


class HttpProvider:
    """A provider's file says what is written and what an acceptance looks like; the rest is here."""

    CONTRACT: ClassVar[Contract]
    answers_in_html = False
    NO_ACCESS: ClassVar[frozenset[int]] = frozenset({401})
    """Answers to credentials that may be good again at the next try."""

    def __init__(self, url: str, auth: Auth, *, contract: Contract | None = None, allow: Sequence[str] = ()) -> None:
        """`contract`: the file's own, with what the settings change."""
        self.contract = contract or self.CONTRACT
        self.url = url.rstrip("/")
        self._auth = auth
        timeout_s = self.contract.timeout_s - auth.takes_s
        self.place, self.allow = place_of(self.contract.name, url), allow
        self._who = f"{self.CONTRACT.name} {self.place.host}:{self.place.port}"
        self._client = Client(self.place, allow, timeout_s, body_max_bytes=LOOK_UP_MAX_BYTES)
        self._closed_until = 0.0  # monotonic: its limit is used up until then

    # ------------------------------------------------------------------------------------- what a provider's file says

    def write(self, dispatch: Dispatch) -> Request:
        """The request for a message. Raises ConfigError for what this provider cannot send."""
        raise NotImplementedError

    def headers_of(self, dispatch: Dispatch) -> Mapping[str, str]:
        """Those of one message: its key, where the contract has one for a header."""
        key = self.contract.key
        return {key.header: key_of(dispatch)} if key is not None and key.header else {}

    def reference(self, answer: Answered) -> str:
        """The provider's own id of what it has accepted, where the answer has one."""
        return ""

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[Witness]:
        """What a status callback says, after it was verified. Names of `headers` are in lower case; `query` is that of
        the URL it came to. Raises MalformedEvent for what is none; a status that says nothing about acceptance or
        delivery is no witness."""
        return []

    def used_up_s(self, headers: Mapping[str, str]) -> float:
        """For how long this answer's headers say that no further request will be taken. 0: they do not."""
        return 0.0

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        return Unclear(f"{self.contract.name} cannot be asked")

    # ------------------------------------------------------------------------------------------------- the port

    def prepare(self, dispatch: Dispatch) -> bytes:
        return _encode(replace(self.write(dispatch), whose=self._who))

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        if (closed_s := self._closed_until - time.monotonic()) > 0:
            return Refused("its rate limit is used up", after_s=closed_s, limited=True)
        try:
            kept = self._kept(request) or self._anew(dispatch)
        except ConfigError as error:
            return Refused(str(error), final=True)
        if kept is None:
            return Refused(WRITTEN_FOR_ANOTHER)
        headers = {"Content-Type": kept.content_type, **self.headers_of(dispatch)}
        try:
            answer = await self.ask(kept.path, kept.body.encode(), headers, kept.method)
        except NoAccess as error:
            return Refused(self._auth.hide(str(error)), after_s=error.after_s, configuration=error.configuration)
        return self.judge(answer)

    def may_have_left(self, dispatch: Dispatch) -> Request | None:
        """The request that is looked up, as it was: settings may have changed since. None: it was sent by another one
        of this name, and what is found or missing here says nothing of it."""
        return self._kept(dispatch.request if dispatch.request is not None else self.prepare(dispatch))

    def _kept(self, request: bytes) -> Request | None:
        """None: it is another provider's, who had this name before."""
        try:
            kept = _request(request)
        except msgspec.DecodeError:
            return None
        here = kept.path[:1] in ("", "/")  # else it would be a part of the host, and credentials go there
        return kept if here and kept.whose in ("", self._who) else None

    def _anew(self, dispatch: Dispatch) -> Request | None:
        """Nothing of what the other one had has left; where that is in doubt, it must not be sent by us as well."""
        return None if dispatch.standing.doubt_ms else self.write(dispatch)

    def judge(self, answer: Wire) -> Answer:
        match answer:
            case Unsent(why=why):
                return Refused(why)
            case Unanswered(why=why):
                return Unknown(why)
            case Answered():
                return self.judge_status(answer)

    def judge_status(self, answer: Answered) -> Answer:
        match answer.status:
            case 429:
                after_s = answer.after_s if answer.after_s is not None else self.used_up_s(answer.headers) or None
                return Refused(self.told(answer), after_s=after_s, limited=True)
            case status if status in self.NO_ACCESS:
                return Refused(self.told(answer), configuration=True)
            case status if status in self.contract.refusals:
                return Refused(self.told(answer), final=True)
            case status if status in self.contract.retriable:
                return Refused(self.told(answer), after_s=answer.after_s)
            case status if 200 <= status < 300:  # unless the settings know better: some say no with a 200
                if _is_page(answer) and not self.answers_in_html:
                    return Unknown(f"{status} with a page of HTML: who answered is not {self.contract.name}")
                return Accepted(self.reference(answer), f"{status}")
        return Unknown(self.told(answer))

    async def check_access(self) -> str | None:
        """Why there are no credentials to send with, for `semel doctor`; None where there are. No message is sent, so
        credentials that only a message would prove wrong are not found here."""
        try:
            await self._auth.headers(Asked("GET", self.url, b""))
        except NoAccess as error:
            return self._auth.hide(str(error))
        return None

    async def ask(self, path: str, body: bytes | None, headers: Mapping[str, str], method: str = "POST") -> Wire:
        """One request with credentials. Raises NoAccess."""
        url = self.url + path
        proof = await self._auth.headers(Asked(method, url, body or b"", headers.get("Content-Type", "")))
        answer = await self._client.ask(url, body, {**USUAL, **headers, **proof}, method)
        if isinstance(answer, Answered):
            if answer.status in self.NO_ACCESS:
                self._auth.refused(proof)
            if (used_up_s := self.used_up_s(answer.headers)) > 0:
                self._closed_until = time.monotonic() + used_up_s
        return answer

    def told(self, answer: Answered) -> str:
        """A status and the beginning of its body, as one clean line without our secrets. Answers may repeat what they
        were sent: whoever shows evidence to people decides how much of it."""
        text = self._auth.hide((answer.body or b"")[:EVIDENCE_READ_BYTES].decode("utf-8", "replace"))
        text = without(text, *tokens_in(self.url))
        line = " ".join("".join(char if char.isprintable() else " " for char in text).split())[:EVIDENCE_CHARS]
        return f"{answer.status}: {line}" if line else f"{answer.status}"

    async def close(self) -> None:
        await self._auth.close()
        await self._client.close()


class JsonProvider(HttpProvider):
    """One path, one document. `path` changes the first and `extra` adds to the second, where our facts end."""

    PATH: ClassVar[str]

    def __init__(
        self,
        url: str,
        auth: Auth,
        *,
        sender: str = "",
        path: str = "",
        extra: Mapping[str, Any] | None = None,
        contract: Contract | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        super().__init__(url, auth, contract=contract, allow=allow)
        self._sender = sender
        self._path = path or self.PATH
        self._extra = dict(extra or {})

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        """What is posted. Raises ConfigError for what this provider cannot send."""
        raise NotImplementedError

    def write(self, dispatch: Dispatch) -> Request:
        return Request(self._path, json_body({**self._extra, **self.document(dispatch)}))


def tokens_in(url: str) -> list[str]:
    """What may be a token in a URL that a person wrote. Pages that say "not found" like to repeat it."""
    parts = urlsplit(url)
    values = [value for _, value in parse_qsl(parts.query) if len(value) >= TOKEN_LEAST]
    pieces = [piece for piece in unquote(parts.path).split("/") if len(piece) >= TOKEN_LEAST]
    return [parts.query, parts.path if pieces else "", *values, *pieces]


def key_of(dispatch: Dispatch) -> str:
    """The same for every attempt, and for nothing else. 32 characters: every provider takes as many."""
    return dispatch.id.hex()


def field(answer: Answered, *path: str) -> str:
    """A text in the JSON of an answer; empty where there is none. An acceptance without its id is one all the same."""
    try:
        value: Any = decode_any(answer.body or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    for name in path:
        value = value[0] if isinstance(value, list) and value else value
        value = value.get(name) if isinstance(value, dict) else None
    return str(value)[:EVIDENCE_CHARS] if isinstance(value, (str, int)) else ""


def json_body(document: Mapping[str, Any]) -> str:
    """One spelling for each document."""
    return _encode(document).decode()


def _is_page(answer: Answered) -> bool:
    return answer.headers.get("content-type", "").lower().startswith("text/html")
