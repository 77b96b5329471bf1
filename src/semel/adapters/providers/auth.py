"""Who asks: the headers that prove it. Secrets are in memory only, and nothing here shows them."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from semel.adapters.wire.answers import Answered, Unanswered, Unsent
from semel.adapters.wire.client import Client
from semel.values.first_byte import checked_by

EARLY_S = 60.0  # a token is fetched anew so long before it ends: one that ends on its way is a refusal
TOKEN_MAX_S = 86_400.0
SHORTEST_SECRET = 4  # characters; a shorter text stands in every second line by chance
HIDDEN = "…"
REFUSED_CREDENTIALS = (400, 401, 403)  # of a token endpoint (RFC 6749, 5.2: invalid_client, invalid_grant)


class Hidden(Protocol):
    """A text that does not show itself: a secret."""

    def reveal(self) -> str: ...


class NoAccess(Exception):
    """There are no credentials to send with: nothing has left."""

    def __init__(self, why: str, after_s: float | None = None, *, configuration: bool = False) -> None:
        """`configuration`: the credentials are wrong, and asking again helps only after a person changed them."""
        super().__init__(why)
        self.configuration = configuration
        self.after_s = after_s  # what was asked for, where somebody asked to wait


class Asked(Struct, frozen=True):
    """What is about to be sent: a signature is over all of it."""

    method: str
    url: str
    body: bytes
    content_type: str = ""


class Auth(Protocol):
    takes_s: float
    """How long `headers` may take: what follows has the rest of the provider's time."""

    async def headers(self, asked: Asked) -> Mapping[str, str]:
        """Raises NoAccess."""

    def refused(self, headers: Mapping[str, str]) -> None:
        """A request with these headers was answered 401."""

    def hide(self, text: str) -> str:
        """The text without the secrets that a provider may have repeated in it."""

    async def close(self) -> None: ...


class Headers:
    """The same ones for every request. `scheme` comes before each value: "Bearer "."""

    takes_s = 0.0

    def __init__(self, headers: Mapping[str, Hidden], scheme: str = "") -> None:
        self._headers = headers
        self._scheme = scheme
        self.names = frozenset(name.lower() for name in headers)

    async def headers(self, asked: Asked) -> Mapping[str, str]:
        return sayable({name: self._scheme + value.reveal() for name, value in self._headers.items()})

    def refused(self, headers: Mapping[str, str]) -> None:
        """They stay as they are: a person has to look at them."""

    def hide(self, text: str) -> str:
        values = [value.reveal() for value in self._headers.values()]
        return without(text, *values, *(value.rpartition(" ")[2] for value in values))  # "Bearer …": what proves it

    async def close(self) -> None:
        """There is nothing to let go of."""


class Basic:
    takes_s = 0.0

    def __init__(self, username: str, password: Hidden) -> None:
        self._username = username
        self._password = password

    async def headers(self, asked: Asked) -> Mapping[str, str]:
        return {"Authorization": basic(self._username, self._password)}

    def refused(self, headers: Mapping[str, str]) -> None:
        """It stays as it is."""

    def hide(self, text: str) -> str:
        return without(text, self._password.reveal(), basic(self._username, self._password).removeprefix("Basic "))

    async def close(self) -> None:
        """There is nothing to let go of."""


def basic(username: str, password: Hidden) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password.reveal()}".encode()).decode()


def sayable(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Raises NoAccess for what no header can hold: a key file with two lines, say."""
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            why = f"the credentials for {name} hold a character that no header can: look at their source"
            raise NoAccess(why, configuration=True)
    return headers


def without(text: str, *secrets: str) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, HIDDEN)
    return text


def _no_check() -> None:
    """A token is fetched for everybody who waits: the end of the first one's lease must not end it for the others."""


class _Granted(Struct, frozen=True):
    access_token: str
    expires_in: float = 300.0


_granted = msgspec.json.Decoder(_Granted, strict=False).decode  # some write the number as a text


class Token:
    """A token that is asked for with `form`, and used until shortly before its end. Many who need one ask once, and
    share what comes of it: a token endpoint that is slow keeps nobody longer than `takes_s`."""

    def __init__(
        self,
        client: Client,
        url: str,
        form: Callable[[], Mapping[str, str]],
        *,
        takes_s: float,
        headers: Callable[[], Mapping[str, str]] = dict,
        secrets: tuple[Hidden, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`client`: of the token endpoint, with `takes_s` as its time. `secrets`: those in the form and the headers."""
        self.takes_s = takes_s
        self._client = client
        self._url = url
        self._form = form
        self._more = headers
        self._secrets = secrets
        self._clock = clock
        self._asking: asyncio.Task[NoAccess | None] | None = None
        self._token = self._before = ""
        self._until = 0.0

    async def headers(self, asked: Asked) -> Mapping[str, str]:
        if self._clock() >= self._until and (failure := await self._renewed()) is not None:
            raise NoAccess(str(failure), failure.after_s, configuration=failure.configuration)
        return {"Authorization": f"Bearer {self._token}"}

    def refused(self, headers: Mapping[str, str]) -> None:
        """Only the token that was refused is forgotten: many are told so, after one of them has a new one already."""
        if headers.get("Authorization") == f"Bearer {self._token}":
            self._until = 0.0

    def hide(self, text: str) -> str:
        tokens = self._token, self._before  # what is answered now may have left with the one before
        return without(text, *tokens, *(secret.reveal() for secret in self._secrets))

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        await self._client.close()

    async def _renewed(self) -> NoAccess | None:
        if self._asking is None:
            with checked_by(_no_check):
                self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(self._asked)
        return await asyncio.shield(self._asking)  # whoever gives up waiting does not take it from the others

    def _asked(self, task: asyncio.Task[NoAccess | None]) -> None:
        self._asking = None

    async def _ask(self) -> NoAccess | None:
        kind = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        body = urlencode(self._form()).encode()
        usual = {"Accept-Encoding": "identity", "User-Agent": "Semel"}
        match await self._client.ask(self._url, body, {**kind, **usual, **self._more()}):
            case Answered(status=200, body=bytes(body)):
                return self._keep(body)
            case Answered(status=status, after_s=after_s):
                wrong = status in REFUSED_CREDENTIALS
                return NoAccess(f"the token endpoint answered {status}", after_s, configuration=wrong)
            case Unsent(why=why) | Unanswered(why=why):
                return NoAccess(f"the token endpoint: {why}")

    def _keep(self, body: bytes) -> NoAccess | None:
        try:
            granted = _granted(body)
            sayable({"Authorization": granted.access_token})
        except (msgspec.DecodeError, UnicodeDecodeError, NoAccess):
            return NoAccess("the token endpoint answered with something that is no token")
        self._before, self._token = self._token, granted.access_token
        self._until = self._clock() + max(1.0, min(granted.expires_in, TOKEN_MAX_S) - EARLY_S)
        return None
