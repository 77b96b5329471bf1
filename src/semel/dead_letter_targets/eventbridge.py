"""Puts dead letters on an EventBridge bus, named by `eventbridge://bus?region=eu-central-1&…`.

A bus cannot be listed, and nothing can be deleted from it. It gets at least one copy of each dead letter: after a lost
reply the entry is put again, with the same `id` in its detail. A dead letter whose settlement was refused stays on the
bus too; the outcome of the event has a higher token. The ledger keeps each dead letter once, and operators list, replay
and discard it there.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from semel.aws import DENIED, AwsClient, AwsError, client_factory, is_transient, parse_url
from semel.ports import Fact, Traits
from semel.values.attempts import REASON_MAX, FailedAttempt
from semel.values.claim import Lease, Settlement
from semel.values.errors import ConfigError, LedgerUnavailable, MalformedEvent
from semel.values.log import log
from semel.values.outcome import Reject, Uncertain
from semel.values.retry import backoff_s
from semel.values.strict_json import parse as parse_json

# ---------------------------------------------------------------------------------------------------------------- URL

Oversize: TypeAlias = Literal["truncate", "reference"]

SOURCE = "semel"
OPTIONS = ("region", "endpoint", "source", "oversize")

_NAME = re.compile(r"[A-Za-z0-9._/-]{1,256}")
_ARN = re.compile(r"arn:[a-z-]+:events:(?P<region>[a-z0-9-]+):[0-9]{12}:event-bus/[A-Za-z0-9._/-]{1,256}")
_SOURCE = re.compile(r"[A-Za-z0-9._-]{1,256}")


class BusAddress(Struct, frozen=True):
    """The bus, and the options of its entries."""

    bus: str  # its name, or its ARN if it belongs to another account
    region: str | None = None  # None: from AWS_REGION or the profile
    endpoint: str | None = None  # None: the service itself
    source: str = SOURCE
    oversize: Oversize = "truncate"

    def __str__(self) -> str:
        return f"EventBridge bus {self.bus} ({self.endpoint or self.region or 'region of the environment'})"


def parse(url: str) -> BusAddress:
    parts = parse_url("dead_letters", url, OPTIONS)
    arn = _ARN.fullmatch(parts.target)
    if not url.startswith("eventbridge://") or not (arn or _NAME.fullmatch(parts.target)):
        raise ConfigError(
            f"{parts.shown}: expected eventbridge://bus?region=eu-central-1, with the name of a bus or its ARN"
        )
    source = parts.options.get("source", SOURCE)
    if not _SOURCE.fullmatch(source) or source.startswith("aws."):
        raise ConfigError(
            f"{parts.shown}: source={source[:80]!r}: expected letters, digits, '.', '_' and '-', and not aws.…, which "
            "is reserved for AWS"
        )
    oversize = parts.options.get("oversize", "truncate")
    if oversize not in ("truncate", "reference"):
        raise ConfigError(f"{parts.shown}: oversize={oversize[:80]!r}: expected truncate or reference")
    region = parts.region or (arn["region"] if arn else None)
    return BusAddress(parts.target, region, parts.endpoint, source, cast(Oversize, oversize))


# ------------------------------------------------------------------------------------------------------------ entries

DETAIL_TYPE = "semel.dead-letter"
ENTRIES_MAX = 10  # of one PutEvents request
REQUEST_MAX_BYTES = 256 * 1024  # of all entries of one request, as the service counts them
TIME_BYTES = 14  # counted for a time, however it is written
TEXT_MAX_CHARS = 2_000  # of a key's text and of a reason, which are only displayed
NAME_MAX_CHARS = 500  # of a handler and of a tenant
NOTE_BYTES = 200  # added to a dead letter by the note about its omitted event

_encode = msgspec.json.Encoder().encode


class BusEntry(Struct, frozen=True):
    """One entry of a PutEvents request."""

    id: str  # the same in every copy of a dead letter, so that consumers can drop duplicates
    request: dict[str, Any]
    size: int


def dead_letter_entry(settlement: Settlement, at_ms: int, address: BusAddress) -> BusEntry:
    """The entry for a dead or uncertain event."""
    claim, dead_letter, key = settlement.lease.claim, settlement.dead_letter, settlement.lease.claim.digest.hex()
    outcome = settlement.outcome
    reason = outcome.reason if isinstance(outcome, Reject | Uncertain) else ""
    attempts, earlier = (dead_letter.attempts, dead_letter.attempt_log) if dead_letter is not None else (1, ())
    facts: dict[str, Any] = {
        "id": f"{key}-{settlement.lease.token}",
        "state": "uncertain" if isinstance(outcome, Uncertain) else "dead",
        "key": key,
        "handler": _shorten(claim.handler, NAME_MAX_CHARS),
        "text": _shorten(claim.text, TEXT_MAX_CHARS),
        "tenant": _shorten(claim.tenant, NAME_MAX_CHARS),
        "reason": _shorten(reason, TEXT_MAX_CHARS),
        "attempts": attempts,
        "attempt_log": [
            {"attempt": failed.attempt, "at": _iso(failed.at_ms), "reason": _shorten(failed.reason, REASON_MAX)}
            for failed in (*earlier, FailedAttempt(attempts, at_ms, reason))
        ],
        "token": settlement.lease.token,
    }
    return _entry(facts, dead_letter.event if dead_letter is not None else None, at_ms, address)


def malformed_entry(body: bytes, reason: str, at_ms: int, address: BusAddress) -> BusEntry:
    """The entry for a body that is not an event: it has no key, and nothing was claimed for it."""
    digest = hashlib.sha256(body).hexdigest()
    facts = {"id": f"aside-{digest}", "state": "malformed", "key": "", "reason": _shorten(reason, TEXT_MAX_CHARS)}
    return _entry(facts, body, at_ms, address)


def _entry(facts: dict[str, Any], event: bytes | None, at_ms: int, address: BusAddress) -> BusEntry:
    facts["at"] = _iso(at_ms)
    request = {
        "Time": datetime.fromtimestamp(at_ms / 1000, UTC),
        "Source": address.source,
        "DetailType": DETAIL_TYPE,
        "Resources": [],
        "EventBusName": address.bus,
    }
    overhead = TIME_BYTES + len(address.source) + len(DETAIL_TYPE)
    detail = _encode(facts | _event_fields(event))
    if overhead + len(detail) > REQUEST_MAX_BYTES and event is not None:
        available = REQUEST_MAX_BYTES - overhead - len(_encode(facts)) - NOTE_BYTES
        detail = _encode(facts | _truncated_fields(event, available if address.oversize == "truncate" else 0))
    return BusEntry(facts["id"], {**request, "Detail": detail.decode()}, overhead + len(detail))


def _event_fields(event: bytes | None) -> dict[str, Any]:
    """The event byte for byte if it is JSON, else as text or base64."""
    if event is None:
        return {"event": None}
    try:
        parse_json(event)
    except MalformedEvent:
        return {"event": None, **_text_field(event)}
    return {"event": msgspec.Raw(event)}


def _truncated_fields(event: bytes, available: int) -> dict[str, Any]:
    """The start of an event that is too large, as text, with the size and the hash of the whole event.

    A byte may need up to six in JSON, so the length that fits is found by trying."""
    note = {"event": None, "truncated": True, "size": len(event), "sha256": hashlib.sha256(event).hexdigest()}
    length = min(len(event), available)
    while length > 0:
        field = _text_field(event[:length])
        if (excess := len(_encode(field)) - available) <= 0:
            return note | field
        length -= max(excess // 6, 1)
    return note


def _text_field(data: bytes) -> dict[str, str]:
    try:
        return {"event_text": data.decode()}
    except UnicodeDecodeError as error:
        if error.start >= len(data) - 3 and error.reason == "unexpected end of data":  # cut inside a character
            return {"event_text": data[: error.start].decode()}
    return {"event_base64": b64encode(data).decode()}


def requests(entries: Sequence[BusEntry]) -> Iterator[list[BusEntry]]:
    """Group entries into requests, in order."""
    group: list[BusEntry] = []
    size = 0
    for entry in entries:
        if group and (len(group) == ENTRIES_MAX or size + entry.size > REQUEST_MAX_BYTES):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size
    if group:
        yield group


def _shorten(text: str, most: int) -> str:
    """Limit a text, and escape what JSON cannot contain."""
    text = text if len(text) <= most else text[: most - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode()


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ------------------------------------------------------------------------------------------------------------- target

CONNECT_S = 2.0
READ_S = 3.0  # the service replies within 50 ms, so a retry is better than a longer wait
CONNECTIONS = 4  # dead letters are rare
DEADLINE_S = 8.0  # for all attempts: well under a lease
BACKOFF_BASE_S = 0.05
BACKOFF_CAP_S = 1.0
BUS_CHECK_S = 300.0  # between two checks that the bus exists
BUS_RECHECK_S = 5.0  # after a check that failed
SENT_MAX = 10_000  # ids of dead letters on the bus: a settle that is retried does not put them again
SENT_S = 600.0  # longer than any settle is retried; a ledger that lost its data may grant the same token again

MISSING = "ResourceNotFoundException"
NO_BUS = "the bus does not exist, and EventBridge would accept every dead letter and drop it: create the bus"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class EventBridgeTarget:
    """Puts dead letters on one bus. Every method raises LedgerUnavailable unless the bus has confirmed them."""

    traits = Traits(name="EventBridge", durable=True, transactional=False)

    def __init__(self, url: str, clock: Callable[[], int] = _now_ms) -> None:
        self.address = address = parse(url)
        connect = client_factory(
            "events",
            address.region,
            address.endpoint,
            user="an EventBridge bus for dead letters",
            connect_s=CONNECT_S,
            read_s=READ_S,
            connections=CONNECTIONS,
        )
        self._client = AwsClient(connect, address, CONNECT_S + READ_S, service="EventBridge")
        self._clock = clock
        self._sent: dict[str, float] = {}  # by id; monotonic: when it may be put again
        self._check_bus_at = 0.0  # monotonic

    async def close(self) -> None:
        await self._client.close()

    async def keep(self, settlements: Sequence[Settlement]) -> None:
        await self._put([dead_letter_entry(settlement, self._clock(), self.address) for settlement in settlements])

    async def withdraw(self, leases: Sequence[Lease]) -> None:
        """Do nothing: entries cannot be deleted from a bus."""

    async def keep_malformed(self, body: bytes, reason: str) -> None:
        """Put a record that is not an event: `app.lambda_handler(malformed_records=target.keep_malformed)`."""
        await self._put([malformed_entry(body, reason, self._clock(), self.address)])

    async def _put(self, entries: Sequence[BusEntry]) -> None:
        await self._check_bus()
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        now = time.monotonic()
        for group in requests([entry for entry in entries if self._sent.get(entry.id, now) <= now]):
            await self._put_group(group, deadline)

    async def _put_group(self, remaining: list[BusEntry], deadline: float) -> None:
        """Put entries with one request, and retry those that were not accepted."""
        loop, attempt = asyncio.get_running_loop(), 0
        while True:
            attempt += 1
            try:
                response = await self._client.ask("put_events", Entries=[entry.request for entry in remaining])
            except AwsError as error:
                failure, definite = str(error), not error.is_transient
            else:
                remaining, failure, definite = self._accept(remaining, response)
            if not remaining:
                return
            wait_s = backoff_s(attempt, random.random, BACKOFF_BASE_S, BACKOFF_CAP_S)
            if definite or loop.time() + wait_s > deadline:
                raise LedgerUnavailable(
                    f"{self.address}: {len(remaining)} dead letters could not be put there in {attempt} attempts, last "
                    f"with: {failure}; their events are not settled. Check the bus, the permission events:PutEvents "
                    "and the network"
                )
            await asyncio.sleep(wait_s)

    def _accept(self, entries: Sequence[BusEntry], response: Mapping[str, Any]) -> tuple[list[BusEntry], str, bool]:
        """Record the accepted entries: those that got an event id. Returns the others, the reason, and whether the
        reason is definite."""
        results: Sequence[Mapping[str, Any]] = response.get("Entries", [])
        if len(results) != len(entries):
            return list(entries), f"{len(results)} results for {len(entries)} entries", False
        remaining: list[BusEntry] = []
        failure, definite = "", False
        for entry, result in zip(entries, results, strict=True):
            if result.get("EventId") and not result.get("ErrorCode"):
                while len(self._sent) >= SENT_MAX:
                    del self._sent[next(iter(self._sent))]
                self._sent[entry.id] = time.monotonic() + SENT_S
                continue
            remaining.append(entry)
            code = str(result.get("ErrorCode", "no id"))
            if not definite:
                failure = f"{code}: {str(result.get('ErrorMessage', ''))[:300]}"
            definite = definite or (code != "no id" and not is_transient(code))
        return remaining, failure, definite

    async def _check_bus(self) -> None:
        """Check that the bus exists, because PutEvents succeeds without it. Without the permission to check, assume
        that it exists."""
        if time.monotonic() < self._check_bus_at:
            return
        valid_s = BUS_CHECK_S
        try:
            await self._client.ask("describe_event_bus", Name=self.address.bus)
        except AwsError as error:
            if error.code == MISSING:
                raise LedgerUnavailable(f"{self.address}: {NO_BUS}") from None
            log.warning("event_bus_unchecked", bus=self.address, error=str(error))
            valid_s = BUS_CHECK_S if error.code in DENIED else BUS_RECHECK_S
        self._check_bus_at = time.monotonic() + valid_s

    async def diagnose(self) -> list[Fact]:
        address = self.address
        facts = [Fact("bus", address.bus), Fact("region", address.region or "from the environment")]
        if address.endpoint is not None:
            facts.append(Fact("endpoint", f"{address.endpoint}: not the service itself", "warning"))
        try:
            await self._client.ask("describe_event_bus", Name=address.bus)
        except AwsError as error:
            if error.code == MISSING:
                return [*facts, Fact("readable", NO_BUS, "error")]
            if error.code in DENIED:
                denied = "no permission for events:DescribeEventBus: check that the bus exists"
                return [*facts, Fact("readable", denied, "warning")]
            return [*facts, Fact("readable", str(error), "error")]
        oversize = f"{address.oversize}: beyond 256 KB only the ledger has the whole event"
        return [*facts, await self._rules(), Fact("oversize", oversize)]

    async def _rules(self) -> Fact:
        try:
            response = await self._client.ask("list_rules", EventBusName=self.address.bus)
        except AwsError as error:
            return Fact("rules", f"unknown: {error}")
        enabled = [rule for rule in response.get("Rules", []) if rule.get("State") != "DISABLED"]
        if not enabled:
            none = "none: events on this bus reach no target; add a rule with a target, or an archive"
            return Fact("rules", none, "warning")
        return Fact("rules", f"{len(enabled)}")
