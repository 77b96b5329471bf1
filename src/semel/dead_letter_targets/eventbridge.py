"""What `eventbridge://bus?region=eu-central-1&…` says. Credentials are never part of it."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Struct

from semel.ports import Fact, Traits
from semel.values.attempts import REASON_MAX, FailedAttempt
from semel.values.claim import Lease, Settlement
from semel.values.errors import ConfigError, LedgerUnavailable, MalformedEvent
from semel.values.log import log
from semel.values.outcome import Uncertain
from semel.values.retry import backoff_s
from semel.values.strict_json import parse as parse_json

Oversize: TypeAlias = Literal["truncate", "reference"]

SOURCE = "semel"
OPTIONS = ("region", "endpoint", "source", "oversize")

_NAME = re.compile(r"[A-Za-z0-9._/-]{1,256}")
_ARN = re.compile(r"arn:[a-z-]+:events:(?P<region>[a-z0-9-]+):[0-9]{12}:event-bus/[A-Za-z0-9._/-]{1,256}")
_SOURCE = re.compile(r"[A-Za-z0-9._-]{1,256}")


class Address(Struct, frozen=True):
    """Which bus, and what is put there."""

    bus: str  # its name, or its ARN where it belongs to another account
    region: str | None = None  # None: by AWS_REGION or the profile
    endpoint: str | None = None  # None: the service itself
    source: str = SOURCE
    oversize: Oversize = "truncate"

    def __str__(self) -> str:
        return f"EventBridge bus {self.bus} ({self.endpoint or self.region or 'region of the environment'})"


def parse(url: str) -> Address:
    parts = urlsplit(url)
    shown = url.partition("?")[0]  # whoever wrote a secret into an option must not find it in a log
    if "@" in parts.netloc:
        raise ConfigError(
            "dead_letters eventbridge://…: a URL with user and password is refused, they would end up in logs; "
            "credentials come by the usual AWS chain: environment, profile, or the role of the machine"
        )
    bus = (parts.netloc + parts.path).rstrip("/")
    arn = _ARN.fullmatch(bus)
    if parts.scheme != "eventbridge" or not (arn or _NAME.fullmatch(bus)):
        raise ConfigError(
            f"dead_letters {shown!r}: expected eventbridge://bus?region=eu-central-1, with the name of a bus or its ARN"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(f"dead_letters {shown!r}: unknown option {name!r}; known are: {', '.join(OPTIONS)}")
    return Address(
        bus=bus,
        region=options.get("region") or (arn["region"] if arn else None),
        endpoint=_endpoint(shown, options.get("endpoint")),
        source=_source(shown, options.get("source", SOURCE)),
        oversize=_oversize(shown, options.get("oversize", "truncate")),
    )


def _endpoint(shown: str, endpoint: str | None) -> str | None:
    if not endpoint:
        return None
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ConfigError(
            f"dead_letters {shown!r}: endpoint: expected http://host:port or https://host, without credentials"
        )
    return endpoint


def _source(shown: str, source: str) -> str:
    if not _SOURCE.fullmatch(source) or source.startswith("aws."):
        raise ConfigError(
            f"dead_letters {shown!r}: source={source[:80]!r}: expected letters, digits, '.', '_' and '-', and not "
            "aws.…, which is Amazon's own"
        )
    return source


def _oversize(shown: str, oversize: str) -> Oversize:
    if oversize not in ("truncate", "reference"):
        raise ConfigError(f"dead_letters {shown!r}: oversize={oversize[:80]!r}: expected truncate or reference")
    return cast(Oversize, oversize)


# The way to the bus: one client, and what a failure means. There are no retries here: botocore's own are off, since
# they know nothing of our deadline.

CONNECT_S = 2.0
READ_S = 3.0  # the service answers within 50 ms; a second try is worth more than a longer wait
CONNECTIONS = 4  # letters are rare
OPEN_AGAIN_S = 5.0  # a client costs a tenth of a second, and a settle is tried again many times a second
SPOKEN, NUMBERED = "application/x-amz-json", "x-amzn-requestid"  # its answers have both, most emulators' one of them

THROTTLED = ("ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded")
MISSING = ("ResourceNotFoundException",)
DENIED = ("AccessDeniedException", "AccessDenied")
HOPELESS = ("NoCredentialsError", "PartialCredentialsError", "NoRegionError", "ProfileNotFound", "ParamValidationError")
"""Errors of the driver that no other try will change."""


class Failed(Exception):
    """A request that came to nothing, or of which nobody knows. `definite`: no repetition will change that."""

    def __init__(self, code: str, said: str, definite: bool) -> None:
        super().__init__(f"{code}: {said}" if said else code)
        self.code = code
        self.definite = definite


class Client:
    """Belongs to the event loop that first used it, until it is closed."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._stack = AsyncExitStack()
        self._begin()

    def _begin(self) -> None:
        """As new. A lock belongs to the loop in which somebody first had to wait for it."""
        self._aws: Any = None
        self._opening = asyncio.Lock()
        self._open_again_at = 0.0  # monotonic

    async def close(self) -> None:
        self._begin()
        await self._stack.aclose()

    async def ask(self, operation: str, **request: Any) -> Mapping[str, Any]:
        """One request, sent once. Raises Failed, and ConfigError where the driver or the region is missing."""
        aws = await self._opened()
        try:
            async with asyncio.timeout(CONNECT_S + READ_S):
                answer: Mapping[str, Any] = await getattr(aws, operation)(**request)
        except TimeoutError:
            raise Failed("no answer", f"{operation} took more than {CONNECT_S + READ_S:g} s", False) from None
        except Exception as error:  # whatever a driver, its connection or its source of credentials may come up with
            failure = _failure(error)
            if failure.code in HOPELESS and time.monotonic() >= self._open_again_at:
                self._aws = None  # it would never look for credentials again
            raise failure from None
        _check_speaker(answer)
        return answer

    async def _opened(self) -> Any:
        if self._aws is None:
            async with self._opening:
                if self._aws is None:
                    await self._stack.aclose()  # of one that found no credentials; there may be many such
                    self._aws = await self._open()
                    self._open_again_at = time.monotonic() + OPEN_AGAIN_S
        return self._aws

    async def _open(self) -> Any:
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import AioSession
        except ImportError as error:
            raise ConfigError("dead letters on EventBridge need aiobotocore: install semel[aws]") from error
        from botocore.exceptions import BotoCoreError, NoRegionError

        session = AioSession()
        session.register_component("data_loader", _loader())
        config = AioConfig(
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            max_pool_connections=CONNECTIONS,
            retries={"mode": "standard", "total_max_attempts": 1},
            tcp_keepalive=True,
        )
        try:
            return await self._stack.enter_async_context(
                session.create_client(
                    "events", region_name=self.address.region, endpoint_url=self.address.endpoint, config=config
                )
            )
        except NoRegionError as error:
            raise ConfigError(f"{self.address}: no region: add ?region=… to the URL, or set AWS_REGION") from error
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"{self.address}: {_first_line(error)}") from error


