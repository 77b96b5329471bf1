"""The sending process of `python -m bench.service`: several connections, each with one request in flight at all times.

It shares its machine with the measured server, so it does as little as possible: no tasks, no futures, one write per
request and one search per response. It reads its job from stdin and writes its results to stdout:

    in:   a job, JSON                 out:  ready
    in:   <begin> <end>               out:  the results between begin and end, JSON

Both times are on the monotonic clock, which all processes of a machine share. It starts to send when it has read them.
Requests before the begin are warm-up.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Literal, TypeAlias, cast

import msgspec
from bench.service.answers import AnswerReader, BadAnswer
from msgspec import Struct

from semel.cli.storm_load import run

COPY_BEHIND = 256  # distance of a copy from its original in requests; the original is settled by then
REFUSALS = frozenset({409, 429, 503})  # the request may be sent again
LAST_ANSWERS_S = 10.0  # how long to wait for requests in flight at the end
SHOWN_CHARS = 200

Order: TypeAlias = Literal["once", "copies", "cycle"]
Clock: TypeAlias = Callable[[], float]


class Job(Struct, frozen=True):
    """The requests to send."""

    port: int
    requests: str  # the file of `write_requests`
    order: Order
    connections: int
    pause_s: float  # how long a connection waits after a refusal
    part: int = 0  # the number of this sender; it sends every `parts`-th request
    parts: int = 1


class Seen(Struct):
    """The responses between begin and end."""

    good_s: list[float]  # duration of each 200, from its last attempt
    codes: dict[str, int]
    duplicates: int  # 200 with that status
    lost: int  # connections that ended or sent malformed HTTP
    ended_s: float  # seconds from the begin to the end, or to the last request
    cpu_s: float  # of this process
    trouble: str = ""  # the first unexpected response


def write_requests(path: Path, requests: Sequence[bytes]) -> None:
    path.write_bytes(msgspec.msgpack.encode(requests))


def read_requests(path: Path) -> list[bytes]:
    return msgspec.msgpack.decode(path.read_bytes(), type=list[bytes])


def in_order(requests: Sequence[bytes], order: Order) -> Iterator[bytes]:
    """The requests once; or each with a later copy, so that half are copies; or in an endless cycle."""
    match order:
        case "once":
            yield from requests
        case "cycle":
            yield from cycle(requests)
        case "copies":
            for at, request in enumerate(requests):
                yield request
                if at >= COPY_BEHIND:
                    yield requests[at - COPY_BEHIND]


class Load:
    """All connections of this process, and what they see."""

    def __init__(self, requests: Iterator[bytes], pause_s: float, clock: Clock = time.monotonic) -> None:
        self.pause_s = pause_s
        self.clock = clock
        self.begin = self.end = float("inf")
        self.good_s = array("d")
        self.codes: Counter[int] = Counter()
        self.duplicates = 0
        self.lost = 0
        self.trouble = ""
        self.dry_at: float | None = None
        self.over = asyncio.Event()  # every connection has had its last answer
        self.at_work = 0  # connections
        self._requests = requests

    def next(self) -> bytes | None:
        """The next request; None when time is up, or when there is none."""
        if self.clock() >= self.end:
            return None
        request = next(self._requests, None)
        if request is None and self.dry_at is None:
            self.dry_at = self.clock()
        return request

    def ended(self) -> None:
        """A connection has nothing more to do."""
        self.at_work -= 1
        if self.at_work == 0:
            self.over.set()

    def saw(self, status: int, body: bytes, sent_at: float) -> bool:
        """Count an answer. False: it was a refusal, which may be sent again."""
        now = self.clock()
        if self.begin <= now < self.end:
            self.codes[status] += 1
            if status == 200:
                self.good_s.append(now - sent_at)
                self.duplicates += b'"duplicate"' in body
        if status != 200 and status not in REFUSALS and not self.trouble:
            self.trouble = f"{status} {body[:SHOWN_CHARS].decode('utf-8', 'replace')}"
        return status not in REFUSALS


class Connection(asyncio.Protocol):
    """Sends the next request as soon as the last one is answered; one that was refused, after a pause."""

    __slots__ = ("_load", "_loop", "_reader", "_request", "_sent_at", "_transport")

    def __init__(self, load: Load, loop: asyncio.AbstractEventLoop) -> None:
        self._load = load
        self._loop = loop
        self._reader = AnswerReader()
        self._transport: asyncio.Transport | None = None
        self._request: bytes | None = None
        self._sent_at = 0.0

    def start(self) -> None:
        self._load.at_work += 1
        self._send(self._load.next())

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is not a subclass

    def data_received(self, data: bytes) -> None:
        try:
            answer = self._reader.feed(data)
        except BadAnswer:
            self.close()
            return
        if answer is None:
            return
        if self._load.saw(answer.status, answer.body, self._sent_at):
            self._send(self._load.next())
        else:
            self._loop.call_later(self._load.pause_s, self._again)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._request is not None:
            self._request = None
            self._load.lost += 1
            self._load.ended()

    def _again(self) -> None:
        if self._request is not None:
            self._send(self._request if self._load.clock() < self._load.end else None)

    def _send(self, request: bytes | None) -> None:
        self._request = request
        if request is None or self._transport is None:
            self._load.ended()
            return
        self._sent_at = self._load.clock()
        self._transport.write(request)


async def send(job: Job, hear: Callable[[], str], say: Callable[[str], None]) -> None:
    """The whole job."""
    loop = asyncio.get_running_loop()
    requests = read_requests(Path(job.requests))[job.part :: job.parts]
    load = Load(in_order(requests, job.order), job.pause_s)
    connections = [
        (await loop.create_connection(lambda: Connection(load, loop), "127.0.0.1", job.port))[1]
        for _ in range(job.connections)
    ]
    say("ready")
    load.begin, load.end = map(float, hear().split())
    for connection in connections:
        connection.start()
    await asyncio.sleep(load.begin - load.clock())
    cpu_s = time.process_time()
    await _at_most(load.end - load.clock(), load.over)
    cpu_s = time.process_time() - cpu_s
    await _at_most(LAST_ANSWERS_S, load.over)
    for connection in connections:
        connection.close()
    say(msgspec.json.encode(_seen(load, cpu_s)).decode())


async def _at_most(seconds: float, over: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await over.wait()


def _seen(load: Load, cpu_s: float) -> Seen:
    ended = load.end if load.dry_at is None else max(load.begin, load.dry_at)
    codes = {str(code): number for code, number in sorted(load.codes.items())}
    return Seen(load.good_s.tolist(), codes, load.duplicates, load.lost, ended - load.begin, cpu_s, load.trouble)


def main() -> None:
    gc.disable()  # nothing here is part of a cycle, and a collection would look like a slow answer
    job = msgspec.json.decode(sys.stdin.readline(), type=Job)
    run(send(job, sys.stdin.readline, lambda line: print(line, flush=True)))


if __name__ == "__main__":
    main()
