"""Asking a provider: one call within its time, which says what is known whatever happens, and which can be cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from semel.ports import Provider
from semel.values.errors import LeaseLost
from semel.values.log import log
from semel.values.outbox import Dispatch, LookedUp, Unclear
from semel.values.sending import Answer, Unknown

T = TypeVar("T")

CUT_OFF = "its relay was told to end, and did not wait for an answer"


class _CutOff(Exception):
    """Nobody waits any longer."""


class Asking:
    """All that is asked by one relay, on one event loop."""

    def __init__(self) -> None:
        self.sending = 0
        self.is_cut = False
        self._tasks: set[asyncio.Task[Any]] = set()

    async def send(self, provider: Provider, dispatch: Dispatch, request: bytes, at_most_s: float) -> Answer:
        self.sending += 1
        try:
            return await self._answer(provider.send(dispatch, request), at_most_s)
        except TimeoutError:
            return Unknown(f"no answer within {provider.contract.timeout_s:g} s")
        except _CutOff:
            return Unknown(CUT_OFF)
        except LeaseLost:  # before the first byte
            raise
        except Exception as error:  # a bug of the provider's adapter, after the crossing
            log.exception("provider_adapter_crashed", provider=provider.contract.name, step="send")
            return Unknown(f"{type(error).__name__} in the adapter")
        finally:
            self.sending -= 1

    async def look_up(self, provider: Provider, dispatch: Dispatch, at_most_s: float) -> LookedUp:
        try:
            return await self._answer(provider.look_up(dispatch), at_most_s)
        except TimeoutError:
            return Unclear("its look-up was not answered in time")
        except _CutOff:
            return Unclear(CUT_OFF)
        except Exception as error:  # a bug of the provider's adapter: as if there were no look-up
            log.exception("provider_adapter_crashed", provider=provider.contract.name, step="look_up")
            return Unclear(f"{type(error).__name__} in the adapter")

    def cut(self) -> None:
        """Nobody is waited for from now on. What they were asked for is told by who asked, as unknown."""
        self.is_cut = True
        for task in self._tasks:
            task.cancel()

    async def _answer(self, asked: Awaitable[T], at_most_s: float) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with asyncio.timeout(at_most_s):
                return await asked
        except asyncio.CancelledError:
            if not self.is_cut:
                raise
            task.uncancel()  # it goes on: what is known now has to be written
            raise _CutOff from None
        finally:
            self._tasks.discard(task)
