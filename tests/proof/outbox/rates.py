"""A rate that holds over both relays, as the provider sees it.

The outbox gives out slots, and a relay sends in its slot or later: never before. So two things are exact, whatever the
machine does: slots of one provider and tenant are as far apart as the rate says, and nothing arrives before its slot.
How many arrive in one second then depends on how late a busy machine is, and only on that: of what arrived within some
time of its slot no second holds more than the rate allows in a second and that time. It is a quarter of a second; where
half of all came later than that, the machine was that busy, and it is as long as they took.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from tests.proof.outbox.account import Account, Life
from tests.proof.outbox.parts import BY_NAME

PROMPT_S = 0.25
ROUNDED_MS = 1.001  # slots are whole milliseconds


def keeps_its_rate(account: Account) -> None:
    for part in BY_NAME.values():
        if (per_second := part.options.get("per_second")) is None:
            continue
        for tenant, lives in _by_tenant(account.of(part.name)).items():
            keeps(f"{part.name} of {tenant}", per_second, lives)


def keeps(what: str, per_second: float, lives: Sequence[Life]) -> str:
    """What was seen, in one line."""
    slots = sorted(int(line.word) for life in lives for line in life.lines if line.deed == "send")
    for before, after in pairwise(slots):
        apart = f"slots of {what} are {after - before} ms apart"
        assert after - before >= 1000 / per_second - ROUNDED_MS, f"{apart}: over its rate of {per_second:g} a second"
    arrivals = [pair for life in lives for pair in _arrivals(life)]
    early = [(slot, at) for slot, at in arrivals if at < slot - ROUNDED_MS / 1000]
    assert not early, f"{what}: {len(early)} arrived before their slot: {early[:3]}; over its rate"
    prompt_s = max(PROMPT_S, median(at - slot for slot, at in arrivals))
    prompt = [at for slot, at in arrivals if at <= slot + prompt_s]
    busiest = most_in_a_second(prompt)
    bound = int(per_second * (1 + prompt_s)) + 1
    assert busiest <= bound, f"{what}: {busiest} in a second, over its rate of {per_second:g} a second"
    late = len(arrivals) - len(prompt)
    everything = most_in_a_second([at for _, at in arrivals])
    seen = f"{everything} with {late} of {len(arrivals)} later than {prompt_s:.2f} s"
    return f"{what}: at most {busiest} of {per_second:g} in a second, {seen}"


def most_in_a_second(moments: Sequence[float]) -> int:
    """In any second, wherever it begins."""
    ordered = sorted(moments)
    return max((bisect_right(ordered, begin + 1.0) - at for at, begin in enumerate(ordered)), default=0)


def _arrivals(life: Life) -> list[tuple[float, float]]:
    """Slot and arrival, in s, of its requests: each belongs to the newest send before it."""
    sent = sorted((line.at, int(line.word) / 1000) for line in life.lines if line.deed == "send")
    asked = [one.at for one in life.asked if one.provider == life.part.dialect]
    return [(sent[bisect_right(sent, (at, math.inf)) - 1][1], at) for at in asked]


def _by_tenant(lives: Sequence[Life]) -> dict[str, list[Life]]:
    found: defaultdict[str, list[Life]] = defaultdict(list)
    for life in lives:
        found[life.said.tenant].append(life)
    return found