def is_passing(code: str) -> bool:
    """Whether one refused entry may be taken at the next try. All other codes are about the entry, or about us."""
    return code in THROTTLED or code in ("InternalFailure", "InternalException", "InternalServerError")


def _failure(error: Exception) -> Failed:
    """What an error of the driver means to whoever asked."""
    from botocore.exceptions import ClientError

    if not isinstance(error, ClientError):
        name = type(error).__name__
        return Failed(name, _first_line(error), name in HOPELESS)
    told: Mapping[str, Any] = error.response["Error"]
    code = str(told.get("Code") or "?").rpartition("#")[2]
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return Failed(code, str(told.get("Message", ""))[:300], status < 500 and not is_passing(code))


def _check_speaker(answer: Mapping[str, Any]) -> None:
    """botocore takes any page with status 200 for a yes: of a proxy, say. Nothing is kept then."""
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    kind = headers.get("content-type", "")
    if not kind.startswith(SPOKEN) and NUMBERED not in headers:
        said = f"who answers there is not EventBridge ({kind[:80] or 'no content type'}); look at endpoint and proxies"
        raise Failed("no service", said, False)


@cache
def _loader() -> Any:
    """The descriptions of AWS's services: slow to read, and the same for every client."""
    from botocore.loaders import create_loader

    return create_loader()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:300]


