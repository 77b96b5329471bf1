"""The state of the simulated providers: delivered messages, idempotency keys, planned lies and rate limits."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace


class ReceivedMessage(Struct, frozen=True):
    """One message that a customer received."""

    provider: str
    to: str
    text: str
    reference: str
    key: str  # the idempotency key; empty if there was none
    ours: str  # the notification id, if the provider carries it
    at: float  # Unix time
    subject: str = ""
    html: str = ""
    sender: str = ""  # if the provider lists messages by sender


class SimulatedMessage(NamedTuple):
    """The message of a send request, in a form that all dialects share."""

    to: str
    text: str
    key: str = ""  # if the provider honours it
    ours: str = ""
    callback: str = ""
    subject: str = ""
    html: str = ""
    sender: str = ""


class SendRequest(Struct, frozen=True):
    """One send request and the lie that was applied to it."""

    provider: str
    to: str
    text: str  # empty: not received yet when the lie was chosen
    lie: str  # empty: none
    at: float  # Unix time


class PlannedLie(Struct, frozen=True):
    """A lie planned for the next requests to a provider."""

    lie: str
    times: int
    share: float = 1.0  # of the requests: for long runs


class SimulatedKey(Struct):
    """An idempotency key and the answer stored for it."""

    reference: str
    body: bytes
    until: float


class RequestBudget(Struct):
    """The number of requests that a provider accepts in one period."""

    allowed: int
    reset_s: float
    count: int = 0


class SimulatorState:
    """The state of all providers."""

    def __init__(self, key_window_s: float = 86_400.0) -> None:
        self.phone: list[ReceivedMessage] = []
        self.plans: dict[str, deque[PlannedLie]] = {}
        self.plans_for: dict[tuple[str, str], deque[PlannedLie]] = {}  # by provider and recipient
        self.told: Counter[str] = Counter()  # applied lies, by "provider: lie"
        self.lied_about: list[tuple[str, str, str]] = []  # lie, to, text of ambiguous lies
        self.requests: list[tuple[str, float]] = []  # provider and time of every send request
        self.book: list[SendRequest] = []
        self.keys: dict[tuple[str, str], SimulatedKey] = {}
        self.key_window_s = key_window_s
        self.key_windows_s: dict[str, float] = {}  # by provider
        self.budgets: dict[str, RequestBudget] = {}
        self.latency_s = 0.0  # between the effect of a request and its response
        self.tokens: dict[str, str] = {}  # the valid token, by provider
        self.granted: Counter[str] = Counter()  # tokens, by provider
        self._numbers = 0

    def reference(self, prefix: str) -> str:
        self._numbers += 1
        return f"{prefix}{self._numbers:08}"

    def deliver(self, provider: str, message: SimulatedMessage, reference: str) -> None:
        self.phone.append(
            ReceivedMessage(
                provider,
                message.to,
                message.text,
                reference,
                message.key,
                message.ours,
                time.time(),
                message.subject,
                message.html,
                message.sender,
            )
        )

    def known(self, provider: str, key: str) -> SimulatedKey | None:
        kept = self.keys.get((provider, key)) if key else None
        return kept if kept is not None and kept.until > time.monotonic() else None

    def remember(self, provider: str, key: str, reference: str, body: bytes) -> None:
        if key:
            window_s = self.key_windows_s.get(provider, self.key_window_s)
            self.keys[(provider, key)] = SimulatedKey(reference, body, time.monotonic() + window_s)

    def grant(self, provider: str) -> str:
        """Issue an access token. The earlier token stays valid until a test revokes it."""
        self.granted[provider] += 1
        return self.tokens.setdefault(provider, f"token-of-{provider}-{self.granted[provider]}-do-not-show")


# Lies. A lie has two halves, the same for every provider: whether the message reaches the phone, and which answer the
# sender gets. If the sender cannot know the outcome, the lie is ambiguous and is recorded with its message.


class Lie(NamedTuple):
    delivers: bool
    hears: Literal["the answer", "nothing", "a reset", "500", "502", "503", "429", "400", "409", "silence", "a page"]
    ambiguous: bool


LIES: dict[str, Lie] = {
    "accept then drop": Lie(True, "nothing", True),
    "drop": Lie(False, "nothing", True),
    "accept then reset": Lie(True, "a reset", True),
    "reset": Lie(False, "a reset", True),
    "500 after sending": Lie(True, "500", True),
    "500": Lie(False, "500", True),
    "502 after sending": Lie(True, "502", True),
    "503 after sending": Lie(True, "503", True),
    "503": Lie(False, "503", True),
    "accept then stall": Lie(True, "silence", True),
    "stall": Lie(False, "silence", True),
    "a page": Lie(False, "a page", True),  # a proxy answers 200 in the provider's place
    "429": Lie(False, "429", False),
    "400": Lie(False, "400", False),
    "409": Lie(False, "409", False),  # the key is in progress
}
TRUTH = Lie(True, "the answer", False)


class LieSchedule:
    """Chooses the lie for each request and records it."""

    def __init__(self, state: SimulatorState, dice: random.Random) -> None:
        self._state = state
        self._dice = dice

    def next(self, provider: str, message: SimulatedMessage) -> Lie:
        name, lie = self._planned(self._state.plans_for.get((provider, message.to)))
        if lie is TRUTH:
            name, lie = self._planned(self._state.plans.get(provider))
        self._state.book.append(SendRequest(provider, message.to, message.text, name, time.time()))
        if lie is not TRUTH:
            self._state.told[f"{provider}: {name}"] += 1
            if lie.ambiguous:
                self._state.lied_about.append((name, message.to, message.text))
        return lie

    def _planned(self, plans: deque[PlannedLie] | None) -> tuple[str, Lie]:
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
