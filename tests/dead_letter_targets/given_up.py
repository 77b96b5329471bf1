"""Settlements that leave a letter."""

from __future__ import annotations

from hashlib import blake2b

from semel.values.attempts import FailedAttempt
from semel.values.claim import Claim, DeadLetter, Lease, Settlement
from semel.values.outcome import Reject, Uncertain

EVENT = b'{"id":"e-1","type":"order.created","data":{"customer":"c-7","total":12.50}}'


def given_up(
    name: str = "one",
    token: int = 1,
    event: bytes | None = EVENT,
    reason: str = "unknown customer",
    doubt: bool = False,
    attempts: int = 1,
    attempt_log: tuple[FailedAttempt, ...] = (),
) -> Settlement:
    digest = blake2b(name.encode(), digest_size=16).digest()
    claim = Claim(digest, "to-crm", f"key of {name}", 30_000, 3_600_000, tenant="acme")
    dead_letter = DeadLetter(event, attempts, attempt_log=attempt_log) if event is not None else None
    return Settlement(Lease(claim, token), Uncertain(reason) if doubt else Reject(reason), dead_letter)
