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

EARLY_S = 60.0  # a token is fetched anew so long before it ends: one that ends on its way is a refusal
TOKEN_MAX_S = 86_400.0


class Hidden(Protocol):
    """A text that does not show itself: a secret."""

    def reveal(self) -> str: ...


class NoAccess(Exception):
    """There are no credentials to send with: nothing has left."""


class Auth(Protocol):
    async def headers(self) -> Mapping[str, str]:
        """Raises NoAccess."""

    def refused(self) -> None:
        """A request with these headers was answered 401."""


class Headers:
    """The same ones for every request."""

    def __init__(self, headers: Mapping[str, Hidden]) -> None:
        self._headers = headers

    async def headers(self) -> Mapping[str, str]:
        return {name: value.reveal() for name, value in self._headers.items()}

    def refused(self) -> None:
        """They stay as they are: a person has to look at them."""


class Basic:
    def __init__(self, username: str, password: Hidden) -> None:
        self._username = username
        self._password = password

    async def headers(self) -> Mapping[str, str]:
        return {"Authorization": basic(self._username, self._password)}

    def refused(self) -> None:
        """It stays as it is."""


def basic(username: str, password: Hidden) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password.reveal()}".encode()).decode()


class _Granted(Struct, frozen=True):
    access_token: str
    expires_in: float = 300.0
    token_type: str = "bearer"


_granted = msgspec.json.Decoder(_Granted).decode


class Token:
    """A token that is asked for with `form`, and used until shortly before its end. Many who need one ask once."""

    def __init__(
        self,
        client: Client,
        url: str,
        form: Callable[[], Mapping[str, str]],
        headers: Callable[[], Mapping[str, str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._url = url
        self._form = form
        self._more = headers
        self._clock = clock
        self._asking = asyncio.Lock()
        self._token = ""
        self._until = 0.0

    async def headers(self) -> Mapping[str, str]:
        if self._clock() >= self._until:
            async with self._asking:
                if self._clock() >= self._until:  # somebody may have asked while we waited
                    await self._ask()
        return {"Authorization": f"Bearer {self._token}"}

    def refused(self) -> None:
        self._until = 0.0

    async def _ask(self) -> None:
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json", **self._more()}
        answer = await self._client.ask(self._url, urlencode(self._form()).encode(), headers)
        match answer:
            case Answered(status=200, body=bytes(body)):
                try:
                    granted = _granted(body)
                except msgspec.DecodeError:
                    raise NoAccess("the token endpoint answered with something that is no token") from None
                self._token = granted.access_token
                self._until = self._clock() + max(1.0, min(granted.expires_in, TOKEN_MAX_S) - EARLY_S)
            case Answered(status=status):
                raise NoAccess(f"the token endpoint answered {status}")
            case Unsent(why=why) | Unanswered(why=why):
                raise NoAccess(f"the token endpoint: {why}")
