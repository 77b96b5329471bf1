"""The scenarios, the same for both stores, and the lines of their table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from pathlib import Path

from bench.outbox.adding import added
from bench.outbox.far_end import SLOW_S, Away
from bench.outbox.keeping import Full
from bench.outbox.plan import AIMED, BATCH, Figures, Line, Scenario, Sizes, Store, Tally
from bench.outbox.sending import (
    Send,
    add,
    by_client,
    by_hand,
    by_relay,
    carry,
    notifications,
    our_client,
    outbox_at,
    usual_client,
)
from bench.outbox.serving import asked_over_http
from bench.stores.plan import Sample
from bench.stores.timing import Watch, of_processes

from semel.cli.storm_load import run
from semel.ports import Outbox

USUAL, MANY = 16, 64  # concurrent requests: the default of a provider, and a higher limit

STATUS = {
    "status": "status",
    "status_busy": "status, busy",
    "http": "status over HTTP",
    "http_busy": "status over HTTP, busy",
}


class Measures:
    """All measurements on one store, while the store and the far end run."""

    def __init__(self, store: Store, away: Away, sizes: Sizes, folder: Path) -> None:
        self.store = store
        self._away = away
        self._sizes = sizes
        self._folder = folder
        far_end = of_processes(away.pid)
        self._watch = Watch(lambda: store.server() + far_end())
        self._full = Full(store, sizes)
        self.lines = self._lines()
        self.scenarios = self._scenarios()

    def remarks(self) -> list[str]:
        return [
            *self.store.remarks(),
            f"{self._sizes.finished:,} messages that are over were written in {self._full.fill_s:.0f} s",
        ]

    def _lines(self) -> list[Line]:
        few = "" if self._sizes.finished >= AIMED else f"{self._sizes.finished:,} messages are fewer than {AIMED:,}"
        sent = {f"relay_{MANY}": f"relay, {MANY}", f"relay_{USUAL}": f"relay, {USUAL}"}
        slow = {
            "relay_slow": f"relay, {USUAL}, {SLOW_S * 1000:g} ms",
            "loop_slow": f"loop by hand, {SLOW_S * 1000:g} ms",
        }
        alone = {f"client_{MANY}": f"client alone, {MANY}", "loop": "loop by hand", "usual": "loop with requests"}
        return [
            Line(f"relay_{MANY}.rate", sent[f"relay_{MANY}"], "/s", "loop.rate", at_least=5),
            Line(f"relay_{MANY}.rate", sent[f"relay_{MANY}"], "/s", "usual.rate", at_least=5),
            Line(f"relay_{USUAL}.rate", sent[f"relay_{USUAL}"], "/s", "loop.rate"),
            Line("relay_slow.rate", slow["relay_slow"], "/s", "loop_slow.rate"),
            Line(f"client_{MANY}.rate", alone[f"client_{MANY}"], "/s", "loop.rate"),
            Line("loop.rate", alone["loop"], "/s"),
            Line("usual.rate", alone["usual"], "/s"),
            Line("loop_slow.rate", slow["loop_slow"], "/s"),
            *[
                Line(f"{name}.{part}", label, f"µs {part}", f"loop.{part}" if part == "in all" and name in sent else "")
                for part in ("client", "servers", "in all")
                for name, label in {**sent, **alone}.items()
            ],
            *[Line(f"{name}.statements", label, "statements each") for name, label in sent.items()],
            *[Line(f"{name}.transactions", label, "transactions each") for name, label in sent.items()],
            Line("batch.statements", f"one batch of {BATCH}", "statements each"),
            Line("add_1.statements", "add 1", "statements", at_most=2),
            Line("add_100.statements", "add 100", "statements", at_most=2),
            Line("add_1.us", "add 1", "µs each", "insert_1.us"),
            Line("add_100.us", "add 100", "µs each", "insert_100.us"),
            Line("insert_1.us", "insert 1", "µs each"),
            Line("insert_100.us", "insert 100", "µs each"),
            Line("take_many.us", "take, many are over", "µs each", "take_few.us", at_most=1.5, unjudged=few),
            Line("take_few.us", "take, few are over", "µs each"),
            *[
                Line(f"{name}.{part}", label, f"ms {part}", at_most=10 if part == "p99" else None, unjudged=few)
                for name, label in STATUS.items()
                for part in ("p50", "p99")
            ],
        ]

    def _scenarios(self) -> list[Scenario]:
        return [
            Scenario("loop by hand", "select one, send it, update it, commit; one by one", self._loop),
            Scenario("loop with requests", "the same, with the client that most loops have, not ours", self._usual),
            Scenario("relay", "what is due, until it is written what came of the last one", self._relay(MANY)),
            Scenario(f"relay, {USUAL}", "the same, with a provider's default concurrency", self._relay(USUAL)),
            Scenario("a slow provider", f"relay and loop, where each answer takes {SLOW_S * 1000:g} ms", self._slow),
            Scenario("client alone", "the provider's adapter, without any store", self._client),
            Scenario("statements", "counted in a run of its own, which is not timed", self._counted),
            Scenario("added", "in a transaction of the caller's, beside one INSERT of theirs", self._added),
            Scenario("taken", f"{BATCH} at a time, from both by turns", lambda: run(self._full.taken())),
            Scenario(
                "status", "by recipient and kind, and by business key; busy: a relay sends meanwhile", self._status
            ),
        ]

    # -------------------------------------------------------------------------------------------------------- sending

    def _loop(self) -> Figures:
        return _named("loop", run(self._by_hand(our_client, self._away, self._sizes.looped)))

    def _usual(self) -> Figures:
        return _named("usual", run(self._by_hand(usual_client, self._away, self._sizes.looped)))

    def _slow(self) -> Figures:
        slow = self._away.slow()
        looped = run(self._by_hand(our_client, slow, self._sizes.added // 4))
        relayed = self._relayed(USUAL, slow, self._sizes.looped)
        return {"loop_slow.rate": looped.rate, "relay_slow.rate": relayed.rate}

    async def _by_hand(
        self, sender: Callable[[Away], AbstractAsyncContextManager[Send]], away: Away, number: int
    ) -> Sample:
        async with self.store.queue(notifications(number)) as queue:
            return await by_hand(self._watch, queue, away, number, sender)

    def _client(self) -> Figures:
        measured = by_client(self._watch, self._away, self._sizes.relayed, MANY)
        return _named(f"client_{MANY}", run(measured))

    def _relay(self, concurrency: int) -> Callable[[], Figures]:
        return lambda: _named(f"relay_{concurrency}", self._relayed(concurrency, self._away, self._sizes.relayed))

    def _relayed(self, concurrency: int, away: Away, number: int) -> Sample:
        async def measure(url: str) -> Sample:
            async with outbox_at(url) as outbox:
                await add(outbox, notifications(number))
                return await by_relay(self._watch, outbox, away, number, concurrency)

        with self._new() as url:
            return run(measure(url))

    def _counted(self) -> Figures:
        found: dict[str, float] = {}
        for concurrency in (MANY, USUAL):
            tally, number = self._tally(self._sizes.looped, partial(self._send_all, concurrency))
            found[f"relay_{concurrency}.statements"] = tally.statements / number
            found[f"relay_{concurrency}.transactions"] = tally.transactions / number
        tally, number = self._tally(BATCH, lambda outbox: carry(outbox, BATCH))
        return {**found, "batch.statements": tally.statements / number}

    async def _send_all(self, concurrency: int, outbox: Outbox) -> int:
        await by_relay(self._watch, outbox, self._away, self._sizes.looped, concurrency)
        return self._sizes.looped

    def _tally(self, number: int, work: Callable[[Outbox], Awaitable[int]]) -> tuple[Tally, int]:
        """The statements sent to a store with this number of messages, and the number of messages they handled."""

        async def prepare(url: str) -> None:
            async with outbox_at(url) as outbox:
                await add(outbox, notifications(number))

        async def count(url: str) -> int:
            async with outbox_at(url) as outbox:
                return await work(outbox)

        with self._new() as url:
            run(prepare(url))
            with self.store.counting(url) as tally:
                done = run(count(url))
        return tally, done

    # ---------------------------------------------------------------------------------------------- adding and asking

    def _added(self) -> Figures:
        async def measure(url: str) -> Figures:
            async with outbox_at(url) as outbox:
                await add(outbox, notifications(1))  # its first use creates its tables
            async with self.store.caller(url) as caller:
                return await added(caller, self._sizes.added, 1)

        with self._new() as url:
            return run(measure(url))

    @contextmanager
    def _new(self) -> Iterator[str]:
        url = self.store.new()
        try:
            yield url
        finally:
            self.store.drop(url)

    def _status(self) -> Figures:
        return {
            **run(self._full.asked()),
            **run(self._full.asked_meanwhile(self._away)),
            **asked_over_http(self._full, self._away, self._folder),
        }


def _named(name: str, sample: Sample) -> Figures:
    """Processor time is reported beside the rate, because other load on the machine changes it less."""
    return {
        f"{name}.rate": sample.rate,
        f"{name}.client": sample.cpu_us,
        f"{name}.servers": sample.server_us,
        f"{name}.in all": sample.cpu,
    }
