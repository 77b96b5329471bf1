"""A real ledger with a faulty line to it: calls fail before or after they reached the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel import LedgerUnavailable, Semel
from semel.values.claim import Claim, Lease, Settlement, Verdict


class FaultyLine:
    """Stands between an app and its own ledger. `landed` counts the faults, so that a test can prove that they came."""

    def __init__(self, app: Semel) -> None:
        self._ledger: Any = app.ledger
        self.lost_replies = 0  # the next settles reach the store, but their answers do not come back
        self.cut = set[str]()  # calls of these names do not reach the store
        self.landed = 0
        app.ledger = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        self._fail_if_cut("claim")
        verdicts: list[Verdict] = await self._ledger.claim(claims)
        return verdicts

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        self._fail_if_cut("settle")
        kept: list[bool] = await self._ledger.settle(settlements)
        if self.lost_replies:
            self.lost_replies -= 1
            self._fail()
        return kept

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        self._fail_if_cut("renew")
        kept: list[bool] = await self._ledger.renew(leases)
        return kept

    def _fail_if_cut(self, name: str) -> None:
        if name in self.cut:
            self._fail()

    def _fail(self) -> None:
        self.landed += 1
        raise LedgerUnavailable("the line is cut")
