"""What happens next to a notification if nobody does anything, and when: read once, for every face that tells it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from semel.values.notification import Policy
from semel.values.outbox import Shown
from semel.values.sending import Standing, overdue

Step: TypeAlias = Literal["send", "answer", "replay", "look_up", "policy", "person"]
"""A relay sends it, or hears what came of it. In doubt: the same key again, a look-up, its policy; or a person decides.
"""


class Coming(Struct, frozen=True):
    """The next step by itself. A provider's report, or a person, may come first."""

    exit: Step
    at_ms: int = 0  # not before then; of "answer": at the latest. 0: at this moment, or at no certain time
    under_way: bool = False  # a relay has it in its hands
    policy: Policy | None = None  # in doubt: what counts where nothing is known
    policy_ms: int = 0  # at the latest then; 0: not told


def coming(shown: Shown, now_ms: int) -> Coming | None:
    """None: it is over."""
    standing = replace(shown.standing or Standing(), state=shown.state)
    in_hand = shown.taken and shown.due_ms > now_ms
    at_ms = 0 if in_hand else shown.due_ms
    match shown.state:
        case "pending":
            return Coming("replay" if standing.doubt_ms else "send", at_ms, in_hand)
        case "sending":
            return Coming("answer", shown.due_ms, in_hand)
        case "uncertain" if shown.due_ms and standing.exit:
            latest_ms = shown.due_ms if standing.exit == "policy" and not in_hand else standing.policy_ms
            return Coming(standing.exit, at_ms, in_hand, _policy(standing, latest_ms), latest_ms)
        case "uncertain":
            return Coming("person")
    return None


def _policy(standing: Standing, at_ms: int) -> Policy:
    """What its policy will come to: one that may not send again, because that was done or is too late, holds."""
    after = overdue(standing, at_ms)
    return "hold" if after.state == "uncertain" else standing.policy
