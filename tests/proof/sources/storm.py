"""Two consumers of one queue, and someone who kills one of them again and again: the driver, for every transport.

A transport is a `Broker`, a store with its effects a `Stage`; neither knows the other. What the storm came to is a
value, and `Storm.check` says whether it kept the promise: who plants a bug asks the same question.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Protocol

import msgspec
from tests.proof.sources.consumer_process import LANES, TOPIC, Plan
from tests.proof.sources.starting import Consumer

DUPLICATES = 0.3  # of the messages are copies
LANDED_MIN = 3  # kills that interrupted something; with fewer a run has shown nothing
CONSUMERS = 2
LOOK_S = 0.05
STALLED_S = 60.0  # without any delivery, while messages are left
END_S = 1_500.0


class Broker(Protocol):
    """One queue of a transport, seen from outside, and how a consumer opens it."""

    @property
    def kind(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...

    def send(self, bodies: Sequence[bytes]) -> None: ...

    def left(self) -> int:
        """Messages that are not acknowledged."""

    def dead_letters(self) -> int:
        """Messages among the dead letters."""


class Stage(Protocol):
    """A ledger, and the effects beside it."""

    @property
    def plan(self) -> Mapping[str, Any]:
        """Of a consumer: its ledger, its effect and where that goes."""

    def happened(self) -> list[str]:
        """The events that had their effect, once for each time."""

    def counts(self) -> dict[str, int]:
        """Keys of the ledger by state."""


@dataclass(frozen=True)
class Kill:
    """One death by SIGKILL, and the deliveries that nobody had answered then."""

    in_hand: int


def landed(kills: Sequence[Kill]) -> int:
    """How many interrupted something."""
    return len([kill for kill in kills if kill.in_hand])


@dataclass(frozen=True)
class Storm:
    """What it came to."""

    events: tuple[str, ...]
    messages: int
    deliveries: int
    runs: int  # of handlers
    kills: tuple[Kill, ...]
    happened: Counter[str]
    counts: Mapping[str, int]
    dead_letters: int
    seconds: float

    @cached_property
    def lost(self) -> list[str]:
        return [event for event in self.events if not self.happened[event]]

    @cached_property
    def doubled(self) -> list[str]:
        return [event for event, times in self.happened.items() if times > 1]

    def __str__(self) -> str:
        return (
            f"{self.messages:,} messages of {len(self.events):,} events: {self.deliveries:,} deliveries, "
            f"{len(self.kills)} kills ({landed(self.kills)} landed, with {sum(kill.in_hand for kill in self.kills):,} "
            f"deliveries in hand), {self.runs - len(self.events):,} runs repeated, {len(self.lost)} lost, "
            f"{len(self.doubled)} doubled, {self.seconds:.1f} s"
        )

    def check(self) -> None:
        """Each event has had its effect once, and nothing is left anywhere."""
        assert not self.lost, f"{len(self.lost)} of {len(self.events)} events are lost: {self.lost[:5]}; {self}"
        assert not self.doubled, f"{len(self.doubled)} events are doubled: {self.doubled[:5]}; {self}"
        assert set(self.happened) == set(self.events), "something happened that nobody sent"
        assert self.dead_letters == 0, f"{self.dead_letters} dead letters; {self}"
        counts = {state: number for state, number in self.counts.items() if number}
        assert counts == {"done": len(self.events)}, f"the ledger has {counts}; {self}"
        assert self.deliveries >= self.messages > len(self.events), "each message was delivered, with the copies"
        assert landed(self.kills) >= LANDED_MIN, f"inconclusive: too few kills interrupted anything; {self}"
        assert self.runs > len(self.events), f"inconclusive: no kill came while a handler ran; {self}"


def run(
    broker: Broker,
    stage: Stage,
    home: Path,
    *,
    messages: int,
    seconds: float,
    kill_every_s: float,
    enough: int | None = None,
    bug: str = "",
) -> Storm:
    """Undisturbed the work would last `seconds`, whatever the machine: the kills only add to that. There are no more
    of them when `enough` have landed; None: there are, as long as the work lasts."""
    dice = Random(f"{broker.kind} {messages}")
    events = tuple(f"event-{number:05}" for number in range(round(messages * (1 - DUPLICATES))))
    names = [*events, *dice.choices(events, k=messages - len(events))]
    dice.shuffle(names)
    plan = Plan(
        kind=broker.kind,
        options=dict(broker.options),
        handler_s=seconds * LANES * CONSUMERS / len(events),
        tally="",
        bug=bug,
        **stage.plan,
    )
    broker.send([json.dumps({"id": name, "type": TOPIC}).encode() for name in names])
    begun = time.monotonic()
    with Consumers(plan, home) as consumers:
        while broker.left():
            if enough is None or landed(consumers.kills) < enough:
                consumers.one_is_killed(dice, kill_every_s, lambda: not broker.left())
            else:
                time.sleep(LOOK_S)
            assert time.monotonic() - begun < END_S, f"{broker.left()} are left; {consumers.said()}"
        seconds = time.monotonic() - begun
    return Storm(
        events=events,
        messages=messages,
        deliveries=consumers.total("handed"),
        runs=consumers.total("runs"),
        kills=tuple(consumers.kills),
        happened=Counter(stage.happened()),
        counts=stage.counts(),
        dead_letters=broker.dead_letters(),
        seconds=seconds,
    )


class Consumers:
    """The processes, of which there are always as many; whoever is killed is replaced."""

    def __init__(self, plan: Plan, home: Path) -> None:
        self._plan = plan
        self._home = home
        self._all: list[Consumer] = []
        self._alive: list[Consumer] = []
        self.kills: list[Kill] = []

    def __enter__(self) -> Consumers:
        self._alive = [self._start() for _ in range(CONSUMERS)]
        return self

    def __exit__(self, *_: object) -> None:
        for consumer in self._alive:
            consumer.kill()

    def one_is_killed(self, dice: Random, every_s: float, over: Callable[[], bool]) -> None:
        """Any that has something in hand, at any moment after that; none if the work is over before."""
        if (at := self._someone_busy(dice, over)) is None:
            return
        moment = time.monotonic() + dice.uniform(0.5, 1.5) * every_s
        while (wait_s := moment - time.monotonic()) > 0:
            if over():
                return
            time.sleep(min(LOOK_S, wait_s))
        victim = self._alive[at]
        assert victim.kill() == -signal.SIGKILL, f"a consumer died by itself; {self.said()}"
        self.kills.append(Kill(victim.tally.in_hand))
        self._alive[at] = self._start()

    def _someone_busy(self, dice: Random, over: Callable[[], bool]) -> int | None:
        """Which one; None: the work is over. A busy machine may need long to start a process, or to give it work."""
        ends, handed = time.monotonic() + STALLED_S, self.total("handed")
        while not (busy := [at for at, consumer in enumerate(self._alive) if consumer.tally.in_hand]):
            if over():
                return None
            if self.total("handed") > handed:
                ends, handed = time.monotonic() + STALLED_S, self.total("handed")
            assert time.monotonic() < ends, f"nobody gets anything any more; {self.said()}"
            time.sleep(LOOK_S / 10)
        return dice.choice(busy)

    def total(self, name: str) -> int:
        return sum(consumer.tally.read()[name] for consumer in self._all)

    def said(self) -> str:
        text = (self._home / "said").read_text("utf-8", "replace")
        return f"the consumers said: {text[-3000:]}"

    def _start(self) -> Consumer:
        path = self._home / f"tally-{len(self._all)}"
        consumer = Consumer(msgspec.structs.replace(self._plan, tally=str(path)), self._home / "said", dict(os.environ))
        self._all.append(consumer)
        return consumer