# A letter as an entry of PutEvents: what it says, how large it is, and what is left out of one that is too large.

DETAIL_TYPE = "semel.dead-letter"
ENTRIES_MAX = 10  # of one call
CALL_MAX_BYTES = 256 * 1024  # of all entries of one call, as the service counts them
TIME_BYTES = 14  # what it counts for a time, however that is written
TEXT_MAX_CHARS = 2_000  # of a key's text and of a reason: they are for people
NAME_MAX_CHARS = 500  # of a handler and of a tenant
NOTE_BYTES = 200  # what the note about a left-out event adds to a letter

_encode = msgspec.json.Encoder().encode


class Entry(Struct, frozen=True):
    """One letter, ready to be put."""

    id: str  # the same for the same letter, however often it is put: consumers drop copies by it
    request: dict[str, Any]
    size: int


def entry_of(settlement: Settlement, at_ms: int, address: Address) -> Entry:
    """The letter of an event that was given up on, or that is in doubt."""
    claim, dead_letter, key = settlement.lease.claim, settlement.dead_letter, settlement.lease.claim.digest.hex()
    reason = getattr(settlement.outcome, "reason", "")
    attempts, before = (dead_letter.attempts, dead_letter.attempt_log) if dead_letter is not None else (1, ())
    facts: dict[str, Any] = {
        "id": f"{key}-{settlement.lease.token}",
        "state": "uncertain" if isinstance(settlement.outcome, Uncertain) else "dead",
        "key": key,
        "handler": _cut(claim.handler, NAME_MAX_CHARS),
        "text": _cut(claim.text, TEXT_MAX_CHARS),
        "tenant": _cut(claim.tenant, NAME_MAX_CHARS),
        "reason": _cut(reason, TEXT_MAX_CHARS),
        "attempts": attempts,
        "attempt_log": [
            {"attempt": one.attempt, "at": _iso(one.at_ms), "reason": _cut(one.reason, REASON_MAX)}
            for one in (*before, FailedAttempt(attempts, at_ms, reason))
        ],
        "token": settlement.lease.token,
    }
    return _entry(facts, dead_letter.event if dead_letter is not None else None, at_ms, address)


def entry_aside(body: bytes, reason: str, at_ms: int, address: Address) -> Entry:
    """A body that is no event at all: it has no key, and nothing was claimed for it."""
    digest = hashlib.sha256(body).hexdigest()
    facts = {"id": f"aside-{digest}", "state": "malformed", "key": "", "reason": _cut(reason, TEXT_MAX_CHARS)}
    return _entry(facts, body, at_ms, address)


def _entry(facts: dict[str, Any], event: bytes | None, at_ms: int, address: Address) -> Entry:
    facts["at"] = _iso(at_ms)
    request = {
        "Time": datetime.fromtimestamp(at_ms / 1000, UTC),
        "Source": address.source,
        "DetailType": DETAIL_TYPE,
        "Resources": [],
        "EventBusName": address.bus,
    }
    around = TIME_BYTES + len(address.source) + len(DETAIL_TYPE)
    detail = _encode(facts | _told(event))
    if around + len(detail) > CALL_MAX_BYTES and event is not None:
        room = CALL_MAX_BYTES - around - len(_encode(facts)) - NOTE_BYTES
        detail = _encode(facts | _left_out(event, room if address.oversize == "truncate" else 0))
    return Entry(facts["id"], {**request, "Detail": detail.decode()}, around + len(detail))


def _told(event: bytes | None) -> dict[str, Any]:
    """The document itself where it is JSON, byte for byte; else what it is as a text."""
    if event is None:
        return {"event": None}
    try:
        parse_json(event)
    except MalformedEvent:
        return {"event": None, **_as_text(event)}
    return {"event": msgspec.Raw(event)}


