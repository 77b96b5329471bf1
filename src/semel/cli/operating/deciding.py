"""Replaying and discarding: choose, ask, decide, tell.

Choosing and deciding are two steps, and others may decide in between. The ledger settles that: each decision is taken
once, and whoever comes second is told so. So whatever was interrupted is simply asked for again: what is decided
already is left alone.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from semel.cli.operating.looking import LETTERS, Filters, every, find
from semel.cli.operating.place import Place, opened
from semel.cli.operating.words import counted
from semel.core.letterbox import inbox_of
from semel.ports import Catalog, Entry, Letters
from semel.values.errors import ConfigError, SemelError

TOGETHER = 64  # decisions that share a commit, where nobody asked for a rate
FAILURES_MAX = 5  # in a row; then the ledger is not well, and the rest is left alone
REASON_MAX_CHARS = 1_000
FOLLOWED = 20  # events of which is told where they went: each is looked up
CATCH_UP_S = 0.1  # of a rate: what was missed before that is not made good by a burst
LISTED_TOGETHER = 500  # entries of a dry run that are told at a time

What: TypeAlias = Literal["replay", "discard"]
PAST = {"replay": "replayed", "discard": "discarded"}
INBOX, NEXT_DELIVERY = "inbox", "next delivery"

Answer = TypeVar("Answer")
List: TypeAlias = Callable[[Sequence[Entry]], None]


class Ask(Struct, frozen=True, kw_only=True):
    """What was asked for."""

    what: What
    keys: list[str]
    every: bool
    state: str | None
    wanted: Filters
    reason: str
    by: str
    rate: float | None = None
    dry_run: bool = False
    force: bool = False


class Chosen(Struct, frozen=True, gc=False):
    """One event to decide about. There can be a hundred thousand of them."""

    key: str
    state: str


class Report(Struct):
    """What came of it; it follows along."""

    what: What
    dry_run: bool
    chosen: list[Chosen]
    to_inbox: bool = True  # False: whoever has the event must bring it again
    decided: list[str] = field(default_factory=list)
    goes: dict[str, str] = field(default_factory=dict)  # where a replayed one is taken from, as far as that was asked
    already: list[str] = field(default_factory=list)  # someone else was faster
    succeeded: dict[str, int] = field(default_factory=dict)  # named, and done since then: refused
    not_dead: dict[str, str] = field(default_factory=dict)  # named, and in this state; nobody had to decide about it
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def waiting(self) -> list[str]:
        """Chosen, and not known to need no decision."""
        left = {*self.already, *self.succeeded, *self.not_dead}
        return [one.key for one in self.chosen if one.key not in left]

    @property
    def not_tried(self) -> int:
        ended = (self.decided, self.already, self.succeeded, self.not_dead, self.failed)
        return 0 if self.dry_run else len(self.chosen) - sum(map(len, ended))

    @property
    def holds(self) -> bool:
        return not self.failed and not self.succeeded and not self.not_tried


def run(
    where: Place, ask: Ask, console: Console, confirm: Callable[[str], bool] | None, listed: List | None = None
) -> Report:
    """Raises ConfigError, before anything is decided, for what cannot work. `listed` is told what is chosen, some at a
    time."""
    _check(ask)
    report = asyncio.run(_choose(where, ask, listed))
    waiting = report.waiting
    doubtful = _warn(report, ask, set(waiting), console)
    if ask.dry_run or not waiting:
        return report
    plainly_meant = len(ask.keys) == 1 and not doubtful
    question = f"{ask.what.capitalize()} {counted(len(waiting), 'event')}?"
    if not plainly_meant and confirm is not None and not confirm(question):
        raise ConfigError("nothing was done")
    with progressing(console, PAST[ask.what], len(waiting), lambda: (len(report.decided), report.not_tried)) as told:
        asyncio.run(_decide(where, ask, report, waiting, told))
    return report


@contextmanager
def progressing(
    console: Console, past: str, total: int, so_far: Callable[[], tuple[int, int]]
) -> Iterator[Callable[[], None]]:
    """A bar that moves on with each call. Whoever interrupts hears how far it came: what is decided, what not."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(past, total=total)
        try:
            yield lambda: progress.advance(task)
        except KeyboardInterrupt:
            decided, left = so_far()
            console.print(f"Interrupted: {decided:,} {past}, {left:,} not. The same command goes on with the rest.")
            raise


