"""Resolving and cancelling: choose, ask, decide, tell. Sending again goes the same way (`repeating`).

Between choosing and deciding a callback may come, a relay may go on, or somebody else may decide. The outbox settles
that: it takes each word only while it can be said. So whatever was interrupted is simply asked for again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, field
from rich.console import Console

from semel.cli.notifying.box import meant, outbox_at, without_content
from semel.cli.operating.deciding import LISTED_TOGETHER, all_of, check_words, progressing
from semel.cli.operating.place import Place
from semel.cli.operating.words import counted
from semel.core.outboxes import StoredOutbox
from semel.values.errors import ConfigError, SemelError
from semel.values.outbox import Decision, Shown, Sought
from semel.values.sending import Resolution, State

Word: TypeAlias = Resolution | Literal["resent"]

PAST: dict[Word, str] = {
    "sent": "resolved",
    "not_sent": "resolved",
    "given_up": "given up",
    "cancelled": "cancelled",
    "resent": "sent again",
}
QUESTIONS = {
    "sent": "Say that {} were sent?",
    "not_sent": "Send {} again?",
    "given_up": "Give up {}?",
    "cancelled": "Cancel {}?",
}
DECIDABLE: dict[Resolution, tuple[State, ...]] = {
    "sent": ("uncertain",),
    "not_sent": ("uncertain",),
    "given_up": ("uncertain", "pending"),
    "cancelled": ("pending",),
}
AGREES: dict[Resolution, tuple[State, ...]] = {  # it stands like this already: somebody has said the same
    "sent": ("accepted", "delivered", "undelivered"),
    "not_sent": ("pending", "sending"),
    "given_up": ("failed",),
    "cancelled": ("cancelled",),
}

Listed: TypeAlias = Callable[[Sequence[Shown]], None]
Judge: TypeAlias = Callable[[StoredOutbox, Shown], Awaitable[bool]]


class Choice(Struct, frozen=True, kw_only=True):
    """Which ones are meant, and what is said of each of them."""

    ids: list[str]
    every: bool
    sought: Sought  # its state is the one that is meant
    reason: str
    by: str
    matching: str = ""  # in the reason of how it stands
    rate: float | None = None
    dry_run: bool = False

    @property
    def filtered(self) -> bool:
        return self.every or bool(self.matching) or self.sought != Sought(state=self.sought.state)


class Ask(Choice, frozen=True, kw_only=True):
    """What was asked for."""

    says: Resolution


class Report(Struct):
    """What came of it; it follows along."""

    says: Word
    dry_run: bool
    chosen: dict[str, str] = field(default_factory=dict)  # their states when they were chosen
    decided: dict[str, str] = field(default_factory=dict)  # their states from then on
    already: dict[str, str] = field(default_factory=dict)  # it stands so already, or is not to be decided any more
    refused: dict[str, str] = field(default_factory=dict)  # this cannot be said of it in this state
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def waiting(self) -> list[str]:
        return [id for id in self.chosen if id not in self.already and id not in self.refused]

    @property
    def not_tried(self) -> int:
        ended = (self.decided, self.already, self.refused, self.failed)
        return 0 if self.dry_run else len(self.chosen) - sum(map(len, ended))

    def so_far(self) -> tuple[int, int]:
        return len(self.decided), self.not_tried

    @property
    def holds(self) -> bool:
        return not self.failed and not self.refused and not self.not_tried


def run(
    where: Place, ask: Ask, console: Console, confirm: Callable[[str], bool] | None, listed: Listed | None
) -> Report:
    """Raises ConfigError, before anything is decided, for what cannot work."""
    _check(ask)
    report = Report(ask.says, ask.dry_run)
    asyncio.run(choose(where, ask, report, lambda _, one: _judge(report, ask, one), listed))
    waiting = report.waiting
    if ask.dry_run or not waiting:
        return report
    if ask.says == "not_sent":
        console.print("Whoever got it after all gets it twice by this.", style="yellow")
    plainly_meant = len(ask.ids) == 1
    question = QUESTIONS[ask.says].format(counted(len(waiting), "notification"))
    if not plainly_meant and confirm is not None and not confirm(question):
        raise ConfigError("nothing was done")
    with progressing(console, PAST[ask.says], len(waiting), report.so_far) as told:
        asyncio.run(_decide(where, ask, report, waiting, told))
    return report


def _check(ask: Ask) -> None:
    check_choice(ask)
    may_be = DECIDABLE[ask.says]
    if ask.sought.state not in may_be:
        raise ConfigError(f"--state {ask.sought.state}: this can only be said of what is {' or '.join(may_be)}")
    check_words(ask.reason, ask.by, ask.dry_run)


def check_choice(ask: Choice) -> None:
    if ask.ids and ask.filtered:
        raise ConfigError("name ids, or say --all or filter: not both")
    if not (ask.ids or ask.filtered):
        raise ConfigError("which ones? Name ids, or say --all or filter; `semel notify list` shows what there is")


# ------------------------------------------------------------------------------------------------------- choosing


async def choose(where: Place, ask: Choice, report: Report, judge: Judge, listed: Listed | None) -> None:
    """Page by page into the report. `judge`: whether something is to be done about this one; else it says why not.
    `listed` is told those about which something is, some at a time."""
    told: list[Shown] = []
    async with outbox_at(where) as box:
        async for one in meant(box, ask.ids, ask.sought, ask.matching):
            report.chosen[one.id] = one.state
            if await judge(box, one) and listed is not None:
                told.append(without_content(one, reveal=False))
            if listed is not None and len(told) == LISTED_TOGETHER:
                listed(told)
                told = []
    if listed is not None and told:
        listed(told)


async def _judge(report: Report, ask: Ask, one: Shown) -> bool:
    if not ask.ids or one.state in DECIDABLE[ask.says] or _is_left_behind(ask, one):
        return True
    _leave_alone(report, ask, one.id, one.state)
    return False


def _is_left_behind(ask: Ask, one: Shown) -> bool:
    """It was leaving when its relay vanished, so it is in doubt, also where no relay comes that could say so."""
    lapsed = one.state == "sending" and one.due_ms <= time.time() * 1000
    return lapsed and "uncertain" in DECIDABLE[ask.says]


def _leave_alone(report: Report, ask: Ask, id: str, state: State) -> None:
    """Whoever filters means those that are to be decided; whoever names one means that one."""
    moved_on = not ask.ids and state not in DECIDABLE[ask.says]
    (report.already if moved_on or state in AGREES[ask.says] else report.refused)[id] = state


# ------------------------------------------------------------------------------------------------------- deciding


async def _decide(where: Place, ask: Ask, report: Report, waiting: Sequence[str], told: Callable[[], None]) -> None:
    async with outbox_at(where) as box:
        await all_of(
            waiting,
            lambda id: _one(box, ask, id),
            lambda id, answer: _record(report, ask, id, answer),
            told,
            ask.rate,
        )


async def _one(box: StoredOutbox, ask: Ask, id: str) -> tuple[bool, State | None]:
    """Whether the word was taken, and the state after it. None: it is gone meanwhile."""
    digest = bytes.fromhex(id)
    state = await box.decide(Decision(digest, ask.says, ask.reason, ask.by))
    if state is not None:
        return True, state
    shown = await box.show(digest)
    return False, None if shown is None else shown.state


def _record(report: Report, ask: Ask, id: str, answer: tuple[bool, State | None] | BaseException) -> bool:
    """True when it failed."""
    match answer:
        case (True, state):
            report.decided[id] = str(state)
        case (False, None):
            report.already[id] = "forgotten"
        case (False, state):
            _leave_alone(report, ask, id, state)
        case SemelError():
            report.failed[id] = str(answer)
            return True
        case BaseException():
            raise answer
    return False
