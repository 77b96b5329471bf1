"""Whether a destination can be reached, for `semel doctor`."""

from __future__ import annotations

from semel.adapters.destinations.destination import Destination
from semel.adapters.wire.reaching import reach as look


async def reach(destination: Destination) -> str | None:
    """Why the destination cannot be reached; None when it can."""
    why = await look(destination.place, destination.allow, destination.timeout_s)
    return None if why is None else f"{destination.who}: {why}"
