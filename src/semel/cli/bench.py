"""`semel bench`: measures every scenario once in each round, and compares within the round."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Protocol, cast

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from semel import wiring
from semel.app import LEASE_S, RETENTION_S, Semel
from semel.cli.options import Json
from semel.testing import traffic
from semel.values import keys as event_keys
from semel.values.errors import ConfigError
from semel.values.key import Namespace, content_digest

TOPIC = "v2.detail.events.**"
BATCH = 100  # deliveries of one process_many, as a worker receives them
CALLERS = 64  # concurrent webhooks
GROWTH_EVENTS = 20_000  # over which the memory growth is measured
SCALE = 5  # the work of a round, compared with --quick
WARM_BATCHES = 3  # not timed: they prepare statements and fill caches

NOT_MEASURED = "not measured: add --peers bench/peers.py"


@dataclass(frozen=True)
class Scenario:
    """One measurement. `peer`: it needs --peers; `keys`: it needs the ledger with many keys."""

    name: str
    label: str
    unit: str
    meaning: str
    peer: bool = False
    keys: bool = False


@dataclass(frozen=True)
class Comparison:
    """One line of the table: a scenario, alone or compared with another of the same round, and its target."""

    scenario: str
    against: str = ""
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class BenchResult:
    """A comparison with its numbers."""

    scenario: str
    label: str
    unit: str
    median: float
    values: list[float]
    against: str
    ratio: float | None
    target: str
    verdict: str  # ok, below, or empty without a target


@dataclass
class BenchReport:
    rounds: int
    keys: int
    python: str
    machine: str
    findings: list[BenchResult] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # why a scenario was not measured
    fill_s: float = 0.0


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("envelope_and_key", "envelope and key", "µs", "CPU from the bytes of a 1.4 KB event to its digest"),
        Scenario("importing", "import semel", "ms", "above the start of bare Python"),
        Scenario("importing_all", "import Semel", "ms", "the app class with its imports, above bare Python"),
        Scenario("importing_asyncio", "import asyncio", "ms", "the part of it that every async program has"),
        Scenario("one_at_a_time", "one caller", "/s", "process, one event after the other"),
        Scenario("callers", f"{CALLERS} callers", "/s", "process, called concurrently"),
        Scenario("batches", "batches", "/s", f"process_many of {BATCH} new events"),
        Scenario(
            "bare_sql",
            "bare SQL",
            "/s",
            f"claim, commit, settle, commit of {BATCH} rows with a record's columns",
            peer=True,
        ),
        Scenario("clustered_sql", "clustered SQL", "/s", "bare SQL on a table WITHOUT ROWID", peer=True),
        Scenario("slim_sql", "slim SQL", "/s", "bare SQL with five columns", peer=True),
        Scenario(
            "validated_loop", "pydantic loop", "/s", "a validating model and bare SQL, one event at a time", peer=True
        ),
        Scenario("batches_on_many_keys", "batches, full", "/s", "on a ledger with many settled keys", keys=True),
        Scenario(
            "memory_growth",
            "memory growth",
            "MiB",
            "over many events on that ledger, with full caches",
            keys=True,
        ),
    )
}
COMPARISONS = (
    Comparison("envelope_and_key", at_most=3.0),
    Comparison("importing", at_most=60.0),
    Comparison("importing_all"),
    Comparison("importing_asyncio"),
    Comparison("one_at_a_time", "validated_loop"),
    Comparison("callers", "one_at_a_time", at_least=15.0),
    Comparison("callers", "validated_loop"),
    Comparison("batches", "validated_loop"),
    Comparison("batches", "bare_sql", at_least=0.7),
    Comparison("batches", "clustered_sql"),
    Comparison("batches", "slim_sql"),
    Comparison("batches_on_many_keys", "batches", at_least=0.6),
    Comparison("memory_growth"),
    Comparison("bare_sql"),
    Comparison("clustered_sql"),
    Comparison("slim_sql"),
    Comparison("validated_loop"),
)
ONCE = "memory_growth"  # measured in the last round only: it is not a rate


def register(app: typer.Typer) -> None:
    app.command()(bench)


def bench(
    rounds: Annotated[
        int, typer.Option(min=1, max=100, help="Measurements of each scenario; the table shows medians.")
    ] = 5,
    keys: Annotated[
        int,
        typer.Option(min=0, max=100_000_000, help="Settled keys in the large ledger, about 300 bytes of disk each."),
    ] = 200_000,
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the work in each round: less precise.")] = False,
    peers: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Python file with programs for comparison: bench/peers.py."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="The folder of the databases; by default a temporary one.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure Semel on this machine against minimal programs written by hand.

    Most targets are ratios, because rates depend on the machine. A missed target is shown as "below" and is not an
    error. If temporary files are in memory here, pass a --folder on a disk: commits in memory cost nothing.
    """
    report = run(rounds, keys, quick, peers, folder, Console(stderr=True))
    if as_json:
        typer.echo(to_json(report))
        return
    Console().print(as_table(report))
    typer.echo(legend(report))


