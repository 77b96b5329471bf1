"""How many notifications a relay has in hand for each provider, and how many of them it asks for at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from semel.values.outbox import Lane, lane_of
from semel.values.sending import Contract

AHEAD_S = 0.25  # what a provider will have room for so soon is taken now
PACE = 8  # so many of the last answers say how long one takes


class Rooms:
    """A room for each provider: with as many places as it may be asked at a time, and some who wait before it."""

    def __init__(self, contracts: Mapping[str, Contract], clock: Callable[[], float]) -> None:
        self._contracts = contracts
        self._clock = clock
        self._rooms = {name: asyncio.Semaphore(one.concurrency) for name, one in contracts.items()}
        self._in_hand = dict.fromkeys(contracts, 0)
        self._takes_s = {name: one.timeout_s for name, one in contracts.items()}

    def lanes(self, routes: Mapping[str, Sequence[str]]) -> dict[str, Lane]:
        """What there is room for: of each provider, and of each channel by its first one."""
        lanes: dict[str, Lane] = {}
        for name, contract in self._contracts.items():
            if (room := self._most(name) - self._in_hand[name]) > 0:
                lanes[name] = Lane(room, name, contract.per_second)
        for channel, names in routes.items():
            if names and names[0] in lanes:
                lanes[lane_of("", channel)] = lanes[names[0]]
        return lanes

    @property
    def mostly_free(self) -> bool:
        return 2 * sum(self._in_hand.values()) <= sum(map(self._most, self._contracts))

    def in_hand(self, name: str) -> int:
        return self._in_hand.get(name, 0)

    def take(self, name: str) -> None:
        """One more is in hand. Of a provider that is unknown here, too."""
        self._in_hand[name] = self._in_hand.get(name, 0) + 1

    def drop(self, name: str) -> None:
        self._in_hand[name] -= 1

    async def enter(self, name: str, by: float) -> bool:
        """A place, as soon as there is one; False: there was none in time."""
        room = self._rooms[name]
        if not room.locked():
            return await room.acquire()
        try:
            async with asyncio.timeout(by - self._clock()):
                return await room.acquire()
        except TimeoutError:
            return False

    def leave(self, name: str) -> None:
        self._rooms[name].release()

    def took(self, name: str, seconds: float) -> None:
        """A provider has answered, or not, after so long."""
        self._takes_s[name] += (seconds - self._takes_s[name]) / PACE

    def _most(self, name: str) -> int:
        """As many as a provider may be asked at a time, and those that it will have room for by the time the outbox has
        handed them over. The slower it is the fewer: whoever waits here could go by another relay. Where there is a
        rate, that is what is waited for."""
        contract = self._contracts[name]
        ahead = 0.0 if contract.per_second > 0 else AHEAD_S / (AHEAD_S + self._takes_s[name])
        return contract.concurrency + int(contract.concurrency * ahead)
