"""Runs handlers without the ledger, on routes that chose to fail open. An effect may happen twice there.

Nothing is recorded, so no outcome is final that only the ledger could keep: an event that does not succeed is retried
by its source.
"""

from __future__ import annotations

import asyncio
import math

from semel.core.handler_run import Context, HandlerRun
from semel.core.routing import Plan
from semel.values.claim import Granted, Lease
from semel.values.outcome import NotNow, Outcome, Reject, Retry, combine

NO_TOKEN = 0  # lower than every grant: a resource that checks tokens refuses it
RETRY_S = 5.0


def may_run(plan: Plan) -> bool:
    return all(handler.fail_open for handler in plan.handlers)


async def run(plan: Plan) -> Outcome:
    """Run all handlers of an event, one after the other."""
    runs = [
        HandlerRun(0, plan.event, handler, claim, plan.decode_options)
        for handler, claim in zip(plan.handlers, plan.claims, strict=True)
    ]
    return combine([await _run_one(run) for run in runs])


async def _run_one(run: HandlerRun) -> Outcome:
    run.effects_until = math.inf  # there is no lease that could end
    context = Context(run, Granted(Lease(run.claim, NO_TOKEN), attempt=1, takeover=False, age_ms=0))
    handler = run.handler
    try:
        async with asyncio.timeout(handler.timeout_s):
            if handler.is_async:
                result = await handler.fn(run.event, context)
            else:
                result = await asyncio.to_thread(handler.fn, run.event, context)
    except Exception as error:
        result = error
    match result:
        case Retry() | NotNow():
            return run.outcome("retry", reason=str(result.reason), after=result.after or RETRY_S)
        case Reject():
            return run.outcome("retry", reason=f"rejected without a ledger: {result.reason}", after=RETRY_S)
        case Exception():
            return run.outcome("retry", reason=type(result).__name__, after=RETRY_S)
    return run.outcome("done", result=result, reason="without the ledger")
