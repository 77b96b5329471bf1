"""Runs the relay of the settings, beside the webhooks or alone.

It also purges notifications that are past their retention, and logs notifications that wait for a provider that this
process does not have, or that accepts nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from semel.core.relay import Relay, RelayMetrics
from semel.ports import Provider, StoredOutbox
from semel.service.background import purge_loop
from semel.service.metrics import Metrics
from semel.settings.schema import OutboxSettings
from semel.values.log import IncidentLog, log
from semel.values.outbox import lane_of

FAILURES_IN_A_ROW = 5  # requests that a provider did not accept: fewer may be the fault of the messages


class OutboxRelay:
    """Runs on the loop that `start` is called on. Without providers it only purges."""

    def __init__(
        self,
        outbox: StoredOutbox,
        providers: Mapping[str, Provider],
        channels: Mapping[str, Sequence[str]],
        settings: OutboxSettings,
        metrics: Metrics | None = None,
    ) -> None:
        self._outbox = outbox
        self._providers = providers if settings.relay else {}
        self._channels = channels if settings.relay else {}
        self._settings = settings
        self._watch = _RelayMetrics(metrics, self._providers)
        self._relay: Relay | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving: dict[
            str, int
        ] = {}  # per lane without a provider here: when the oldest notification in state sending was added

    def start(self) -> None:
        if self._providers:
            self._relay = self.relay()
            self._tasks.append(asyncio.create_task(self._relay.run()))
        self._tasks.append(asyncio.create_task(purge_loop("notifications", self.purge, self._log_unserved)))

    def relay(self, metrics: RelayMetrics | None = None) -> Relay:
        """Create a relay on the running loop, as configured."""
        max_age_s = self._settings.max_age
        return Relay(self._outbox, self._providers, self._channels, max_age_s=max_age_s, metrics=metrics or self._watch)

    def wake(self) -> None:
        """A notification was added."""
        if self._relay is not None:
            self._relay.wake()

    def begin_to_stop(self) -> None:
        """Take no more; finish the notifications in flight."""
        if self._relay is not None:
            self._relay.begin_to_stop()

    async def stop(self, within_s: float) -> None:
        """Wait for the notifications in flight. Leases of the rest expire: a message that may have left is
        uncertain then."""
        if self._relay is not None:
            await self._relay.stop(within_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def purge(self, limit: int) -> int:
        """Delete at most `limit` notifications that are past their retention."""
        content_ms, identity_ms = int(1000 * self._settings.retention), int(1000 * self._settings.identity)
        return await self._outbox.purge(content_ms, identity_ms, limit)

    async def _log_unserved(self) -> None:
        if not self._settings.relay:
            return
        served = {*self._providers, *(lane_of("", channel) for channel, names in self._channels.items() if names)}
        before, self._leaving = self._leaving, {}
        for waiting in await self._outbox.backlog():
            lane = waiting.provider
            if lane in served:
                continue
            if waiting.state == "sending":  # another relay has it, unless it is still there at the next check
                self._leaving[lane] = waiting.oldest_ms
                if before.get(lane) != waiting.oldest_ms:
                    continue
            place = {"channel": lane[1:]} if lane.startswith("@") else {"provider": lane}
            log.error("outbox_unserved", notifications=waiting.count, state=waiting.state, **place)


class _RelayMetrics:
    """Counts the results of the relay, and logs a provider that accepts nothing any more (a changed password, an
    outage). Names of providers come from the settings."""

    def __init__(self, metrics: Metrics | None, providers: Mapping[str, Provider]) -> None:
        self._metrics = {} if metrics is None else {name: metrics.provider(name) for name in providers}
        self._failures = dict.fromkeys(providers, 0)  # in a row
        self._incidents = {
            name: IncidentLog("provider_unavailable", "provider_recovered", provider=name) for name in providers
        }

    def sent(self, provider: str, seconds: float) -> None:
        if (metrics := self._metrics.get(provider)) is not None:
            metrics.seconds.saw(seconds)

    def recorded(self, provider: str, outcome: str) -> None:
        if (metrics := self._metrics.get(provider)) is not None and (number := metrics.became.get(outcome)) is not None:
            number.up()
        if provider not in self._failures:
            return
        if outcome == "accepted":
            self._failures[provider] = 0
            self._incidents[provider].resolve()
        elif outcome in ("refused", "unknown"):
            self._failures[provider] += 1
            if (count := self._failures[provider]) >= FAILURES_IN_A_ROW:
                self._incidents[provider].report(f"{count} requests in a row were refused or not answered")
