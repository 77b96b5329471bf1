"""From a host to addresses that may be called, and to nothing else.

Two gates with one rule. `resolve` looks at every address that DNS gives and hands on only those that may be called, so
that nobody resolves again and gets another answer. `make_socket` looks at the very address that is about to be
connected to: IP addresses in a URL come past it without being resolved. A connection that is kept alive goes to an
address that came through both.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from semel.values.addresses import allowed, forbidden

_THREADS = 2  # of its own: a name server that does not answer holds up this destination only


class Refused(OSError):
    """An address that may not be called. An OSError, because to the client it is one of the ways not to connect."""


class CheckedResolver(AbstractResolver):
    """Resolves the host of one destination. `host` is as its URL spells it, `allow` what a person allowed."""

    def __init__(self, host: str, allow: Sequence[str]) -> None:
        self._host = host
        self._allow = tuple(allow)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="semel-resolve")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AddressFamily.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises Refused when the host has addresses and none of them may be called."""
        ask = partial(socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM)
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        except UnicodeError:  # a label that is empty or longer than 63 characters
            raise socket.gaierror(socket.EAI_NONAME, "it is no host name") from None
        refusals: list[str] = []
        callable_ones: list[ResolveResult] = []
        for found_family, _, proto, _, sockaddr in found:
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
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _refusal(self, address: str) -> str | None:
        why = forbidden(address)
        if why is None or allowed(self._host, address, self._allow):
            return None
        return f'{address} is {why}, and is not called; if it is meant, write allow = ["{self._host}"]'
