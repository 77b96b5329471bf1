"""The scenarios of `python -m bench.service`: each is one server, new for each round, and one load.

Events are made and signed once, before anything is measured. Every server starts with an empty ledger, so the same
events are new to each of them.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from bench.service.processes import Senders, ServerProcess, Usage, senders, server
from bench.service.sender import Job, Order, Seen, write_requests

from semel.cli.storm_load import signer
from semel.testing import traffic
from semel.values.errors import SemelError

CONNECTIONS = 64
OVERLOAD = 10  # times the connections
PAUSE_S = 0.01  # delay of a refused sender, a hundredth of the requested Retry-After
RATE_MAX = 15_000  # requests a second: more than one worker can answer
REQUESTS_MAX = 200_000  # 330 MB in each sender
EMPTY_S = 60.0  # how long an inbox may take to be empty
ITEMS_MIN = 200  # inbox items left at the end of the load: with fewer, the rate of emptying is not judged

APP = """\
from semel import Semel

app = Semel({ledger!r})


@app.on("**", effect="retry")
async def handle(event, ctx):
    return None
"""
SETTINGS = """\
[server]
log_level = "warning"

[[endpoints]]
path = "/events"
mode = "{mode}"
verify = {{ scheme = "genesys", secrets = ["file:secret"] }}
"""


@dataclass(frozen=True)
class Scenario:
    """One server and one load."""

    name: str
    label: str
    meaning: str
    ledger: str = ""  # none: the server that only says hello
    mode: Literal["inline", "inbox"] = "inline"
    order: Order = "once"
    connections: int = CONNECTIONS


SQLITE = "sqlite:///bench.db"
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("hello", "hello", "the same server around an app that reads the body and says 200", order="cycle"),
        Scenario("memory", "memory", "verified and deduplicated, handled before the answer, on memory://", "memory://"),
        Scenario("sqlite", "SQLite", "the same on SQLite, synchronous=full", SQLITE),
        Scenario(
            "duplicates", "copies", "the same; every other request is a copy of an earlier one", SQLITE, order="copies"
        ),
        Scenario(
            "inbox", "inbox", "made durable on SQLite before the answer, handled by the same process", SQLITE, "inbox"
        ),
        Scenario(
            "overload",
            "overload",
            f"SQLite with {OVERLOAD * CONNECTIONS} connections; a refused one retries after {PAUSE_S * 1000:g} ms",
            SQLITE,
            connections=OVERLOAD * CONNECTIONS,
        ),
    )
}


@dataclass(frozen=True)
class Measured:
    """One scenario in one round."""

    rate: float  # 200 a second
    p50_ms: float  # of those
    p99_ms: float
    cpu_us: float  # of the server, for each 200
    sender_share: float  # of one processor, for each sending process
    senders: int
    answers: dict[str, int]  # by status
    duplicates: int  # 200 with that status
    lost: int  # connections
    in_flight: int  # concurrent deliveries in the service; not measured for hello
    rss_begin_mib: float
    rss_end_mib: float
    rss_max_mib: float
    handled_rate: float | None = None  # inbox items a second, while others are accepted
    emptied_rate: float | None = None  # inbox items a second, after the end of the load

    @property
    def refused(self) -> float:
        """Share of answers."""
        return 1 - self.answers.get("200", 0) / max(1, sum(self.answers.values()))


@dataclass
class ServiceBench:
    """A folder for servers, and signed requests for all of them."""

    folder: Path
    seconds: float
    warm_s: float
    processes: int = 1  # that send
    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    def prepare(self) -> int:
        """Make and sign the events. Returns the mean length of their bodies in bytes."""
        number = min(REQUESTS_MAX, round(RATE_MAX * (self.seconds + self.warm_s)))
        sign = signer("genesys", self.secret)

        def request(body: bytes) -> bytes:
            fields = "".join(f"{name}: {value}\r\n" for name, value in sign(body, str).items()).encode()
            return b"%b%bContent-Length: %d\r\n\r\n%b" % (head, fields, len(body), body)

        head = b"POST /events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        bodies = list(traffic.events(number))
        write_requests(self._requests, [request(body) for body in bodies])
        return sum(map(len, bodies)) // number

    def measure(self, scenario: Scenario) -> Measured:
        """One server, one load."""
        with TemporaryDirectory(prefix=f"{scenario.name}-", dir=self.folder) as own:
            with server(self._module(scenario, Path(own)), Path(own)) as running:
                with senders(self._jobs(scenario, running.port)) as sending:
                    return self._watch(scenario, running, sending)

    @property
    def _requests(self) -> Path:
        return self.folder / "requests"

    def _module(self, scenario: Scenario, folder: Path) -> list[str]:
        """The command of the server, as arguments for `python -m`."""
        if not scenario.ledger:
            return ["bench.service.hello"]
        (folder / "bench_app.py").write_text(APP.format(ledger=scenario.ledger), "utf-8")
        (folder / "semel.toml").write_text(SETTINGS.format(mode=scenario.mode), "utf-8")
        (folder / "secret").write_text(self.secret, "utf-8")
        return ["semel", "run", "bench_app:app", "--config", "semel.toml", "--port", "0"]

    def _jobs(self, scenario: Scenario, port: int) -> list[Job]:
        each = scenario.connections // self.processes
        return [
            Job(port, str(self._requests), scenario.order, each, PAUSE_S, part, self.processes)
            for part in range(self.processes)
        ]

    def _watch(self, scenario: Scenario, running: ServerProcess, sending: Senders) -> Measured:
        """Look at the server before, at the beginning and at the end. A busy one tells its numbers late, in a thread:
        the clock does not wait for it."""
        begin, end = sending.begin(self.warm_s, self.seconds)
        with ThreadPoolExecutor(max_workers=3) as looking:
            _sleep_until(begin - self.warm_s / 2)
            warm = looking.submit(_look, scenario, running)
            _sleep_until(begin)
            before, first = running.usage(), looking.submit(_look, scenario, running)
            _sleep_until(end)
            after, last = running.usage(), looking.submit(_look, scenario, running)
            seen = sending.seen()
        in_flight = round(warm.result().sum("semel_in_flight"))
        measured = _measured(scenario, running, seen, before, after, in_flight)
        if scenario.mode != "inbox":
            return measured
        rate = _handled_rate(first.result(), last.result())
        return replace(measured, handled_rate=rate, emptied_rate=_emptied_rate(scenario, running))


def _measured(
    scenario: Scenario,
    running: ServerProcess,
    seen: Sequence[Seen],
    before: Usage,
    after: Usage,
    in_flight: int,
) -> Measured:
    good_s = sorted(took for one in seen for took in one.good_s)
    trouble = next((one.trouble for one in seen if one.trouble), "")
    if not good_s or trouble:
        raise SemelError(f"{scenario.label}: the server answered {trouble or 'nothing'}\n{running.log}")
    seconds = max(one.ended_s for one in seen)
    answers: Counter[str] = sum((Counter(one.codes) for one in seen), Counter())
    return Measured(
        rate=len(good_s) / seconds,
        p50_ms=_percentile(good_s, 0.5) * 1000,
        p99_ms=_percentile(good_s, 0.99) * 1000,
        cpu_us=(after.cpu_s - before.cpu_s) / len(good_s) * 1e6,
        sender_share=max(one.cpu_s for one in seen) / seconds,
        senders=len(seen),
        answers=dict(answers),
        duplicates=sum(one.duplicates for one in seen),
        lost=sum(one.lost for one in seen),
        in_flight=in_flight,
        rss_begin_mib=before.rss_mib,
        rss_end_mib=after.rss_mib,
        rss_max_mib=after.rss_max_mib,
    )


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


# ----------------------------------------------------------------------------------------- metrics of the server


@dataclass(frozen=True)
class Page:
    """The text of /metrics and the time of its request."""

    at: float  # monotonic seconds
    text: str

    def sum(self, family: str, label: str = "") -> float:
        """The sum of all series of a family that have this label."""
        series = re.findall(rf"^{family}(?:\{{([^}}]*)\}})? (\S+)$", self.text, re.MULTILINE)
        return sum(float(value) for labels, value in series if label in labels)


def _look(scenario: Scenario, running: ServerProcess) -> Page:
    text = running.get("/metrics").decode() if scenario.ledger else ""
    return Page(time.monotonic(), text)


def _handled_rate(first: Page, last: Page) -> float:
    """Inbox items a second, from one page of metrics to the other."""
    done = [page.sum("semel_deliveries_total", 'outcome="done"') for page in (first, last)]
    return (done[1] - done[0]) / max(last.at - first.at, 0.001)


def _emptied_rate(scenario: Scenario, running: ServerProcess) -> float | None:
    """Inbox items a second, from now until the inbox is empty; None if there are too few to judge."""
    first = page = _look(scenario, running)
    while page.sum("semel_inbox_depth"):
        if page.at - first.at > EMPTY_S:
            raise SemelError(f"inbox: it was not empty after {EMPTY_S:g} s\n{running.log}")
        time.sleep(0.02)
        page = _look(scenario, running)
    return _handled_rate(first, page) if first.sum("semel_inbox_depth") >= ITEMS_MIN else None
