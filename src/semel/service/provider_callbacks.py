"""Records provider callbacks in the outbox.

    verified body -> the provider's delivery reports -> find the notification -> Outbox.apply_reports -> response

A delivery state only moves forward, and each report is stored once. So a callback that arrives twice, late or out of
order changes nothing, and neither does one that is sent again because the service died before it answered. The response
is 200 when the reports are durable, or when they match no notification here. A report that cannot be written now is
answered with a retry status.

Nearly every callback contains Semel's id, which was durable before the message left. Some providers name only their own
reference. Semel learns it from the response to the send, and the callback may overtake that response. So an unknown
reference is waited for, then requested again while it is young, and finally treated as unmatched: no sender retries for
ever.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from semel.core.batcher import Batcher
from semel.ports import StoredOutbox
from semel.service.endpoints import ServedEndpoint
from semel.service.incident_log import CountedLog
from semel.service.responses import HttpResponse, refused
from semel.values.delivery_state import State
from semel.values.errors import MalformedEvent, SemelError
from semel.values.log import IncidentLog, log
from semel.values.outbox import DeliveryReport, NotificationView

PATIENCE_S = 4.0  # for one round trip to the store; most providers wait for 15 s in all
RETRY_AFTER_S = 5.0  # Retry-After of a refused callback
CHUNK = 200  # reports of one body per write: a large callback does not delay all others
READS = 8  # concurrent reads: the store's connections are shared
WAITS_S = (0.1, 0.3, 0.6)  # for the response to a send that its callback has overtaken
WAITING_MAX = 32  # concurrent waits, since each uses an admission slot
YOUNG_S = 60.0  # longer than a send and its record may take
UNKNOWN_MAX = 10_000  # references that are remembered
UNMATCHED_EVERY_S = 600.0  # other systems may send through the same account: not an error, but worth a line

LEFT: tuple[State, ...] = ("sending", "uncertain", "accepted", "delivered", "undelivered")
_JSON = (b"content-type", b"application/json")


@runtime_checkable
class ByReference(Protocol):
    """A provider whose callbacks may contain only its own reference."""

    by_reference: bool


class ProviderCallbacks:
    """Handles the callbacks of one outbox, on one event loop."""

    def __init__(self, outbox: StoredOutbox, clock: Callable[[], float] = time.monotonic) -> None:
        self._outbox = outbox
        self._reads: Batcher[bytes, NotificationView | None] = Batcher(self._read)
        self._writes: Batcher[DeliveryReport, State | None] = Batcher(self._write)
        self._waiting = 0
        self._unknown_references = _UnknownReferences(clock)
        self._unmatched = CountedLog("callback_unmatched", UNMATCHED_EVERY_S, clock)
        self._misdirected = CountedLog("callback_misdirected", UNMATCHED_EVERY_S, clock)
        self._unavailable = IncidentLog("callbacks_unavailable", "callbacks_recovered")

    async def handle(
        self, endpoint: ServedEndpoint, headers: Mapping[str, str], body: bytes, query: str
    ) -> HttpResponse:
        """Record a verified callback and return its response."""
        provider = endpoint.callback_provider
        assert provider is not None
        try:
            reports = provider.reports(headers, body, query)
        except MalformedEvent as error:
            return refused(400, "Not a callback of this provider", str(error))
        try:
            unmatched = await self._record_all(endpoint, reports)
            if unmatched and isinstance(provider, ByReference) and provider.by_reference:
                unmatched = await self._wait_for_send(endpoint, unmatched)
                if self._unknown_references.any_young([report for report in unmatched if report.id is None]):
                    title = "The message of this callback is not known yet"
                    return refused(endpoint.overload_status, title, "Send it again", RETRY_AFTER_S)
        except (SemelError, TimeoutError) as error:
            self._unavailable.report(str(error) or f"no answer within {PATIENCE_S:g} s")
            title = "The callback cannot be recorded now"
            return refused(endpoint.overload_status, title, "Send it again", RETRY_AFTER_S)
        self._unavailable.resolve()
        if unmatched:
            self._unmatched.add(endpoint.path, count=len(unmatched))
        members = {"status": "recorded", "reports": len(reports)} | ({"unmatched": len(unmatched)} if unmatched else {})
        body = msgspec.json.encode(members)
        return HttpResponse(200, [_JSON, (b"content-length", b"%d" % len(body))], body)

    async def _wait_for_send(self, endpoint: ServedEndpoint, reports: list[DeliveryReport]) -> list[DeliveryReport]:
        """Retry while the response to the send may still be under way. Returns the reports that are still unmatched."""
        if self._waiting >= WAITING_MAX:
            return reports
        self._waiting += 1
        try:
            for wait_s in WAITS_S:
                await asyncio.sleep(wait_s)
                if not (reports := await self._record_all(endpoint, reports)):
                    break
        finally:
            self._waiting -= 1
        return reports

    async def _record_all(self, endpoint: ServedEndpoint, reports: Sequence[DeliveryReport]) -> list[DeliveryReport]:
        """Returns the reports that match no notification here. After a failure all reports are recorded again; those
        that were recorded before change nothing."""
        unmatched: list[DeliveryReport] = []
        for start in range(0, len(reports), CHUNK):
            async with asyncio.timeout(PATIENCE_S):
                unmatched += await self._record_chunk(endpoint, reports[start : start + CHUNK])
        return unmatched

    async def _record_chunk(self, endpoint: ServedEndpoint, reports: Sequence[DeliveryReport]) -> list[DeliveryReport]:
        sent = await self._find_sent(endpoint, {report.id for report in reports if report.id is not None})
        unmatched = [report for report in reports if report.id is not None and report.id not in sent]
        named = [replace(report, provider=_sender(*sent[report.id], report)) for report in reports if report.id in sent]
        unmatched += await self._record(named, {id for id, (view, _) in sent.items() if view.state == "failed"})
        by_reference = [report for report in reports if report.id is None]
        for name in endpoint.provider_names:
            by_reference = await self._record([replace(report, provider=name) for report in by_reference])
        return unmatched + by_reference

    async def _record(self, reports: Sequence[DeliveryReport], failed: Collection[bytes] = ()) -> list[DeliveryReport]:
        """Write the reports and return the unmatched ones. `failed`: notifications that had failed before, and are
        already logged."""
        if not reports:
            return []
        states = await self._writes.ask(reports)
        for report, state in zip(reports, states, strict=True):
            if report.status == "refused" and state == "failed" and report.id not in failed:
                id = None if report.id is None else report.id.hex()
                log.error(
                    "notification_failed", notification_id=id, provider=report.provider, outcome="refused by callback"
                )
        return [report for report, state in zip(reports, states, strict=True) if state is None]

    async def _find_sent(
        self, endpoint: ServedEndpoint, ids: Collection[bytes]
    ) -> dict[bytes, tuple[NotificationView, list[str]]]:
        """The notifications that left through a provider of this endpoint, with the names of those providers. An
        endpoint reports for its own providers only: its sender cannot move a message that another provider sent, or
        that has not left."""
        if not ids:
            return {}
        wanted = list(ids)
        sent: dict[bytes, tuple[NotificationView, list[str]]] = {}
        for id, view in zip(wanted, await self._reads.ask(wanted), strict=True):
            if view is None:
                continue
            if names := _senders(view, endpoint.provider_names):
                sent[id] = view, names
            else:
                self._misdirected.add(endpoint.path)
        return sent

    async def _read(self, ids: Sequence[bytes]) -> list[NotificationView | None]:
        views: list[NotificationView | None] = []
        async with asyncio.timeout(PATIENCE_S):
            for start in range(0, len(ids), READS):
                views += await asyncio.gather(*map(self._outbox.show, ids[start : start + READS]))
        return views

    async def _write(self, reports: Sequence[DeliveryReport]) -> list[State | None]:
        async with asyncio.timeout(PATIENCE_S):
            return await self._outbox.apply_reports(reports)


def _senders(view: NotificationView, names: Sequence[str]) -> list[str]:
    """Those of `names` that have sent it, or may have."""
    crossed = {attempt.provider for attempt in view.attempts if attempt.crossed_ms}
    if view.state in LEFT:
        crossed.add(view.provider)
    return [name for name in names if name in crossed]


def _sender(view: NotificationView, names: Sequence[str], report: DeliveryReport) -> str:
    """The name of the account that the report is about: the one that returned this reference, or that has the message
    now. A refusal without a known reference may be about any of them, and goes to a name where it moves nothing."""
    known = {
        attempt.provider for attempt in view.attempts if report.reference and attempt.reference == report.reference
    }
    others = [name for name in names if name != view.provider]
    if by_reference := [name for name in names if name in known]:
        return by_reference[0]
    if others and (report.status == "refused" or view.provider not in names):
        return others[0]
    return view.provider


class _UnknownReferences:
    """Unmatched references and when each was first seen. Forgetting one costs one more callback."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: OrderedDict[tuple[str, str], float] = OrderedDict()

    def any_young(self, reports: Sequence[DeliveryReport]) -> bool:
        """Remember all of them. True if at least one was first seen less than `YOUNG_S` ago."""
        now, young = self._clock(), False
        for report in reports:
            young |= now - self._since.setdefault((report.provider, report.reference), now) < YOUNG_S
            if len(self._since) > UNKNOWN_MAX:
                self._since.popitem(last=False)
        return young
