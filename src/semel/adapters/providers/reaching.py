"""Whether a provider can be reached, for `semel doctor`: a connection is opened, and no message is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from semel.adapters.wire.place import Place
from semel.adapters.wire.reaching import reach as look


@runtime_checkable
class Placed(Protocol):
    """A provider that is at a place."""

    place: Place
    allow: Sequence[str]


@runtime_checkable
class Checked(Protocol):
    """A provider that can try its credentials without sending a message."""

    async def check_access(self) -> str | None: ...


async def reach(provider: object) -> str | None:
    """Why it cannot be reached, or refuses its credentials; None when it can, or is nowhere."""
    reason = await look(provider.place, provider.allow) if isinstance(provider, Placed) else None
    if reason is None and isinstance(provider, Checked):
        return await provider.check_access()
    return reason
