"""The process that the proofs kill: a relay on an outbox in SQLite, with one provider. Its argument is a `Plan`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from semel.adapters.ledgers.sqlite import SqliteLedger
from semel.adapters.providers.auth import Basic
from semel.adapters.providers.twilio import Twilio
from semel.core.relay import Relay
from semel.settings.secret import Secret
from semel.testing.crash import crash_at
from semel.testing.simulator.dialects.twilio import ACCOUNT, SECRET
from semel.values.sending import Contract

PROVIDER = "twilio"
MARGIN_S = 0.5  # leases lapse soon after a relay has died


class Plan(msgspec.Struct, frozen=True):
    path: str
    url: str
    looks_up: bool = True
    settle_s: float = 0.3
    timeout_s: float = 1.0
    step: str = ""
    hit: int = 1
    marker: str = ""


async def work(plan: Plan) -> None:
    ledger = SqliteLedger(plan.path)
    contract = Contract(
        name=PROVIDER,
        channels=("sms",),
        looks_up=plan.looks_up,
        settle_s=plan.settle_s,
        timeout_s=plan.timeout_s,
        concurrency=32,
    )
    auth = Basic(ACCOUNT, Secret(SECRET))
    provider = Twilio(plan.url, auth, account=ACCOUNT, sender="+490", contract=contract, allow=["127.0.0.1"])
    observe = crash_at(plan.step, plan.hit, marker=Path(plan.marker)) if plan.step else None
    relay = Relay(
        ledger.outbox, {PROVIDER: provider}, {"sms": [PROVIDER]}, observe=observe, margin_s=MARGIN_S, random=lambda: 0.1
    )
    await relay.run()


if __name__ == "__main__":
    asyncio.run(work(msgspec.json.decode(sys.argv[1], type=Plan)))