def run(rounds: int, keys: int, quick: bool, peers: Path | None, folder: Path | None, console: Console) -> BenchReport:
    """Measure. With many keys, the folder temporarily contains several GB."""
    report = BenchReport(rounds, keys, platform.python_version(), f"{platform.system()} {platform.machine()}")
    with tempfile.TemporaryDirectory(prefix="semel-bench-", dir=folder) as work:
        check_disk(Path(work), keys)
        measures = Bench(Path(work), load_peers(peers) if peers else None, quick)
        names = _selected(report, peers is not None, keys)
        values: dict[str, list[float]] = {name: [] for name in names}
        with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
            if keys:
                task = progress.add_task(f"settling {keys:,} keys", total=keys)
                measures.many_keys = f"sqlite:///{Path(work, 'many.db')}"
                report.fill_s = fill(measures.many_keys, keys, lambda size: progress.advance(task, size))
            task = progress.add_task("measuring", total=rounds * len(names))
            for number in range(rounds):
                for name in names:
                    progress.update(task, description=f"round {number + 1}: {SCENARIOS[name].label}")
                    if name != ONCE or number == rounds - 1:
                        _measure(name, measures, values, report)
                    progress.advance(task)
                if not console.is_terminal:
                    console.print(f"round {number + 1} of {rounds} done")
        report.findings = [_compare(line, values) for line in COMPARISONS if values.get(line.scenario)]
    return report


def _selected(report: BenchReport, peers: bool, keys: int) -> list[str]:
    for scenario in SCENARIOS.values():
        if scenario.peer and not peers:
            report.missing[scenario.name] = NOT_MEASURED
        elif scenario.keys and not keys:
            report.missing[scenario.name] = "not measured: --keys is 0"
    return [name for name in SCENARIOS if name not in report.missing]


def _measure(name: str, bench: Bench, values: dict[str, list[float]], report: BenchReport) -> None:
    if name in report.missing:
        return
    try:
        values[name].append(getattr(bench, name)())
    except ImportError as error:  # a dependency of a peer, such as pydantic
        report.missing[name] = f"not measured: {error}"


def _compare(line: Comparison, values: dict[str, list[float]]) -> BenchResult:
    scenario, own, other = SCENARIOS[line.scenario], values[line.scenario], values.get(line.against)
    middle = median(own)
    ratio = median([value / base for value, base in zip(own, other, strict=True)]) if other else None
    judged = ratio if line.against else middle
    target = verdict = ""
    if line.at_least is not None:
        target = f"≥ {line.at_least:g} ×"
        verdict = "" if judged is None else "ok" if judged >= line.at_least else "below"
    elif line.at_most is not None:
        target = f"≤ {line.at_most:g} {scenario.unit}"
        verdict = "" if judged is None else "ok" if judged <= line.at_most else "below"
    return BenchResult(line.scenario, scenario.label, scenario.unit, middle, own, line.against, ratio, target, verdict)


