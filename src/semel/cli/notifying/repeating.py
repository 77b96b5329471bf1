"""`semel notify resend`: which ones are meant, and asking before customers get them again.

Each is repeated as its next generation, which is there once, whoever asks for it and how often. So what was interrupted
is simply asked for again: what it has made already is found, and makes no third message. For that, a filter does not
choose what a resend has made and a provider has taken, nor what was given up in doubt: who wants that names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import field
from rich.console import Console

from semel.cli.notifying.box import named, outbox_at
from semel.cli.notifying.judging import PAST, Choice, Listed, Report, check_choice, choose
from semel.cli.notifying.masks import Mask
from semel.cli.notifying.meaning import MEANING
from semel.cli.operating.deciding import all_of, check_words, progressing
from semel.cli.operating.place import Place
from semel.cli.operating.words import counted, plain
from semel.core.outboxes import StoredOutbox
from semel.core.resending import Resent, foreseen, resend
from semel.values.errors import ConfigError, SemelError
from semel.values.outbox import Shown
from semel.values.sending import LIVE, State

TAKEN: tuple[State, ...] = ("accepted", "delivered")  # the customer has it, or will
UNSENT: tuple[State, ...] = ("failed", "expired", "cancelled")  # nobody has it; of a suppressed one they have another


class Repeated(Report):
    """What came of it, with the new generations."""

    made: dict[str, str] = field(default_factory=dict)  # by the ids of those that were repeated


# ----------------------------------------------------------------------------------------------------------- one of


async def look(where: Place, id: str) -> Shown:
    async with outbox_at(where) as box:
        return await named(box, id)


def needs_asking(one: Shown) -> bool:
    """What is refused anyway, nobody has to be asked about."""
    return not one.erased and one.state not in LIVE


def question(one: Shown) -> str:
    said = one.notification
    told = f"{plain(said.kind)} to {Mask(said).recipient} is {one.state}: {MEANING[one.state]}."
    return f"{told} Send it once more?"


async def repeat(where: Place, one: Shown, reason: str, by: str) -> Resent:
    async with outbox_at(where) as box:
        return await resend(box, bytes.fromhex(one.id), reason, by)


# ------------------------------------------------------------------------------------------------------------- many


def run(
    where: Place, ask: Choice, console: Console, confirm: Callable[[str], bool] | None, listed: Listed | None
) -> Repeated:
    """Raises ConfigError, before anything is sent, for what cannot work."""
    _check(ask)
    report = Repeated("resent", ask.dry_run)
    asyncio.run(choose(where, ask, report, lambda box, one: _judge(box, report, ask, one), listed))
    waiting = report.waiting
    if ask.dry_run or not waiting:
        return report
    if ask.ids or ask.sought.state not in UNSENT:
        console.print("Whoever has it already, or got it after all, gets it twice by this.", style="yellow")
    if confirm is not None and not confirm(f"Send {counted(len(waiting), 'notification')} once more?"):
        raise ConfigError("nothing was done")
    with progressing(console, PAST["resent"], len(waiting), report.so_far) as told:
        asyncio.run(_repeat_all(where, ask, report, told))
    return report


def _check(ask: Choice) -> None:
    check_choice(ask)
    match ask.sought.state:
        case "uncertain":
            raise ConfigError(
                "--state uncertain: nobody knows whether they were sent. Say what came of them: "
                "`semel notify resolve --not-sent` sends them"
            )
        case state if state in LIVE:
            raise ConfigError(f"--state {state}: they are on their way. Once more is sent only what is over")
    check_words(ask.reason, ask.by, ask.dry_run)


async def _judge(box: StoredOutbox, report: Repeated, ask: Choice, one: Shown) -> bool:
    """Whoever filters means what nobody has; whoever names one means that one. A dry run looks as far as it can."""
    if ask.ids:
        pass
    elif one.erased:
        report.already[one.id] = "erased: nothing is left that could be sent"
    elif one.state in TAKEN and one.notification.generation > 1:
        report.already[one.id] = f"generation {one.notification.generation} of its message: name it, to repeat that"
    elif one.state == "failed" and await _may_have_left(box, one):
        report.already[one.id] = "given up in doubt: the customer may have it. Name it, to send it all the same"
    if ask.dry_run and one.id not in report.already and (would := await foreseen(box, one)).status != "added":
        _record(report, one.id, would)
    return one.id not in report.already and one.id not in report.refused


async def _may_have_left(box: StoredOutbox, one: Shown) -> bool:
    """It was given up, by a person or by its policy, when nobody knew whether it was sent."""
    shown = await box.show(bytes.fromhex(one.id))
    return bool(one.possible_duplicates) or (
        shown is not None
        and any(
            attempt.outcome == "policy" or (attempt.outcome == "given_up" and attempt.crossed_ms)
            for attempt in shown.attempts
        )
    )


async def _repeat_all(where: Place, ask: Choice, report: Repeated, told: Callable[[], None]) -> None:
    async with outbox_at(where) as box:
        await all_of(
            report.waiting,
            lambda id: _again(box, report, ask, id),
            lambda id, answer: _record(report, id, answer),
            told,
            ask.rate,
        )


async def _again(box: StoredOutbox, report: Repeated, ask: Choice, id: str) -> Resent | State:
    """What a filter has chosen may be another thing by now: a callback came, and the customer has it. It is left alone
    then, and the answer is its state."""
    digest = bytes.fromhex(id)
    if not ask.ids and (shown := await box.show(digest)) is not None and shown.state != report.chosen[id]:
        return shown.state
    return await resend(box, digest, ask.reason, ask.by)


def _record(report: Repeated, id: str, answer: Resent | State | BaseException) -> bool:
    """True when it failed."""
    match answer:
        case str():
            report.already[id] = f"{answer} by now"
        case Resent(status="added"):
            report.decided[id] = answer.state
            report.made[id] = answer.id
        case Resent(status="known"):
            report.already[id] = f"sent again already: generation {answer.generation} is {answer.state}"
            report.made[id] = answer.id
        case Resent(status="missing"):
            report.already[id] = "forgotten: its retention was over"
        case Resent():
            report.refused[id] = answer.reason
        case SemelError():
            report.failed[id] = str(answer)
            return True
        case BaseException():
            raise answer
    return False
