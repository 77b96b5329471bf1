"""The front half of the flow for events that are handled later: delivery → event → keys → inbox → answer."""

from __future__ import annotations

from collections.abc import Callable

from semel.core.batcher import Batcher
from semel.core.delivery_log import DeliveryLog
from semel.core.handlers import Handler
from semel.core.planning import Arrived, Plan, Planner
from semel.ports import Inbox, Telemetry
from semel.values.claim import Claim
from semel.values.inbox import Acceptance, Arrival
from semel.values.outcome import Outcome, combine


class Acceptor:
    """Makes events durable. Each handler of an event gets a letter of its own, in its own lane: a slow one delays no
    other, and each is retried by itself."""

    def __init__(
        self, inbox: Inbox, planner: Planner, accepted: Callable[[], None], telemetry: Telemetry | None = None
    ) -> None:
        """`accepted` is told that there is something to handle."""
        self._planner = planner
        self._telemetry = telemetry
        self._accepted = accepted
        self._lane: Batcher[Arrival, Acceptance] = Batcher(inbox.accept)
        self._log = DeliveryLog()

    async def accept(self, delivery: Arrived, trace: str = "") -> Outcome:
        """One delivery. What is answered "accepted" or "duplicate" is durable. Raises LedgerUnavailable."""
        plan = self._planner.plan(delivery)
        if isinstance(plan, Outcome):
            return self._told([plan], delivery.tenant)
        handlers, claims = plan.handlers, plan.claims
        answers = await self._lane.ask([_arrival(plan, claim, trace) for claim in claims])
        outcomes = [_outcome(*one, plan) for one in zip(answers, handlers, claims, strict=True)]
        if any(outcome.status == "accepted" for outcome in outcomes):
            self._accepted()
        return self._told(outcomes, delivery.tenant)

    def _told(self, outcomes: list[Outcome], tenant: str) -> Outcome:
        for outcome in outcomes:
            if self._telemetry is not None:
                self._telemetry.answered(outcome)
            self._log.not_run(outcome, tenant)
        return combine(outcomes)


def _arrival(plan: Plan, claim: Claim, trace: str) -> Arrival:
    return Arrival((claim,), claim.handler, plan.event.raw, claim.tenant, plan.reading, trace)


def _outcome(answer: Acceptance, handler: Handler, claim: Claim, plan: Plan) -> Outcome:
    return Outcome(answer.status, reason=answer.reason, handler=handler.name, key=claim.digest.hex(), id=plan.event.id)