def to_json(report: BenchReport) -> str:
    return json.dumps(asdict(report), ensure_ascii=False, indent=2)


def as_table(report: BenchReport) -> Table:
    table = Table(title=f"Semel on SQLite, synchronous=full: medians of {report.rounds} rounds")
    table.add_column("scenario", no_wrap=True)
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("compared with", no_wrap=True)
    table.add_column("target", no_wrap=True)
    table.add_column("", no_wrap=True)
    before = ""
    for finding in report.findings:
        is_repeated = finding.scenario == before
        before = finding.scenario
        table.add_row(
            "" if is_repeated else finding.label,
            "" if is_repeated else f"{_number(finding.median)} {finding.unit}",
            "" if finding.ratio is None else f"{_number(finding.ratio)} ×",
            SCENARIOS[finding.against].label if finding.against else "",
            finding.target,
            {"ok": "[green]ok[/]", "below": "[yellow]below[/]"}.get(finding.verdict, ""),
        )
    return table


def legend(report: BenchReport) -> str:
    """Explain the names in the table and the missing scenarios."""
    measured = {finding.scenario for finding in report.findings}
    return "\n".join(
        [
            f"Python {report.python}, {report.machine}. /s: events a second; ratios: medians over the rounds.",
            *[f"  {s.label}: {s.meaning}" for s in SCENARIOS.values() if s.name in measured],
            *([f"  many settled keys: {report.keys:,}, written in {report.fill_s:.1f} s"] if report.keys else []),
            *[f"  {SCENARIOS[name].label}: {why}" for name, why in report.missing.items()],
        ]
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


# The measurements.

Row = tuple[Any, ...]


class Peers(Protocol):
    """The functions of bench/peers.py, which is not part of the package."""

    def bare_sql(self, path: str, batches: Sequence[Sequence[Row]]) -> float: ...
    def clustered_sql(self, path: str, batches: Sequence[Sequence[Row]]) -> float: ...
    def slim_sql(self, path: str, batches: Sequence[Sequence[Row]]) -> float: ...
    def validated_loop(self, path: str, bodies: Sequence[bytes]) -> float: ...


def load_peers(path: Path) -> Peers:
    spec = spec_from_file_location("semel_bench_peers", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"--peers {path}: expected a Python file such as bench/peers.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Peers, module)


class Bench:
    """The measurements, one method for each scenario. The preparation (events, an empty ledger) is not timed."""

    def __init__(self, folder: Path, peers: Peers | None, quick: bool) -> None:
        self._folder = folder
        self._peers = peers
        self._scale = 1 if quick else SCALE
        self._names = count()
        self.many_keys: str | None = None  # URL of the ledger that is filled once and used in every round

    # ------------------------------------------------------------------------------------------------- without a store

    def envelope_and_key(self) -> float:
        """CPU µs per event, from bytes to digest."""
        bodies = self._bodies(1_000)
        namespace = Namespace("", "bench")
        passes = 10 * self._scale
        gc.collect()
        started = time.process_time()
        for _ in range(passes):
            for body in bodies:
                event = wiring.decode(body, tenant="", origin="", id_path=None, type_path=None, headers=None)
                namespace.digest(event_keys.checked(event_keys.event(event)))
        return (time.process_time() - started) / (passes * len(bodies)) * 1e6

    def importing(self) -> float:
        """Milliseconds of `import semel`, without those of a bare interpreter."""
        return self._above_bare_python("import semel")

    def importing_all(self) -> float:
        """Milliseconds of the import of the app class. Most of them are for asyncio."""
        return self._above_bare_python("from semel import Semel")

    def importing_asyncio(self) -> float:
        return self._above_bare_python("import asyncio")

    def _above_bare_python(self, code: str) -> float:
        """Compare the medians of interleaved starts."""
        bare, full = [], []
        for _ in range(3 * self._scale):
            bare.append(_seconds_of("pass"))
            full.append(_seconds_of(code))
        return (sorted(full)[len(full) // 2] - sorted(bare)[len(bare) // 2]) * 1e3

    # ------------------------------------------------------------------------------------------------------ with SQLite

    def one_at_a_time(self) -> float:
        """Events a second, one after the other: each has its own two commits."""
        bodies = self._bodies(60 * self._scale)

        async def work(app: Semel) -> None:
            for body in bodies:
                await app.process(body)

        return len(bodies) / self._on_ledger(self._new_ledger(), work)

    def callers(self) -> float:
        """Events a second from many concurrent callers of `process`."""
        bodies = self._bodies(CALLERS * 20 * self._scale)

        async def work(app: Semel) -> None:
            queue = iter(bodies)

            async def caller() -> None:
                for body in queue:
                    await app.process(body)

            await asyncio.gather(*[caller() for _ in range(CALLERS)])

        return len(bodies) / self._on_ledger(self._new_ledger(), work)

    def batches(self) -> float:
        """Events a second through `process_many`."""
        return self._through_batches(self._new_ledger())

    def batches_on_many_keys(self) -> float:
        """The same on the ledger with many keys, which was closed and so checkpointed."""
        assert self.many_keys is not None
        return self._through_batches(self.many_keys)

    def memory_growth(self) -> float:
        """Growth of this process in MiB while it processes events on the ledger with many keys."""
        assert self.many_keys is not None
        growth = 0.0

        async def work(app: Semel) -> None:
            nonlocal growth
            await self._stream(app)  # fills SQLite's page cache up to its limit
            before = private_mib()
            await self._stream(app)
            growth = private_mib() - before

        self._on_ledger(self.many_keys, work)
        return growth

    async def _stream(self, app: Semel) -> None:
        for _ in range(GROWTH_EVENTS * self._scale // SCALE // (10 * BATCH)):
            await through_batches(app, self._batches_of_bodies(10))
        gc.collect()

    def _through_batches(self, ledger: str) -> float:
        batches = self._batches_of_bodies(20 * self._scale)
        return BATCH * len(batches) / self._on_ledger(ledger, lambda app: through_batches(app, batches))

    def _on_ledger(self, ledger: str, work: Callable[[Semel], Awaitable[None]]) -> float:
        """Return the seconds of `work`, after a few batches that are not timed."""
        warm = self._batches_of_bodies(WARM_BATCHES)

        async def run() -> float:
            async with Semel(ledger) as app:
                app.on(TOPIC, name="bench")(handle)
                await through_batches(app, warm)
                return await timed(work(app))

        return asyncio.run(run())

    # ------------------------------------------------------------------------------------------------------- the peers

    def bare_sql(self) -> float:
        """Events a second of bare two-phase SQL with the columns of a record."""
        return self._run_peer("bare_sql")

    def clustered_sql(self) -> float:
        """The same, WITHOUT ROWID."""
        return self._run_peer("clustered_sql")

    def slim_sql(self) -> float:
        """The same with the columns that a decision needs."""
        return self._run_peer("slim_sql")

    def _run_peer(self, name: str) -> float:
        tokens = count(1)
        bodies = self._batches_of_bodies(20 * self._scale)
        batches = [[_row(body, next(tokens)) for body in batch] for batch in bodies]  # bare SQL decodes nothing
        gc.collect()
        seconds: float = getattr(self._peers, name)(self._new_path(), batches)
        return BATCH * len(batches) / seconds

    def validated_loop(self) -> float:
        """Events a second of the usual loop: validate, claim, commit, settle, commit."""
        assert self._peers is not None
        bodies = self._bodies(60 * self._scale)
        gc.collect()
        return len(bodies) / self._peers.validated_loop(self._new_path(), bodies)

    # ------------------------------------------------------------------------------------------- events and files

    def _bodies(self, number: int) -> list[bytes]:
        return list(traffic.events(number, seed=next(self._names)))

    def _new_ledger(self) -> str:
        return f"sqlite:///{self._new_path()}"

    def _new_path(self) -> str:
        return str(self._folder / f"{next(self._names)}.db")

    def _batches_of_bodies(self, number: int) -> list[list[bytes]]:
        bodies = self._bodies(number * BATCH)
        return [bodies[at : at + BATCH] for at in range(0, len(bodies), BATCH)]


async def handle(event: Any, ctx: Any) -> None:
    """An empty handler: only Semel is measured."""


async def through_batches(app: Semel, batches: Sequence[Sequence[bytes]]) -> None:
    for batch in batches:
        for outcome in await app.process_many(batch):
            if outcome.status != "done":
                raise AssertionError(f"the measurement needs new events: {outcome}")


async def timed(work: Awaitable[None]) -> float:
    gc.collect()
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


def _row(body: bytes, token: int) -> Row:
    event = wiring.decode(body, tenant="", origin="", id_path=None, type_path=None, headers=None)
    parts = event_keys.checked(event_keys.event(event))
    digest = Namespace("", "bench").digest(parts)
    until = int((time.time() + LEASE_S + RETENTION_S) * 1000)
    return (digest, token, until, 1, content_digest(event.payload()), "", "bench", "|".join(parts))


def _seconds_of(code: str) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return time.perf_counter() - started


# A ledger with millions of settled keys, filled by SQL through `ctx.tx`.

PIECE = 250_000  # keys in one transaction: the page cache holds them while they are sorted
KEY_BYTES = 600  # of disk per key while the file is filled, with its WAL; measured: 420
SPARE_BYTES = 2 * 1024**3  # for the other databases of the run
TEXT_BYTES = 75  # the text of a key has twice as many hexadecimal digits

RECORDS = """
    with recursive piece (i) as (select 1 union all select i + 1 from piece limit :count)
    insert into semel_record (id, digest, outcome, fingerprint, attempts, settled_ms, expires_ms, tenant, handler,
                              key_text)
    select :token + i, randomblob(16), 1, randomblob(16), 1, :at, :expires, '', 'bench', hex(randomblob(:text_bytes))
    from piece
"""
DONE = """
    insert into semel_done (digest, record_id, expires_ms) select digest, id, expires_ms from semel_record
    where id > :token and id <= :token + :count order by digest
"""


def fill(ledger: str, number: int, progress: Callable[[int], None]) -> float:
    """Settle random keys and checkpoint the file. Returns the seconds."""
    started = time.perf_counter()
    asyncio.run(_fill(ledger, number, progress))
    return time.perf_counter() - started


async def _fill(ledger: str, number: int, progress: Callable[[int], None]) -> None:
    sizes = [PIECE] * (number // PIECE) + [number % PIECE] * (number % PIECE > 0)
    remaining = iter(sizes)

    async with Semel(ledger) as app:

        @app.on("**", effect="transaction", timeout=None, lease=3600)
        async def settle_piece(event: Any, ctx: Any) -> None:
            _settle_piece(ctx.tx, next(remaining))

        for size, body in zip(sizes, traffic.events(len(sizes), seed=-1), strict=True):
            outcome = await app.process(body)
            if outcome.status != "done":
                raise RuntimeError(f"cannot fill the ledger: {outcome.reason}")
            progress(size)


def _settle_piece(tx: Any, size: int) -> None:
    ((token,),) = tx.execute("select value from semel_meta where name = 'token'")
    now_ms = time.time_ns() // 1_000_000
    piece = {"token": token, "count": size, "text_bytes": TEXT_BYTES}
    tx.execute(RECORDS, {**piece, "at": now_ms, "expires": now_ms + int(RETENTION_S * 1000)})
    tx.execute(DONE, piece)
    tx.execute("update semel_meta set value = value + ? where name = 'token'", (size,))


def check_disk(folder: Path, number: int) -> None:
    needed = number * KEY_BYTES + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            f"{number:,} keys need about {needed / 1e9:.1f} GB in {folder}, {free / 1e9:.1f} GB are free: "
            "pass fewer --keys, or another --folder"
        )


def private_mib() -> float:
    """Private memory of this process, without the pages of the mapped database file."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon"))
    except (OSError, StopIteration):  # not Linux: only the peak is available
        import resource

        unit = 1024**2 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