def who() -> str:
    """Whoever sits at the keyboard, also behind sudo, and where."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user has no name
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "someone"
    return f"{user}@{socket.gethostname()}"


def _check(ask: Ask) -> None:
    if ask.keys and (ask.every or ask.wanted.any or ask.state):
        raise ConfigError("name keys, or say --all or filter: not both")
    if ask.force and not ask.keys:
        raise ConfigError(
            "--force: name the keys. It runs again what has succeeded, and a filter would do so by the hundred"
        )
    if not (ask.keys or ask.every or ask.wanted.any or ask.state):
        raise ConfigError(f"which ones? Name keys, or say --all or filter (semel dead {ask.what} --help)")
    check_words(ask.reason, ask.by, ask.dry_run)


def check_words(reason: str, by: str, dry_run: bool) -> None:
    """What is kept with a decision."""
    if not dry_run and not reason:
        raise ConfigError("--reason: say why; it is kept with the decision")
    for option, text in (("--reason", reason), ("--by", by)):
        if len(text) > REASON_MAX_CHARS or not text.isprintable():
            raise ConfigError(f"{option}: at most {REASON_MAX_CHARS:,} characters, on one line")


def _warn(report: Report, ask: Ask, waiting: set[str], console: Console) -> bool:
    """True when an effect may happen twice by this: that is never done unasked."""
    if ask.what != "replay":
        return False
    states = [one.state for one in report.chosen if one.key in waiting]
    doubtful, done = states.count("uncertain"), states.count("done")
    if doubtful:
        told = f"{doubtful:,} uncertain: the effect may have happened, and a replay would repeat it."
        console.print(told, style="yellow")
    if done:
        console.print(f"{done:,} done: the effect has happened, and will happen twice.", style="yellow")
    return bool(doubtful or done)


# ------------------------------------------------------------------------------------------------------- choosing


async def _choose(where: Place, ask: Ask, listed: List | None) -> Report:
    async with opened(where, reads=True) as ledger:
        if not isinstance(ledger, Letters):
            raise ConfigError(f"ledger {where}: this kind of ledger keeps no letters to decide about")
        report = Report(ask.what, ask.dry_run, [], inbox_of(ledger) is not None)
        if ask.keys:
            await _choose_named(ledger, ask, report, listed)
        else:
            await _choose_by_filter(ledger, ask, report, listed)
    return report


async def _choose_by_filter(catalog: Catalog, ask: Ask, report: Report, listed: List | None) -> None:
    """Their events are in memory page by page, and never all of them."""
    told: list[Entry] = []
    async for entry in every(catalog, ask.state or "dead", ask.wanted):
        report.chosen.append(Chosen(entry.key, entry.state))
        if listed is not None:
            told.append(replace(entry, event=None, result=None))
            if len(told) == LISTED_TOGETHER:
                listed(told)
                told = []
    if listed is not None and told:
        listed(told)


async def _choose_named(catalog: Catalog, ask: Ask, report: Report, listed: List | None) -> None:
    named: dict[str, None] = {}
    for text in ask.keys:
        named[await find(catalog, text, LETTERS)] = None
    found: list[Entry] = []
    for key in named:
        history = await catalog.history(key)
        if not history:
            raise ConfigError(f"nothing is known of the key {key}, or its retention is over; nothing was done")
        found.append(history[0])
        report.chosen.append(Chosen(history[0].key, history[0].state))
        _judge(history, ask, report)
    waiting = set(report.waiting)
    if listed is not None and waiting:
        listed([entry for entry in found if entry.key in waiting])


def _judge(history: Sequence[Entry], ask: Ask, report: Report) -> None:
    """Why there is nothing to decide about this one, if so. A letter may wait though its key is done: its ledger had
    lost it. It can be discarded, and not be replayed."""
    present = history[0]
    if present.state in LETTERS:
        return
    if ask.what == "replay" and present.state == "done":
        if not ask.force:
            report.succeeded[present.key] = present.at_ms
    elif ask.what == "discard" and any(entry.state in LETTERS for entry in history):
        return
    elif any(entry.decision for entry in history):
        report.already.append(present.key)
    else:
        report.not_dead[present.key] = present.state


# ------------------------------------------------------------------------------------------------------- deciding


async def _decide(where: Place, ask: Ask, report: Report, waiting: Sequence[str], told: Callable[[], None]) -> None:
    async with opened(where) as ledger:
        letters = ledger
        assert isinstance(letters, Letters)
        done = await all_of(
            waiting,
            lambda key: _one(letters, key, ask),
            lambda key, answer: _record(report, key, answer),
            told,
            ask.rate,
        )
        if done and ask.what == "replay" and len(report.decided) <= FOLLOWED:
            await _follow(ledger, report)


async def all_of(
    names: Sequence[str],
    decide: Callable[[str], Awaitable[Answer]],
    record: Callable[[str, Answer | BaseException], bool],
    told: Callable[[], None],
    rate: float | None = None,
) -> bool:
    """Decide about many, some of them together. `record` tells whether one has failed; after too many in a row the
    rest is left alone, and the answer is False."""
    together = 1 if rate else TOGETHER
    pace, in_a_row = Pace(rate), 0
    for first in range(0, len(names), together):
        await pace.wait()
        group = names[first : first + together]
        answers = await asyncio.gather(*map(decide, group), return_exceptions=True)
        for name, answer in zip(group, answers, strict=True):
            in_a_row = in_a_row + 1 if record(name, answer) else 0
            told()
        if in_a_row >= FAILURES_MAX:
            return False
    return True


async def _one(ledger: Letters, key: str, ask: Ask) -> bool:
    if ask.what == "discard":
        return await ledger.discard(key, ask.reason, ask.by)
    return await ledger.replay(key, ask.reason, ask.by, force=ask.force)


class Pace:
    """A steady rate: what a stall has cost is not made good by a burst."""

    def __init__(self, rate: float | None) -> None:
        self._step_s = 1 / rate if rate else 0.0
        self._due: float | None = None

    async def wait(self) -> None:
        if not self._step_s:
            return
        now = asyncio.get_running_loop().time()
        due = now if self._due is None else max(self._due, now - CATCH_UP_S)
        self._due = due + self._step_s
        if due > now:
            await asyncio.sleep(due - now)


def _record(report: Report, key: str, answer: bool | BaseException) -> bool:
    """True when it failed."""
    match answer:
        case True:
            report.decided.append(key)
        case False:
            report.already.append(key)
        case SemelError():
            report.failed[key] = str(answer)
            return True
        case BaseException():
            raise answer
    return False


async def _follow(catalog: Catalog, report: Report) -> None:
    """Where the replayed events went. They are replayed whether or not that can be told."""
    if not report.to_inbox:
        report.goes = dict.fromkeys(report.decided, NEXT_DELIVERY)
        return
    try:
        for key in report.decided:
            history = await catalog.history(key)
            state = history[0].state if history else ""
            report.goes[key] = INBOX if state in ("accepted", "leased", "waiting", "done") else NEXT_DELIVERY
    except SemelError:
        return
