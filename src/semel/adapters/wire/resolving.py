"""From a host to addresses that may be called, and to nothing else.

Two gates with one rule. `resolve` looks at every address that DNS gives and hands on only those that may be called, so
that nobody resolves again and gets another answer. `make_socket` looks at the very address that is about to be
connected to: IP addresses in a URL come past it without being resolved. A connection that is kept alive goes to an
address that came through both.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from semel.values.addresses import allowed, forbidden, needs_address


class Refused(OSError):
    """An address that may not be called. An OSError, because to the client it is one of the ways not to connect."""


class CheckedResolver(AbstractResolver):
    """Resolves the host of one destination. `host` is as its URL spells it, `allow` what a person allowed."""

    def __init__(self, host: str, allow: Sequence[str]) -> None:
        self._host = host
        self._allow = tuple(allow)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AddressFamily.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises Refused when the host has addresses and none of them may be called."""
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
            raise Refused(refusals[0] if refusals else "it has no address")
        return callable_ones

    def make_socket(self, address_info: tuple[Any, ...]) -> socket.socket:
        """The socket for an address, just before it is connected."""
        family, kind, proto, _, sockaddr = address_info
        if (why := self._refusal(str(sockaddr[0]))) is not None:
            raise Refused(why)
        return socket.socket(family, kind, proto)

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _refusal(self, address: str) -> str | None:
        why = forbidden(address)
        if why is None or allowed(self._host, address, self._allow):
            return None
        entry = address if needs_address(address) else self._host  # a name does not allow those
        where = f'allow = ["{entry}"] in its table of the settings'
        return f"{address} is {why}, and is not called; if it is meant, write {where}"


async def _look_up(host: str, port: int, family: int) -> list[tuple[Any, ...]]:
    """What DNS says, by a thread of its own: a name server that does not answer must hold up neither the others, who
    would wait for a pool, nor the end of the process. The client asks once at a time for each host."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[tuple[Any, ...]]] = loop.create_future()

    def keep(found: list[tuple[Any, ...]] | BaseException) -> None:
        if answer.done():  # nobody waits for it any more
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
            found = socket.gaierror(socket.EAI_NONAME, "it is no host name")
        except Exception as error:
            found = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(keep, found)

    threading.Thread(target=ask, name=f"semel-resolve-{host}", daemon=True).start()
    return await answer
