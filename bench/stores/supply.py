"""The input of the measurements: the same events for all, created before any timing."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from semel.app import LEASE_S, RETENTION_S
from semel.testing import traffic
from semel.values.claim import Claim

Item = TypeVar("Item")

TEXT = "event|aws.partner/genesys.com|v2.detail.events.conversation.{}.customer.end|{}|{}|1773957600000"


class Supply:
    """Deliveries that every measurement restarts, on an empty store, and claims that never repeat."""

    def __init__(self) -> None:
        self._random = Random(0)
        self._events: list[bytes] = []
        self._storms: dict[int, traffic.Storm] = {}

    def events(self, number: int) -> Sequence[bytes]:
        """Different events: 1.4 KB each, of a Genesys organisation."""
        if len(self._events) < number:
            self._events = list(traffic.events(number))
        return self._events[:number]

    def half_copies(self, number: int) -> traffic.Storm:
        """As many deliveries, of which half are copies: most come soon after their original."""
        if number not in self._storms:
            self._storms[number] = traffic.storm(number // 2, duplicates=1.0)
        return self._storms[number]

    def claims(self, number: int) -> list[Claim]:
        """New keys, with what Semel's own keys hold."""
        return [self._claim() for _ in range(number)]

    def batches_of_claims(self, number: int, size: int) -> list[list[Claim]]:
        return [self.claims(size) for _ in range(number)]

    def _claim(self) -> Claim:
        some = self._random.randbytes
        return Claim(
            digest=some(16),
            handler="bench",
            text=TEXT.format(some(18).hex(), some(18).hex(), some(18).hex()),
            lease_ms=int(LEASE_S * 1000),
            retention_ms=int(RETENTION_S * 1000),
            fingerprint=some(16),
        )


def in_batches(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[at : at + size] for at in range(0, len(items), size)]
