"""Sends a storm as a real sender would: it waits for answers, and tries again what was not taken.

    arrivals → agenda → a line → the answer → taken, refused, or back onto the agenda for later

A delivery that has to wait for its next try holds no connection meanwhile. Only a bounded number of them wait; while
there are so many, nothing new is begun, as while the service is down.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from time import perf_counter
from typing import NamedTuple

import msgspec
from msgspec import Struct

from semel.cli.load.effect_marks import mark
from semel.cli.load.http_answer import Answer
from semel.cli.load.http_load import Line, NoAnswer, Target
from semel.cli.load.signing import Sign
from semel.testing.traffic import Arrival, Traffic
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
