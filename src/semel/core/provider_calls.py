"""Calls to providers: the calls themselves, their concurrency slots, pauses after refused settings, and records.

Every call ends with a value, also when it times out, crashes or is cut off. `ProviderSlots` bounds the calls and the
notifications that a relay takes ahead. `ProviderPauses` stops sending to a provider that refuses its own settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from semel.ports import Provider
from semel.values import delivery_state as states
from semel.values.delivery_state import Accepted, Answer, Contract, DeliveryState, Refused, Unknown
from semel.values.errors import ConfigError, LeaseLost
from semel.values.log import log
from semel.values.outbox import Absent, Dispatch, Found, Lane, LookedUp, Record, Unclear, lane_of

T = TypeVar("T")

CUT_OFF = "its relay was told to end, and did not wait for an answer"
AHEAD_S = 0.25  # notifications that will get a slot within this time are taken now
PACE = 8  # the number of last answers that the usual time is averaged over
PROBE_FIRST_S = 1.0  # a revoked token is renewed by the next request
PROBE_MAX_S = 300.0  # a person who corrects the account sees messages leave soon after
ADAPTER_BUG_S = 300.0  # a bug is fixed by a new version, not by a quick retry


class _CutOff(Exception):
    """The relay does not wait for this call any longer."""


class ProviderCalls:
    """The calls under way of one relay, on one event loop."""

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
        """End all calls under way. Their senders record them as unknown."""
        self.is_cut = True
        for task in self._tasks:
            task.cancel()

    async def _answer(self, call: Awaitable[T], at_most_s: float) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with asyncio.timeout(at_most_s):
                return await call
        except asyncio.CancelledError:
            if not self.is_cut:
                raise
            task.uncancel()  # the task continues: the unknown outcome has to be recorded
            raise _CutOff from None
        finally:
            self._tasks.discard(task)


class ProviderSlots:
    """Per-provider concurrency slots with a small prefetch."""

    def __init__(self, contracts: Mapping[str, Contract], clock: Callable[[], float]) -> None:
        self._contracts = contracts
        self._clock = clock
        self._slots = {name: asyncio.Semaphore(contract.concurrency) for name, contract in contracts.items()}
        self._taken = dict.fromkeys(contracts, 0)  # notifications of this relay, with and without a slot
        self._answer_s = {name: contract.timeout_s for name, contract in contracts.items()}  # usual time of a call

    def lanes(self, routes: Mapping[str, Sequence[str]]) -> dict[str, Lane]:
        """How many notifications to take: of each provider, and of each channel by its first provider."""
        lanes: dict[str, Lane] = {}
        for name, contract in self._contracts.items():
            if (room := self._limit(name) - self._taken[name]) > 0:
                lanes[name] = Lane(room, name, contract.per_second)
        for channel, names in routes.items():
            if names and names[0] in lanes:
                lanes[lane_of("", channel)] = lanes[names[0]]
        return lanes

    @property
    def mostly_free(self) -> bool:
        return 2 * sum(self._taken.values()) <= sum(map(self._limit, self._contracts))

    def taken(self, name: str) -> int:
        return self._taken.get(name, 0)

    def take(self, name: str) -> None:
        """Count a notification that was taken, also for a provider that is unknown here."""
        self._taken[name] = self._taken.get(name, 0) + 1

    def drop(self, name: str) -> None:
        self._taken[name] -= 1

    async def enter(self, name: str, by: float) -> bool:
        """Wait for a slot. False: none was free in time."""
        slot = self._slots[name]
        if not slot.locked():
            return await slot.acquire()
        try:
            async with asyncio.timeout(by - self._clock()):
                return await slot.acquire()
        except TimeoutError:
            return False

    def leave(self, name: str) -> None:
        self._slots[name].release()

    def took(self, name: str, seconds: float) -> None:
        """Record the duration of a call."""
        self._answer_s[name] += (seconds - self._answer_s[name]) / PACE

    def _limit(self, name: str) -> int:
        """How many notifications this relay may have: the provider's concurrency, plus those that will get a slot by
        the time the outbox has delivered them. A slow provider gets fewer ahead, because another relay could send
        those that wait here. With a rate limit there are none ahead: the rate is the bottleneck."""
        contract = self._contracts[name]
        ahead = 0.0 if contract.per_second > 0 else AHEAD_S / (AHEAD_S + self._answer_s[name])
        return contract.concurrency + int(contract.concurrency * ahead)


class _Pause(Struct):
    probes: int  # refused in a row
    until: float  # by the relay's clock


class ProviderPauses:
    """Pauses providers that refuse their own settings: a wrong password, a revoked key, an account without rights.

    Every message would be refused for the same reason, so none of them fails for it and none is taken from the outbox.
    One message at a time probes the provider, at growing intervals. The first answer that shows that the settings are
    accepted ends the pause. A process that starts with other settings has no pause, and sends at once."""

    def __init__(self, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._clock = clock
        self._random = random
        self._pauses: dict[str, _Pause] = {}

    def answered(self, name: str, answer: Answer, reason: str) -> None:
        """Begin, prolong or end a pause. `reason` is the answer's, without customer data."""
        match answer:
            case Refused(configuration=True):
                self._refused(name, reason)
            case Accepted() | Refused(final=True) if self._pauses.pop(name, None) is not None:
                log.info("provider_resumed", provider=name)

    def _refused(self, name: str, reason: str) -> None:
        now = self._clock()
        pause = self._pauses.setdefault(name, _Pause(0, now))
        if now < pause.until:
            return  # it was under way when the pause began
        pause.probes += 1
        bound_s = min(PROBE_MAX_S, PROBE_FIRST_S * 2.0 ** min(pause.probes - 1, 30))
        wait_s = bound_s * (0.5 + 0.5 * self._random())
        pause.until = now + wait_s
        log.error(
            "provider_paused", provider=name, reason=reason, probes_refused=pause.probes, next_probe_s=round(wait_s, 1)
        )

    def routes(self, routes: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
        """The providers of each channel without those that are paused, where another one is left."""
        if not self._pauses:
            return routes
        open_routes = {
            channel: [name for name in names if name not in self._pauses] for channel, names in routes.items()
        }
        return {channel: open_routes[channel] or names for channel, names in routes.items()}

    def lanes(self, lanes: Mapping[str, Lane], taken: Callable[[str], int]) -> Mapping[str, Lane]:
        """The lanes that may be taken from: none of a paused provider, or one probe when its pause is over."""
        if not self._pauses:
            return lanes
        allowed: dict[str, Lane] = {}
        for name, lane in lanes.items():
            pause = self._pauses.get(lane.provider)
            if pause is None:
                allowed[name] = lane
            elif self._clock() >= pause.until and not taken(lane.provider):
                allowed[name] = replace(lane, room=1)
        return allowed


def build_request(dispatch: Dispatch, provider: Provider) -> bytes | Refused:
    """The request to send: the bytes of the first crossing, if there was one. A Refused means that there is none."""
    if dispatch.request is not None:
        return dispatch.request
    try:
        return provider.prepare(dispatch)
    except ConfigError as error:
        return Refused(str(error), final=True)
    except Exception as error:
        log.exception("provider_adapter_crashed", provider=provider.contract.name, step="prepare")
        return Refused(f"{type(error).__name__} in the adapter: it cannot be written", after_s=ADAPTER_BUG_S)


def record_of_answer(
    dispatch: Dispatch,
    state: DeliveryState,
    answer: Answer,
    contract: Contract,
    now_ms: int,
    random: Callable[[], float],
) -> Record:
    """The record of a send."""
    if isinstance(answer, Accepted):
        answer = replace(answer, reference=_storable(answer.reference), evidence=_storable(answer.evidence))
    else:
        answer = replace(answer, reason=_storable(answer.reason))
    after = states.answered(state, answer, contract, now_ms, random)
    match answer:
        case Accepted():
            return Record(dispatch, after, "accepted", answer.evidence, answer.reference)
        case Refused():
            return Record(dispatch, after, "limited" if answer.limited else "refused", answer.reason)
        case Unknown():
            return Record(dispatch, after, "unknown", answer.reason)


def record_of_look_up(
    dispatch: Dispatch, result: LookedUp, contract: Contract, now_ms: int, random: Callable[[], float]
) -> Record:
    """The record of a look-up."""
    state = replace(dispatch.delivery_state, claims=0)  # a relay that looked it up has not vanished
    match result:
        case Found(reference=reference):
            reference = _storable(reference)
            reason = f"its look-up found {reference}, which is another's message"
            otherwise = states.unclear(state, reason, contract, now_ms, random)
            return Record(dispatch, states.found(state, reference), "accepted", "look-up", reference, otherwise)
        case Absent():
            return Record(dispatch, states.absent(state, now_ms), "absent", "look-up")
        case Unclear(reason=reason):
            reason = _storable(reason)
            after = states.unclear(state, reason, contract, now_ms, random)
            return Record(dispatch, after, "unclear", reason)


def _storable(text: str) -> str:
    """The provider's text without lone surrogates, which no store can write: they must not make the answer unknown."""
    return text if text.isascii() else text.encode(errors="replace").decode()
