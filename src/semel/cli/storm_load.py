"""Sends a storm as a real sender would: it waits for answers, and tries again what was not taken.

    arrivals → agenda → a line → the answer → taken, refused, or back onto the agenda for later

A delivery that has to wait for its next try holds no connection meanwhile. Only a bounded number of them wait; while
there are so many, nothing new is begun, as while the service is down.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import time
from array import array
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from time import perf_counter
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from semel.cli.http_load import Answer, Line, NoAnswer, Target
from semel.cli.storm_check import mark
from semel.testing.traffic import Arrival, Traffic
from semel.values.errors import ConfigError
from semel.values.retry import backoff_s

WAITING_MAX = 2_000  # deliveries between two tries: 3 MB of bodies
BACKOFF_BASE_S = 0.1  # a restart takes a second or two: the first tries should find it soon
BACKOFF_CAP_S = 5.0
RETRY_AFTER_CAP_S = 10.0  # whatever a service asks for, a storm ends some day
IDLE_S = 0.02  # how long to wait where only other deliveries can bring something to do
RETRIED = frozenset({408, 409, 425, 429})  # and all from 500 on; 409: it is being handled elsewhere
REFUSAL_SHOWN_CHARS = 200
WORDS_MAX = 20  # different ones that are counted: ours are fewer, and another service may say anything


class Manner(Struct, frozen=True):
    """How to send."""

    connections: int
    timeout_s: float
    attempts: int  # for one delivery
    rate: float | None  # deliveries a second; None: as fast as they are answered
    together: int = 1  # so many are due at the same moment


class Delivery(Struct):
    """One arrival on its way, over all its tries."""

    arrival: Arrival
    tries: int = 0


class _Said(Struct):
    """The part of an answer that is counted."""

    status: str = ""


_read = msgspec.json.Decoder(_Said).decode


class Tally:
    """What has come of it so far."""

    def __init__(self, events: int) -> None:
        self.taken = bytearray(events)  # 1 for each event of which a delivery was answered with 2xx
        self.ended = 0  # deliveries: taken, refused or given up
        self.copies: Counter[str] = Counter()  # "", "redelivery", "producer"
        self.requests = 0
        self.retries = 0
        self.refused = 0
        self.gave_up = 0
        self.codes: Counter[int] = Counter()
        self.words: Counter[str] = Counter()  # of `status` in answers with 2xx
        self.failures: Counter[str] = Counter()  # requests without an answer
        self.trouble = ""  # the first refusal, or the last thing that a delivery was given up for
        self.waits_s = array("f")  # for each answer

    def heard(self, word: str) -> None:
        known = word in self.words or len(self.words) < WORDS_MAX
        self.words[word if known else "(others)"] += 1


class _Due(NamedTuple):
    at_s: float
    number: int
    delivery: Delivery


class Agenda:
    """What to send next: first what is due again, then what is new."""

    def __init__(self, arrivals: Iterator[Arrival], manner: Manner, clock: Callable[[], float]) -> None:
        self._arrivals = arrivals
        self._manner = manner
        self._clock = clock
        self._begun_s = clock()
        self._again: list[_Due] = []
        self._drawn = 0
        self._number = 0
        self._under_way = 0
        self._dry = False

    async def next(self) -> Delivery | None:
        """The next delivery when it is due; None when all have ended."""
        while True:
            if self._again and self._again[0].at_s <= self._clock():
                self._under_way += 1
                return heappop(self._again).delivery
            if not self._dry and len(self._again) + self._under_way < WAITING_MAX:
                arrival = next(self._arrivals, None)
                if arrival is not None:
                    self._under_way += 1
                    await self._pace()
                    return Delivery(arrival)
                self._dry = True
            if self._dry and not self._again and not self._under_way:
                return None
            await asyncio.sleep(IDLE_S)

    def again(self, delivery: Delivery, after_s: float) -> None:
        self._number += 1
        self._under_way -= 1
        heappush(self._again, _Due(self._clock() + after_s, self._number, delivery))

    def ended(self) -> None:
        self._under_way -= 1

    async def _pace(self) -> None:
        """Each delivery has its moment from the beginning on: what came late is caught up with."""
        number, self._drawn = self._drawn, self._drawn + 1
        if self._manner.rate is not None:
            due_s = self._begun_s + (number - number % self._manner.together) / self._manner.rate
            if (wait_s := due_s - self._clock()) > 0:
                await asyncio.sleep(wait_s)


class Storming:
    """One storm over HTTP."""

    def __init__(
        self, target: Target, sign: Sign, manner: Manner, traffic: Traffic, events: int, random: Callable[[], float]
    ) -> None:
        self.tally = Tally(events)
        self._target = target
        self._sign = sign
        self._manner = manner
        self._traffic = traffic
        self._random = random
        self._head = target.head("POST", None, "Content-Type: application/json")

    async def run(self, arrivals: Iterator[Arrival]) -> None:
        """Send everything. `tally` follows along."""
        agenda = Agenda(arrivals, self._manner, asyncio.get_running_loop().time)
        lines = [Line(self._target, self._manner.timeout_s) for _ in range(self._manner.connections)]
        try:
            async with asyncio.TaskGroup() as senders:
                for line in lines:
                    senders.create_task(self._send(line, agenda))
        finally:
            for line in lines:
                line.close()

    async def _send(self, line: Line, agenda: Agenda) -> None:
        tally = self.tally
        while (delivery := await agenda.next()) is not None:
            delivery.tries += 1
            tally.requests += 1
            tally.retries += delivery.tries > 1
            asked_s = perf_counter()  # uvloop's own clock counts whole milliseconds
            answer = await line.ask(self._request(delivery.arrival))
            if isinstance(answer, Answer):
                tally.waits_s.append(perf_counter() - asked_s)
            after_s = self._judge(delivery, answer)
            if after_s is None:
                tally.copies[delivery.arrival.copy] += 1
                tally.ended += 1
                agenda.ended()
            else:
                agenda.again(delivery, after_s)

    def _request(self, arrival: Arrival) -> bytes:
        body = arrival.body
        vouched = self._sign(body, partial(self._message_id, arrival))
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (self._head, vouched, len(body), body)

    def _message_id(self, arrival: Arrival) -> str:
        """Standard Webhooks: a retry has the id of the first try, whoever retries."""
        return f"msg_{mark(self._traffic.identity(arrival.at)).hex()}"

    def _judge(self, delivery: Delivery, answer: Answer | NoAnswer) -> float | None:
        """Seconds until the next try; None when this delivery has come to its end."""
        tally = self.tally
        asked_s: float | None = None
        if isinstance(answer, NoAnswer):
            tally.failures[answer.failure] += 1
            trouble = f"{answer.failure} {answer.detail}"
        else:
            status = answer.status
            tally.codes[status] += 1
            if 200 <= status < 300:
                tally.taken[delivery.arrival.at] = 1
                tally.heard(_word(answer.body))
                return None
            trouble = f"{status} {answer.body[:REFUSAL_SHOWN_CHARS].decode('utf-8', 'replace')}"
            if status < 500 and status not in RETRIED:
                tally.refused += 1
                tally.trouble = tally.trouble or trouble
                return None
            asked_s = answer.retry_after_s
        if delivery.tries >= self._manner.attempts:
            tally.gave_up += 1
            tally.trouble = tally.trouble or trouble
            return None
        backoff = backoff_s(delivery.tries, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S)
        return backoff if asked_s is None else min(asked_s, RETRY_AFTER_CAP_S) + backoff * 0.1


def _word(body: bytes) -> str:
    try:
        return _read(body).status[:40] or "(none)"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "(none)"


# Signs what the storm sends, as its sender would. Written from the sender's side: nothing here verifies.

Scheme = Literal["genesys", "standard-webhooks", "hmac-hex", "header", "basic"]

Sign: TypeAlias = Callable[[bytes, Callable[[], str]], bytes]
"""The fields of the head, each with its line end, that vouch for a body. Few schemes ask for the id of the message."""

HUB = "X-Hub-Signature-256"


def signer(scheme: Scheme | None, secret: str, header: str = "") -> Sign:
    """How to sign. `secret` may be a reference, "env:NAME" or "file:path", as in semel.toml."""
    if scheme is None:
        if secret or header:
            raise ConfigError("--secret and --header need a --scheme beside them")
        return lambda body, message: b""
    if header and scheme not in ("hmac-hex", "header"):
        raise ConfigError(f"--header: --scheme {scheme} has its own; only hmac-hex and header can have another")
    value = _resolved(secret)
    _check_field(header, value if scheme == "header" else "")
    match scheme:
        case "genesys":
            return lambda body, message: _line(HUB, b"sha256=" + b64encode(_mac(value.encode(), body)))
        case "hmac-hex":
            return lambda body, message: _line(header or HUB, b"sha256=" + _mac(value.encode(), body).hex().encode())
        case "standard-webhooks":
            return _standard(value)
        case "header":
            fixed = _line(header or "X-Api-Key", value.encode())
        case "basic":
            if ":" not in value:
                raise ConfigError("--secret: for --scheme basic it is the user and the password, user:password")
            fixed = _line("Authorization", b"Basic " + b64encode(value.encode()))
    return lambda body, message: fixed


def _standard(secret: str) -> Sign:
    try:
        key = b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        raise ConfigError("--secret: a Standard Webhooks secret is base64, usually after whsec_") from None

    def sign(body: bytes, message: Callable[[], str]) -> bytes:
        own_id, now = message(), int(time.time())
        signature = b64encode(_mac(key, f"{own_id}.{now}.".encode() + body))
        stamp = f"webhook-id: {own_id}\r\nwebhook-timestamp: {now}\r\n".encode()
        return stamp + _line("webhook-signature", b"v1," + signature)

    return sign


def _mac(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, "sha256")


def _line(name: str, value: bytes) -> bytes:
    return b"%b: %b\r\n" % (name.encode(), value)


def _resolved(secret: str) -> str:
    kind, _, place = secret.partition(":")
    if kind == "env":
        secret = os.environ.get(place, "")
    elif kind == "file":
        try:
            secret = Path(place).read_text("utf-8").strip()
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"--secret {kind}:{place}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if not secret:
        where = f" {kind}:{place}: it is empty or not set" if kind in ("env", "file") else ": a scheme needs one"
        raise ConfigError(f"--secret{where}")
    return secret


def _check_field(name: str, value: str) -> None:
    if name and not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
        raise ConfigError(f"--header {name!r}: that is no name of a header")
    if not re.fullmatch(r"[ -~]*", value):
        raise ConfigError("--secret: a header can only hold printable ASCII")
