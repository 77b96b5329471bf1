"""Running handlers without the ledger, for routes that chose to fail open. An effect may happen twice then.

Nothing is recorded, so nothing may be called final that only the ledger could keep: what does not succeed is brought
again by its source.
"""

from __future__ import annotations

import asyncio
import math

from semel.core.act import Act, Context
from semel.core.planning import Plan
from semel.values.claim import Granted, Lease
from semel.values.outcome import NotNow, Outcome, Reject, Retry, combine

NO_TOKEN = 0  # lower than every grant: a resource that checks tokens refuses it
AGAIN_S = 5.0


def may_run(plan: Plan) -> bool:
    return all(handler.fail_open for handler in plan.handlers)


async def run(plan: Plan) -> Outcome:
    """All handlers of an event, one after the other."""
    acts = [
        Act(0, plan.event, handler, claim, plan.reading)
        for handler, claim in zip(plan.handlers, plan.claims, strict=True)
    ]
    return combine([await _run_one(act) for act in acts])


async def _run_one(act: Act) -> Outcome:
    act.acts_until = math.inf  # there is no lease that could end
    context = Context(act, Granted(Lease(act.claim, NO_TOKEN), attempt=1, takeover=False, age_ms=0))
    handler = act.handler
    try:
        async with asyncio.timeout(handler.timeout_s):
            if handler.is_async:
                result = await handler.fn(act.event, context)
            else:
                result = await asyncio.to_thread(handler.fn, act.event, context)
    except Exception as error:
        result = error
    match result:
        case Retry() | NotNow():
            return _say(act, Outcome("retry", reason=str(result.reason), after=result.after or AGAIN_S))
        case Reject():
            return _say(act, Outcome("retry", reason=f"rejected without a ledger: {result.reason}", after=AGAIN_S))
        case Exception():
            return _say(act, Outcome("retry", reason=type(result).__name__, after=AGAIN_S))
    return _say(act, Outcome("done", result=result, reason="without the ledger"))


def _say(act: Act, outcome: Outcome) -> Outcome:
    return Outcome(
        *(outcome.status, outcome.result, outcome.reason, outcome.after),
        handler=act.handler.name,
        key=act.claim.digest.hex(),
        id=act.event.id,
    )
