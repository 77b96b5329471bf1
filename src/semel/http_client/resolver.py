"""Parses the URL of a destination and resolves its host to addresses that are allowed.

Two checks apply one rule. `resolve` checks every address from DNS and returns only allowed ones, so that no second
look-up can return another address. `make_socket` checks the address just before it is connected: IP addresses in a URL
are not resolved. A kept connection goes to an address that passed both checks.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec import Struct

from semel.values.addresses import allowed, forbidden, needs_address, odd_spelling
from semel.values.errors import ConfigError

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?", re.ASCII)  # a name, or an address in brackets


class ServerAddress(Struct, frozen=True):
    """Host, port and scheme of a URL."""

    host: str
    port: int
    secure: bool  # https


def server_address(name: str, url: str) -> ServerAddress:
    """Parse a destination's URL. Raises ConfigError, which does not show the URL: it can hold a token.

    The syntax of the host is narrow: a host that URL parsers interpret differently is refused.
    """

    def wrong(problem: str) -> ConfigError:
        return ConfigError(f"destination {name!r}: its url {problem}")

    if not url.isprintable() or " " in url or "\\" in url:
        raise wrong("contains a space, a backslash or a character that cannot be printed")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise wrong("cannot be parsed: check its brackets and its port") from None
    if parts.scheme not in ("http", "https"):
        raise wrong("must begin with https:// (or http://)")
    if parts.username is not None or parts.password is not None:
        raise wrong("contains a user name or password: set them in its headers, as a secret")
    if _HOST.fullmatch(host) is None:
        raise wrong("has no host that can be called: letters, digits, dots and dashes (other scripts as xn--…)")
    if (read := odd_spelling(host)) is not None:
        raise wrong(f"has the host {host}, another spelling of {read}: write {read}")
    if port == 0:
        raise wrong("has the port 0")
    secure = parts.scheme == "https"
    return ServerAddress(host, port or (443 if secure else 80), secure)


class AddressRefused(OSError):
    """The address is not allowed. It is an OSError, so that the client treats it as a failed connection."""


class CheckedResolver(AbstractResolver):
    """Resolves the host of one destination. `host` is spelled as in its URL; `allow` comes from the settings."""

    def __init__(self, host: str, allow: Sequence[str]) -> None:
        self._host = host
        self._allow = tuple(allow)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AddressFamily.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Resolve a host. Raises AddressRefused if none of its addresses is allowed."""
        refusals: list[str] = []
        callable_ones: list[ResolveResult] = []
        for found_family, _, proto, _, sockaddr in await _look_up(host, port, family):
            address = str(sockaddr[0])
            if (why := self._refusal(address)) is not None:
                refusals.append(why)
                continue
            callable_ones.append(
                ResolveResult(
                    hostname=host,
                    host=address,
                    port=port,
                    family=found_family,
                    proto=proto,
                    flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                )
            )
        if not callable_ones:
            raise AddressRefused(refusals[0] if refusals else "it has no address")
        return callable_ones

    def make_socket(self, address_info: tuple[Any, ...]) -> socket.socket:
        """Create the socket for an address, just before it is connected. Raises AddressRefused."""
        family, kind, proto, _, sockaddr = address_info
        if (why := self._refusal(str(sockaddr[0]))) is not None:
            raise AddressRefused(why)
        return socket.socket(family, kind, proto)

    async def close(self) -> None:
        """Nothing to close."""

    def _refusal(self, address: str) -> str | None:
        why = forbidden(address)
        if why is None or allowed(self._host, address, self._allow):
            return None
        entry = address if needs_address(address) else self._host  # a name cannot allow those addresses
        return f'{address} is {why} and is not allowed; to allow it, set allow = ["{entry}"] in its settings'


async def _look_up(host: str, port: int, family: int) -> list[tuple[Any, ...]]:
    """Look up a host in a separate daemon thread.

    An unresponsive name server must not block other look-ups, which would wait for a thread pool, nor the end of the
    process. The client runs one look-up at a time per host.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[tuple[Any, ...]]] = loop.create_future()

    def keep(found: list[tuple[Any, ...]] | BaseException) -> None:
        if answer.done():  # the caller was cancelled
            return
        if isinstance(found, BaseException):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def ask() -> None:
        found: list[tuple[Any, ...]] | BaseException
        try:
            found = list(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))
        except UnicodeError:  # a label that is empty or longer than 63 characters
            found = socket.gaierror(socket.EAI_NONAME, "it is not a host name")
        except Exception as error:
            found = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(keep, found)

    threading.Thread(target=ask, name=f"semel-resolve-{host}", daemon=True).start()
    return await answer
