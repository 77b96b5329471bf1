"""What a simulated provider remembers: messages that customers got, keys that it honours, and its orders."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import NamedTuple

from msgspec import Struct


class Got(Struct, frozen=True):
    """One message at a customer's."""

    provider: str
    to: str
    text: str
    reference: str
    key: str  # the idempotency key that it came with; empty: none
    ours: str  # our id, where the provider carries it
    at: float  # Unix time
    subject: str = ""
    html: str = ""
    sender: str = ""  # where its provider is asked by it


class Message(NamedTuple):
    """What a request asks for, in the words of all providers."""

    to: str
    text: str
    key: str = ""  # only where it is honoured
    ours: str = ""
    callback: str = ""
    subject: str = ""
    html: str = ""
    sender: str = ""


class Asked(Struct, frozen=True):
    """One request for a message, and what was done to it."""

    provider: str
    to: str
    text: str  # empty: it was not told yet when the lie was chosen
    lie: str  # empty: the truth
    at: float  # Unix time


class Planned(Struct, frozen=True):
    """What is to happen to the next requests of a provider."""

    lie: str
    times: int
    share: float = 1.0  # of the requests: for long runs


class Kept(Struct):
    """A key that a provider remembers."""

    reference: str
    body: bytes
    until: float


class Budget(Struct):
    """How many requests a provider takes, until it begins to count anew."""

    allowed: int
    reset_s: float
    count: int = 0


class State:
    """Of all providers."""

    def __init__(self, key_window_s: float = 86_400.0) -> None:
        self.phone: list[Got] = []
        self.plans: dict[str, deque[Planned]] = {}
        self.plans_for: dict[tuple[str, str], deque[Planned]] = {}  # requests of a provider to one recipient
        self.told: Counter[str] = Counter()  # lies, by "provider: lie"
        self.lied_about: list[tuple[str, str, str]] = []  # lie, to, text: what is ambiguous to the sender
        self.requests: list[tuple[str, float]] = []  # provider and time, of every request for a message
        self.book: list[Asked] = []
        self.keys: dict[tuple[str, str], Kept] = {}
        self.key_window_s = key_window_s
        self.key_windows_s: dict[str, float] = {}  # of providers that have their own
        self.budgets: dict[str, Budget] = {}
        self.latency_s = 0.0  # from what is done to what is heard
        self.tokens: dict[str, str] = {}  # the one that is good now, by provider
        self.granted: Counter[str] = Counter()  # tokens, by provider
        self._numbers = 0

    def reference(self, prefix: str) -> str:
        self._numbers += 1
        return f"{prefix}{self._numbers:08}"

    def deliver(self, provider: str, message: Message, reference: str) -> None:
        self.phone.append(
            Got(
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

    def known(self, provider: str, key: str) -> Kept | None:
        kept = self.keys.get((provider, key)) if key else None
        return kept if kept is not None and kept.until > time.monotonic() else None

    def remember(self, provider: str, key: str, reference: str, body: bytes) -> None:
        if key:
            window_s = self.key_windows_s.get(provider, self.key_window_s)
            self.keys[(provider, key)] = Kept(reference, body, time.monotonic() + window_s)

    def grant(self, provider: str) -> str:
        """A token; the one before it goes on being good until it is told to end."""
        self.granted[provider] += 1
        return self.tokens.setdefault(provider, f"token-of-{provider}-{self.granted[provider]}-do-not-show")
