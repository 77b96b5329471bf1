"""Which lie comes next, and the book that is kept about it."""

from __future__ import annotations

import random
import time
from collections import deque

from msgspec.structs import replace

from semel.testing.simulator.lies import LIES, TRUTH, Lie
from semel.testing.simulator.state import Asked, Message, Planned, State


class Teller:
    def __init__(self, state: State, dice: random.Random) -> None:
        self._state = state
        self._dice = dice

    def next(self, provider: str, message: Message) -> Lie:
        name, lie = self._planned(self._state.plans_for.get((provider, message.to)))
        if lie is TRUTH:
            name, lie = self._planned(self._state.plans.get(provider))
        self._state.book.append(Asked(provider, message.to, message.text, name, time.time()))
        if lie is not TRUTH:
            self._state.told[f"{provider}: {name}"] += 1
            if lie.ambiguous:
                self._state.lied_about.append((name, message.to, message.text))
        return lie

    def _planned(self, plans: deque[Planned] | None) -> tuple[str, Lie]:
        while plans:
            plan = plans[0]
            if plan.times <= 0:
                plans.popleft()
                continue
            if self._dice.random() >= plan.share:
                if len(plans) > 1:
                    plans.rotate(-1)
                return "", TRUTH
            plans[0] = replace(plan, times=plan.times - 1)
            plans.rotate(-1)  # several plans take turns
            return plan.lie, LIES[plan.lie]
        return "", TRUTH
