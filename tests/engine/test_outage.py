"""When the workers of a source may take deliveries again after the ledger could not be written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from semel.core import ledger_breaker as module
from semel.core.ledger_breaker import AGAIN_BASE_S, RELAPSE_BASE_S, Outage
from semel.values.errors import ConfigError, LedgerUnavailable

DOWN = LedgerUnavailable("the store is down")


class Scene:
    """A store that gives the listed answers and then is well. Pauses are recorded, and take no time."""

    def __init__(self, *answers: Exception) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.pauses: list[float] = []
        self.paused = asyncio.Event()
        self.stopping = asyncio.Event()
        self.outage = Outage(self._ask, lambda: 1.0)

    async def _ask(self) -> None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.answers:
            raise self.answers.pop(0)

    async def pause(self, seconds: float, stopping: asyncio.Event) -> None:
        self.pauses.append(seconds)
        self.paused.set()
        await asyncio.sleep(0)

    def fails(self, asked_at: float | None = None) -> None:
        """A worker was not answered; None: it asked just now."""
        self.outage.begins(DOWN, asyncio.get_running_loop().time() if asked_at is None else asked_at)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def run(story: Callable[[Scene], Coroutine[Any, Any, None]], *answers: Exception) -> None:
        async def main() -> None:
            scene = Scene(*answers)
            monkeypatch.setattr(module, "pause", scene.pause)
            await asyncio.wait_for(story(scene), 30)

        asyncio.run(main())

    return run


def test_the_first_taker_asks_at_once_and_no_later_one_asks(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        assert await scene.outage.over(scene.stopping) is True
        assert await scene.outage.over(scene.stopping) is True
        assert (scene.asked, scene.pauses, scene.outage.is_there) == (1, [], False)

    play(story)


def test_one_of_several_takers_asks_and_all_are_let_go(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        takers = [scene.outage.over(scene.stopping) for _ in range(5)]
        assert await asyncio.gather(*takers) == [True] * 5
        assert scene.asked == 3

    play(story, DOWN, DOWN)


def test_the_store_is_checked_with_growing_delays_until_it_accepts_writes(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        assert await scene.outage.over(scene.stopping) is True
        assert scene.asked == 4
        assert scene.pauses == sorted(scene.pauses)
        assert len(set(scene.pauses)) == 3
        assert scene.pauses[0] <= 2 * AGAIN_BASE_S
        assert not scene.outage.is_there

    play(story, DOWN, OSError("refused"), TimeoutError())


def test_a_store_that_relapses_is_checked_later_each_time(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        await scene.outage.over(scene.stopping)
        scene.fails()
        await scene.outage.over(scene.stopping)
        assert scene.pauses == [], "the first outage is no relapse"
        for relapses in (1, 2, 3):
            scene.fails()
            assert scene.outage.is_there
            assert await scene.outage.over(scene.stopping) is True
            assert len(scene.pauses) == relapses
        assert scene.pauses[0] >= RELAPSE_BASE_S
        assert scene.pauses == sorted(scene.pauses)
        assert len(set(scene.pauses)) == 3

    play(story)


def test_a_late_failure_of_the_last_outage_is_no_relapse(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        asked_at = asyncio.get_running_loop().time()
        await scene.outage.over(scene.stopping)
        scene.fails(asked_at)
        await asyncio.sleep(0.01)
        await scene.outage.over(scene.stopping)
        scene.fails(asked_at)
        await scene.outage.over(scene.stopping)
        assert scene.pauses == []
        assert scene.asked == 3, "and the store is asked nevertheless"

    play(story)


def test_a_stopping_worker_makes_no_check(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        scene.stopping.set()
        assert await scene.outage.over(scene.stopping) is False
        assert scene.asked == 0

    play(story, DOWN)


def test_a_taker_that_waits_for_another_one_stops_without_asking(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        takers = [asyncio.ensure_future(scene.outage.over(scene.stopping)) for _ in range(2)]
        await scene.paused.wait()
        scene.stopping.set()
        asked = scene.asked
        assert await asyncio.gather(*takers) == [False, False]
        assert scene.asked == asked

    play(story, *[DOWN] * 100)


def test_a_store_that_refuses_its_work_is_not_waited_for(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(ConfigError):
            await scene.outage.over(scene.stopping)
        assert scene.pauses == []

    play(story, ConfigError("no such table"))
