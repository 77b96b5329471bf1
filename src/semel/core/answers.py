"""What the deliverer is told, for each verdict and each ending."""

from __future__ import annotations

from semel.core.act import Act
from semel.values.claim import Busy, Conflict, Settled, Stale
from semel.values.outcome import Done, Ending, Outcome, Reject, Release, Retry, Status, Uncertain
from semel.values.strict_json import decode_any

HELD = "held elsewhere, or not due yet"
ISOLATED = "two of its processes died: it waits until no other such event of its handler runs"
WAITING = (HELD, ISOLATED)  # over soon, mostly: asked again early, and later each time
NO_TIME = "no time is left to begin"
GIVEN_BACK_S = 1.0  # what undid a transaction from outside (a neighbour, another process) is mostly over by then


def refusal(act: Act, verdict: Settled | Busy | Stale | Conflict) -> Outcome:
    """The ledger did not grant the lease."""
    match verdict:
        case Settled(Done(result)):
            return _say(act, "duplicate", result=None if result == b"null" else decode_any(result))
        case Settled(Reject() as rejected):
            return _say(act, "duplicate", reason=f"dead: {rejected.reason}")
        case Settled(Uncertain(reason)):
            return _say(act, "duplicate", reason=f"uncertain: {reason}")
        case Busy(after_ms):
            return _say(act, "busy", reason=HELD, after=after_ms / 1000)
        case Stale():
            return _say(act, "stale", reason="a newer event of the subject was applied")
        case Conflict():
            return _say(act, "conflict", reason="the key is known with another payload")
    raise TypeError(f"{verdict!r} is no refusal")


def is_held_elsewhere(act: Act) -> bool:
    """It was refused as busy; not one that ran and asked to come again, or that waits for its isolation."""
    return act.answer is not None and act.answer.status == "busy" and act.answer.reason == HELD and not act.started


def answer_to(act: Act, ending: Ending) -> Outcome:
    """The lease was settled with this ending."""
    match ending:
        case Done():
            return _say(act, "done", result=act.result)
        case Retry():
            return _say(act, "retry", reason=ending.reason, after=ending.after or 0.0)
        case Reject():
            return _say(act, "dead", reason=ending.reason)
        case Uncertain(reason):
            return _say(act, "uncertain", reason=reason)
        case Release(after, reason):
            return _say(act, "busy", reason=reason, after=after)


def lost(act: Act) -> Outcome:
    """Someone else has the lease, or will have it: the delivery comes again and is answered from what they settle."""
    return _say(act, "busy", reason=act.stopped or "the lease was taken over", after=act.handler.lease_s)


def isolated(act: Act) -> Outcome:
    """Another event that may kill its process runs. Nothing was counted."""
    return _say(act, "busy", reason=ISOLATED, after=act.handler.lease_s)


def no_time(act: Act) -> Outcome:
    """Its deliverer would be gone before it is done."""
    return _say(act, "busy", reason=NO_TIME, after=0.0)


def given_back(act: Act, reason: str) -> Outcome:
    """Its transaction could not be committed, and so nothing of it happened."""
    return _say(act, "busy", reason=reason, after=GIVEN_BACK_S)


def _say(act: Act, status: Status, result: object = None, reason: str = "", after: float | None = None) -> Outcome:
    return Outcome(status, result, reason, after, act.handler.name, act.claim.digest.hex(), (), act.event.id)