def _left_out(event: bytes, room: int) -> dict[str, Any]:
    """The beginning of an event that is too large, as a text, as far as there is room; and how to know the whole.

    A byte of it may take up to six in JSON, so what fits is found by trying."""
    note = {"event": None, "truncated": True, "size": len(event), "sha256": hashlib.sha256(event).hexdigest()}
    shown = min(len(event), room)
    while shown > 0:
        told = _as_text(event[:shown])
        if (over := len(_encode(told)) - room) <= 0:
            return note | told
        shown -= max(over // 6, 1)
    return note


def _as_text(some: bytes) -> dict[str, str]:
    try:
        return {"event_text": some.decode()}
    except UnicodeDecodeError as error:
        if error.start >= len(some) - 3 and error.reason == "unexpected end of data":  # cut inside of a character
            return {"event_text": some[: error.start].decode()}
    return {"event_base64": b64encode(some).decode()}


def calls(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Entries in the groups in which they are put, in order."""
    group: list[Entry] = []
    size = 0
    for entry in entries:
        if group and (len(group) == ENTRIES_MAX or size + entry.size > CALL_MAX_BYTES):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size
    if group:
        yield group


def _cut(text: str, most: int) -> str:
    """What a store can keep, and JSON can say."""
    text = text if len(text) <= most else text[: most - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode()


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Puts letters on a bus. What is not known to be there raises, so that the ledger is not told.
#
# A bus takes everything and gives nothing back. So there is at least one copy of each letter on it, and perhaps
# several: after a lost reply the entry is put again, with the same `id` in its detail. A letter whose settle was
# refused stays on the bus too; the end that the event came to instead has a higher token. The ledger has each letter
# once, and that is what people list, replay and discard.

DEADLINE_S = 8.0  # for all tries: well under a lease
BACKOFF_BASE_S = 0.05
BACKOFF_CAP_S = 1.0
LOOK_AGAIN_S = 300.0  # a bus that was there is believed to be there for so long
LOOK_SOON_S = 5.0  # where it could not be looked for
PUT_MAX = 10_000  # letters that are known to be on the bus: a settle that is tried again puts none of them twice
PUT_AGAIN_S = 600.0  # longer than any settle is tried; a ledger that has lost its memory may give a token again

NO_BUS = "there is no such bus, and EventBridge would say yes to every letter and drop it: create the bus"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class EventBridgeTarget:
    """One bus."""

    traits = Traits(name="EventBridge", durable=True, transactional=False)

    def __init__(self, url: str, clock: Callable[[], int] = _now_ms) -> None:
        self.address = parse(url)
        self._client = Client(self.address)
        self._clock = clock
        self._put: dict[str, float] = {}  # monotonic: until when nobody need put it again
        self._look_at = 0.0  # monotonic: when to see again whether the bus is there

    async def close(self) -> None:
        await self._client.close()

    # -------------------------------------------------------------------------------------------------------- keeping

    async def keep(self, settlements: Sequence[Settlement]) -> None:
        """Raises LedgerUnavailable when a letter is not known to be on the bus."""
        await self._put_all([entry_of(settlement, self._clock(), self.address) for settlement in settlements])

    async def withdraw(self, leases: Sequence[Lease]) -> None:
        """A bus takes nothing back."""

    async def keep_malformed(self, body: bytes, reason: str) -> None:
        """Keep a record that is no event: `app.lambda_handler(malformed_records=letters.keep_malformed)`.

        Raises LedgerUnavailable."""
        await self._put_all([entry_aside(body, reason, self._clock(), self.address)])

    async def _put_all(self, entries: Sequence[Entry]) -> None:
        await self._see_the_bus()
        ends = asyncio.get_running_loop().time() + DEADLINE_S
        now = time.monotonic()
        for group in calls([entry for entry in entries if self._put.get(entry.id, now) <= now]):
            await self._put_group(group, ends)

    async def _put_group(self, left: list[Entry], ends: float) -> None:
        """One call, and others for what it did not take."""
        loop, attempt = asyncio.get_running_loop(), 0
        while True:
            attempt += 1
            try:
                answer = await self._client.ask("put_events", Entries=[entry.request for entry in left])
            except Failed as failed:
                failure, definite = str(failed), failed.definite
            else:
                left, failure, definite = self._taken(left, answer)
            if not left:
                return
            wait_s = backoff_s(attempt, random.random, BACKOFF_BASE_S, BACKOFF_CAP_S)
            if definite or loop.time() + wait_s > ends:
                raise LedgerUnavailable(
                    f"{self.address}: of the dead letters {len(left)} could not be put there in {attempt} tries, at "
                    f"last: {failure}; nothing was given up. Look at the bus, at who may events:PutEvents there, and "
                    "at the network"
                )
            await asyncio.sleep(wait_s)

    def _taken(self, put: Sequence[Entry], answer: Mapping[str, Any]) -> tuple[list[Entry], str, bool]:
        """What the bus did not take, why, and whether it never will. Only an entry with an id of its own was taken."""
        answers: Sequence[Mapping[str, Any]] = answer.get("Entries", [])
        if len(answers) != len(put):
            return list(put), f"{len(answers)} answers to {len(put)} entries", False
        left: list[Entry] = []
        failure, definite = "", False
        for entry, told in zip(put, answers, strict=True):
            if told.get("EventId") and not told.get("ErrorCode"):
                self._remember(entry.id)
                continue
            left.append(entry)
            code = str(told.get("ErrorCode", "no id"))
            if not definite:
                failure = f"{code}: {str(told.get('ErrorMessage', ''))[:300]}"
            definite = definite or (code != "no id" and not is_passing(code))
        return left, failure, definite

    def _remember(self, id: str) -> None:
        while len(self._put) >= PUT_MAX:
            del self._put[next(iter(self._put))]
        self._put[id] = time.monotonic() + PUT_AGAIN_S

    async def _see_the_bus(self) -> None:
        """PutEvents says yes for a bus that is not there. Whoever may not look is believed."""
        if time.monotonic() < self._look_at:
            return
        believed_s = LOOK_AGAIN_S
        try:
            await self._client.ask("describe_event_bus", Name=self.address.bus)
        except Failed as failed:
            if failed.code in MISSING:
                raise LedgerUnavailable(f"{self.address}: {NO_BUS}") from None
            log.warning("event_bus_unchecked", bus=self.address, error=str(failed))
            believed_s = LOOK_AGAIN_S if failed.code in DENIED else LOOK_SOON_S
        self._look_at = time.monotonic() + believed_s

    # ------------------------------------------------------------------------------------------------------ for people

    async def diagnose(self) -> list[Fact]:
        address = self.address
        facts = [Fact("bus", address.bus), Fact("region", address.region or "by the environment")]
        if address.endpoint is not None:
            facts.append(Fact("endpoint", f"{address.endpoint}: not the service itself", "warning"))
        try:
            await self._client.ask("describe_event_bus", Name=address.bus)
        except Failed as failed:
            if failed.code in MISSING:
                return [*facts, Fact("readable", NO_BUS, "error")]
            if failed.code in DENIED:
                denied = "not allowed events:DescribeEventBus: is the bus there?"
                return [*facts, Fact("readable", denied, "warning")]
            return [*facts, Fact("readable", str(failed), "error")]
        facts.append(await self._listeners())
        return [*facts, Fact("oversize", f"{address.oversize}: beyond 256 KB, the ledger has the event")]

    async def _listeners(self) -> Fact:
        try:
            answer = await self._client.ask("list_rules", EventBusName=self.address.bus)
        except Failed as failed:
            return Fact("rules", f"unknown: {failed}")
        enabled = [rule for rule in answer.get("Rules", []) if rule.get("State") != "DISABLED"]
        if not enabled:
            none = "none: events on this bus reach no target; add a rule with a target, or an archive"
            return Fact("rules", none, "warning")
        return Fact("rules", f"{len(enabled)}")
