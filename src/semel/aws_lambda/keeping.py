"""What is no event, kept in the ledger: a stream would bring it again until it expires, and stand still behind it.

It becomes a dead letter like any other, of a handler that is none: `semel dead list` has it, with its reason. Its key
is its content, so that it is one letter however often it comes. A replay lets it come once more.
"""

from __future__ import annotations

from semel.ports import Ledger
from semel.values.claim import Claim, DeadLetter, Granted, Settled, Settlement
from semel.values.errors import LedgerUnavailable
from semel.values.key import Namespace, content_digest
from semel.values.outcome import Reject
from semel.values.reading import Reading

HANDLER = "no-event"
LEASE_MS = 10_000  # for one settle
RETENTION_MS = 38 * 86_400_000  # as handlers' own: a copy that comes within it is no second letter
BY_CONTENT = "content"


class InLedger:
    """`put_aside` where nobody has given another one."""

    def __init__(self, ledger: Ledger, tenant: str) -> None:
        self._ledger = ledger
        self._tenant = tenant

    async def __call__(self, body: bytes, reason: str) -> None:
        """Raises LedgerUnavailable when it is not known to be kept."""
        content = content_digest(body).hex()
        digest = Namespace(self._tenant, HANDLER).digest((BY_CONTENT, content))
        claim = Claim(digest, HANDLER, content, LEASE_MS, RETENTION_MS, self._tenant)
        (verdict,) = await self._ledger.claim([claim])
        match verdict:
            case Settled():
                return  # a copy of it is there
            case Granted(lease, attempt):
                letter = DeadLetter(body, attempt, Reading(foreign=True))
                (kept,) = await self._ledger.settle([Settlement(lease, Reject(reason), letter)])
                if kept:
                    return
        raise LedgerUnavailable("somebody else is about to keep it")
