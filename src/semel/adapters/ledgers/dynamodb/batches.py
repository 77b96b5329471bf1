"""Many questions at once, each with its own requests: together where they have nothing in common, else in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


async def in_turns(
    questions: Sequence[Q], keys: Callable[[Q], Iterable[bytes]], ask: Callable[[Q], Coroutine[Any, Any, A]]
) -> list[A | BaseException]:
    """An answer, or what was raised, for each. Those that share a key are asked one after the other."""
    answers: list[Any] = [None] * len(questions)
    for turn in _turns([keys(question) for question in questions]):
        said = await asyncio.gather(*[ask(questions[at]) for at in turn], return_exceptions=True)
        for at, answer in zip(turn, said, strict=True):
            answers[at] = answer
    return answers


def all_or_raise(answers: Sequence[A | BaseException]) -> list[A]:
    """What was raised by one is raised for all: nobody is answered for a batch that is not."""
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


def _turns(keys: Sequence[Iterable[bytes]]) -> list[list[int]]:
    """Each question in the first turn after all earlier ones that share a key with it."""
    free_in: dict[bytes, int] = {}
    turns: list[list[int]] = []
    for at, mine in enumerate(keys):
        mine = list(mine)
        turn = max(free_in.get(key, 0) for key in mine)
        if turn == len(turns):
            turns.append([])
        turns[turn].append(at)
        for key in mine:
            free_in[key] = turn + 1
    return turns
