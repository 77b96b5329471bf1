"""Which lie comes next, and the book that is kept about it."""

from __future__ import annotations

import random

from msgspec.structs import replace

from semel.testing.simulator.lies import LIES, TRUTH, Lie
from semel.testing.simulator.state import Message, State


class Teller:
    def __init__(self, state: State, dice: random.Random) -> None:
        self._state = state
        self._dice = dice

    def next(self, provider: str, message: Message) -> Lie:
        name, lie = self._planned(provider)
        if lie is not TRUTH:
            self._state.told[f"{provider}: {name}"] += 1
            if lie.ambiguous:
                self._state.lied_about.append((name, message.to, message.text))
        return lie

    def _planned(self, provider: str) -> tuple[str, Lie]:
        plans = self._state.plans.get(provider)
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
