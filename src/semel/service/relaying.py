"""The relay of the settings, beside the webhooks or alone: started, watched, and stopped in time.

It also forgets what is past its retention, and says what waits for a provider that nobody here has, or that takes
nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from semel.core.outboxes import StoredOutbox
from semel.core.relay import Relay, Watch
from semel.ports import Provider
from semel.service.metrics import Metrics
from semel.service.tidying import tidy
from semel.service.trouble import Trouble
from semel.settings.schema import Outbox as OutboxSettings
from semel.values.log import log
from semel.values.outbox import lane_of

IN_A_ROW = 5  # requests that a provider did not take: less may be the messages' own fault
MORE_S = 0.05  # between two batches of a purge: others write too


class Relaying:
    """Runs on the loop that `start` is called on. Without providers it only tidies up."""

    def __init__(
        self,
        outbox: StoredOutbox,
        providers: Mapping[str, Provider],
        channels: Mapping[str, Sequence[str]],
        said: OutboxSettings,
        metrics: Metrics | None = None,
    ) -> None:
        self._outbox = outbox
        self._providers = providers if said.relay else {}
        self._channels = channels if said.relay else {}
        self._said = said
        self._watch = _Watched(metrics, self._providers)
        self._relay: Relay | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving: dict[str, int] = {}  # where nobody here sends: when the oldest that leaves was added

    def start(self) -> None:
        if self._providers:
            self._relay = self.relay()
            self._tasks.append(asyncio.create_task(self._relay.run()))
        self._tasks.append(asyncio.create_task(tidy("notifications", self.purge, self._say_orphans)))

    def relay(self, watch: Watch | None = None) -> Relay:
        """One on the running loop, as the settings have it."""
        return Relay(
            self._outbox, self._providers, self._channels, max_age_s=self._said.max_age, watch=watch or self._watch
        )

    def wake(self) -> None:
        """Something was added."""
        if self._relay is not None:
            self._relay.wake()

    def begin_to_stop(self) -> None:
        """Take no more; what is in hand goes on."""
        if self._relay is not None:
            self._relay.begin_to_stop()

    async def stop(self, within_s: float) -> None:
        """What has not ended by then is left to its lease: sent or not, it will be called by its name."""
        if self._relay is not None:
            await self._relay.stop(within_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def purge(self, limit: int) -> int:
        """Forget what is past its retention: at most so many."""
        content_ms, identity_ms = int(1000 * self._said.retention), int(1000 * self._said.identity)
        return await self._outbox.purge(content_ms, identity_ms, limit)

    async def _say_orphans(self) -> None:
        if not self._said.relay:
            return
        served = {*self._providers, *(lane_of("", channel) for channel, names in self._channels.items() if names)}
        left, self._leaving = self._leaving, {}
        for waiting in await self._outbox.backlog():
            lane = waiting.provider
            if lane in served:
                continue
            if waiting.state == "sending":  # in the hands of another relay, unless it is still there the next time
                self._leaving[lane] = waiting.oldest_ms
                if left.get(lane) != waiting.oldest_ms:
                    continue
            where = {"channel": lane[1:]} if lane.startswith("@") else {"provider": lane}
            log.error("outbox_unserved", notifications=waiting.count, state=waiting.state, **where)


class _Watched:
    """Counts what the relay tells, and says when a provider takes nothing any more: a password that was changed, an
    outage. Names of providers come from the settings."""

    def __init__(self, metrics: Metrics | None, providers: Mapping[str, Provider]) -> None:
        self._of = {} if metrics is None else {name: metrics.provider(name) for name in providers}
        self._in_a_row = dict.fromkeys(providers, 0)
        self._trouble = {name: _trouble(name) for name in providers}

    def sent(self, provider: str, seconds: float) -> None:
        if (numbers := self._of.get(provider)) is not None:
            numbers.seconds.saw(seconds)

    def became(self, provider: str, outcome: str) -> None:
        if (numbers := self._of.get(provider)) is not None and (number := numbers.became.get(outcome)) is not None:
            number.up()
        if provider in self._in_a_row:
            self._judge(provider, outcome)

    def _judge(self, provider: str, outcome: str) -> None:
        if outcome == "accepted":
            self._in_a_row[provider] = 0
            self._trouble[provider].is_over()
        elif outcome in ("refused", "unknown"):
            self._in_a_row[provider] += 1
            if (many := self._in_a_row[provider]) >= IN_A_ROW:
                self._trouble[provider].is_there(f"{many} requests in a row were refused or not answered")


def _trouble(name: str) -> Trouble:
    return Trouble("provider_unavailable", "provider_recovered", provider=name)
