"""Whether a place can be reached, for `semel doctor`: a connection is opened and nothing is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from semel.adapters.wire.client import tls_for
from semel.adapters.wire.failures import why_not
from semel.adapters.wire.place import Place
from semel.adapters.wire.resolving import CheckedResolver

REACH_S = 5.0  # a person waits for it


async def reach(place: Place, allow: Sequence[str], timeout_s: float = REACH_S) -> str | None:
    """Why the place cannot be reached; None when it can: its name resolves to addresses that may be called, one of them
    accepts a connection, and over TLS its certificate is good."""
    within_s = min(REACH_S, timeout_s)
    try:
        async with asyncio.timeout(within_s):
            await _connect(place, CheckedResolver(place.host, allow))
    except TimeoutError:
        return f"no connection within {within_s:g} s"
    except OSError as error:
        return why_not(error)
    return None


async def _connect(place: Place, resolver: CheckedResolver) -> None:
    """To the first address that accepts. Raises the last one's OSError when none does."""
    failure: OSError | None = None
    tls = tls_for(place)
    for found in await resolver.resolve(place.host, place.port):
        try:
            _, writer = await asyncio.open_connection(
                found["host"], found["port"], ssl=tls, server_hostname=place.host.rstrip(".") if tls else None
            )
        except OSError as error:
            failure = error
            continue
        writer.transport.abort()
        return
    if failure is not None:
        raise failure
