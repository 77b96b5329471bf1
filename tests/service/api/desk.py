"""The API over an outbox, with a relay beside it that does what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tests.service.api.live import Client, Reply, api_on

from semel.ledgers.sqlite import SqliteLedger
from semel.values import delivery_state as states
from semel.values.delivery_state import Accepted, Answer, Contract, Refused, Unknown
from semel.values.outbox import Crossed, Crossing, Lane, Record

PHONE = "+4917012345678"
LONG_MS = 600_000
CONTRACT = Contract(name="twilio", channels=("sms",))


@dataclass
class Desk:
    client: Client
    ledger: SqliteLedger

    def send(self, key: str = "order-1", **more: Any) -> str:
        """Ask for a message; its id."""
        reply = self.ask(key, **more)
        assert reply.status in (200, 201), reply.body
        return str(reply.json()["id"])

    def ask(self, key: str | None = "order-1", header: str | None = None, **more: Any) -> Reply:
        """`key` goes into the body, `header` into Idempotency-Key."""
        body = {"kind": "shipping", "recipient": PHONE, "channel": "sms", "body": "On its way", "key": key, **more}
        return self.client.ask("POST", "/v1/notifications", body, **{"Idempotency_Key": header} if header else {})

    def show(self, id: str) -> dict[str, Any]:
        reply = self.client.ask("GET", f"/v1/notifications/{id}")
        assert reply.status == 200, reply.body
        shown: dict[str, Any] = reply.json()
        return shown

    def decide(self, id: str, verb: str, reason: str = "the customer says so", **more: Any) -> Reply:
        return self.client.ask("POST", f"/v1/notifications/{id}/{verb}", {"reason": reason, **more})

    def told(self, **query: str) -> Reply:
        return self.client.ask("GET", f"/v1/notifications/status?{urlencode(query, quote_via=quote)}")

    def listed(self, **query: str | int) -> Reply:
        return self.client.ask("GET", f"/v1/notifications?{urlencode(query, quote_via=quote)}")

    # ------------------------------------------------------------------------------------------------ as a relay

    def relay(self, answer: Answer | None, contract: Contract = CONTRACT) -> list[str]:
        """Take what is due, let it cross, and be answered so; None: the relay is still waiting. Its ids."""
        return asyncio.run(self._relay(answer, contract))

    async def _relay(self, answer: Answer | None, contract: Contract) -> list[str]:
        outbox = self.ledger.outbox
        taken = await outbox.take({"@sms": Lane(100)}, LONG_MS)
        delivery_states = [states.crossed(one.delivery_state, one.taken_ms) for one in taken]
        gates = await outbox.cross([Crossing(one, at) for one, at in zip(taken, delivery_states, strict=True)])
        records = []
        for one, gate, at in zip(taken, gates, delivery_states, strict=True):
            if answer is not None and isinstance(gate, Crossed):
                after = states.answered(at, answer, contract, one.taken_ms, lambda: 0.0)
                records.append(Record(one, after, *_said(answer)))
        assert all(await outbox.record(records))
        return [one.id.hex() for one in taken]


def _said(answer: Answer) -> Any:
    match answer:
        case Accepted():
            return "accepted", answer.evidence, answer.reference
        case Refused():
            return "refused", answer.reason
        case Unknown():
            return "unknown", answer.reason


@contextmanager
def desk_on(folder: Path, **more: Any) -> Iterator[Desk]:
    ledgers: list[SqliteLedger] = []

    def line(ledger: SqliteLedger) -> SqliteLedger:
        ledgers.append(ledger)
        return ledger

    with api_on(folder, line=line, **more) as client:
        yield Desk(client, ledgers[0])
