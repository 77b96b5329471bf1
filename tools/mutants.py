"""Changes one operator at a random place of the safety packages, and runs the tests that should notice it.

    python tools/mutants.py --seed 7 --count 20

Each mutant is one changed operator, constant or deleted call in a copy of the package. A survivor is a mutant that no
test noticed: either a law is missing, or the change has no effect (write it into EQUIVALENT with the reason). The
catalogue in `tests/mutants` holds bugs that somebody thought of; this finds the others.

The first run records which functions each test enters. A mutant is then run against the tests that enter its function,
or that use its SQL statement, the quickest first. One that all of them let pass is run against the tests of its area,
with the long ones and those that start processes.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "semel"
REACH = ROOT / ".venv" / "mutants-reach.json"  # which functions each test enters; --record writes it anew
QUICK_S = 30  # of tests, as long as they took when they were recorded; the others run last
START_S = 0.1  # a test costs this much more than its own time
TIMEOUT_S = 900  # a mutant that makes the tests wait for ever is noticed, too
TEST_TIMEOUT_S = 90  # the same for one test; long ones have their own limit
ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout")
NOTICED = 1  # pytest's exit code for failed tests; 2 to 5 mean that nothing was tested

# Recorded once. Tests that start processes are missing: what happens in a child process is not seen.
RECORDED = ("tests/envelopes", "tests/engine", "tests/ledgers", "tests/outbox")

# The first prefix that matches a file names the tests that a mutant must survive in the end.
TESTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ledgers/memory.py", ("tests/ledgers/test_memory.py", "tests/engine")),
    ("ledgers/sqlite/outbox", ("tests/outbox", "tests/proof/outbox")),
    (
        "ledgers/sqlite",
        ("tests/ledgers/test_sqlite*.py", "tests/ledgers/test_*machine*.py", "tests/proof/test_*.py"),
    ),
    ("ledgers/postgres", ("tests/ledgers/postgres",)),
    ("ledgers/redis", ("tests/ledgers/redis",)),
    ("ledgers/dynamodb", ("tests/ledgers/dynamodb",)),
    ("core/relay.py", ("tests/outbox", "tests/proof/outbox", "tests/service/relaying")),
    ("core/provider_calls.py", ("tests/outbox", "tests/proof/outbox", "tests/service/relaying")),
    ("core/resend.py", ("tests/outbox",)),
    ("core/", ("tests/engine", "tests/proof/test_*.py", "tests/service", "tests/stores/dead_letter_store")),
    ("values/delivery_state.py", ("tests/outbox",)),
    ("values/", ("tests/envelopes", "tests/engine", "tests/settings", "tests/test_guarantees.py")),
    ("envelopes", ("tests/envelopes", "tests/service/test_*.py")),
)
VALUES = ("claim", "claim_rules", "delivery_state", "effect", "key", "keys", "outcome", "retry")

# Changes that were looked at and have no effect: (file below src/semel, the line as it is, the line changed) -> why.
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "envelopes/decode.py",
        "if len(raw) > DOCUMENT_MAX_BYTES:",
        "if len(raw) >= DOCUMENT_MAX_BYTES:",
    ): "check_size, which is called then, compares again",
    (
        "ledgers/dynamodb/catalog.py",
        "if len(found) > 2 * query.limit + 1000:",
        "if len(found) > 2 * query.limit - 1000:",
    ): "the list is cut to the newest more often, and once more at the end",
    (
        "ledgers/sqlite/database.py",
        "if not self._lost or self._saved or file_identity(self._path) != self._file:",
        "if not self._lost and self._saved or file_identity(self._path) != self._file:",
    ): "it is called when a check has failed; otherwise the file itself is another one",
    (
        "values/keys.py",
        "if not plain or len(text) > PART_MAX_CHARS:",
        "if not plain or len(text) >= PART_MAX_CHARS:",
    ): "_refuse, which is called then, compares again",
    (
        "ledgers/sqlite/claims.sql",
        "select id, digest, aliases, outcome <> 1 or attempts > 1 or decided_ms is not null,",
        "select id, digest, aliases, outcome = 1 or attempts > 1 or decided_ms is not null,",
    ): "only done and decided records are over: of the done ones nothing more is there to delete",
    (
        "core/relay.py",
        "if (early_ms := dispatch.slot_ms - now_ms()) > 0:",
        "if (early_ms := dispatch.slot_ms - now_ms()) >= 0:",
    ): "a sleep of 0 s",
    (
        "core/heartbeat.py",
        "elif run.times_out is not None and now >= run.times_out:",
        "elif run.times_out is not None and now > run.times_out:",
    ): "one tick later, if a clock of nanoseconds meets the moment",
    (
        "core/routing.py",
        "if len(self._decided) >= REMEMBERED_MAX:",
        "if len(self._decided) > REMEMBERED_MAX:",
    ): "the cache is emptied one entry later",
    (
        "core/engine.py",
        "run.granted = Granted(Lease(claim, NO_TOKEN), attempt=1, takeover=False, age_ms=0)",
        "run.granted = Granted(Lease(claim, NO_TOKEN), attempt=1, takeover=True, age_ms=0)",
    ): "no code reads the takeover of a run without the ledger",
}

SWAPPED_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
UNCHANGED = ("strict", "frozen", "gc", "kw_only", "eq", "slots")
SWAPPED_SQL = (
    (r"(?<=\s)and(?=\s)", "or"),
    (r"(?<=\s)or(?=\s)", "and"),
    (r"(?<=\s)<(?=\s)", "<="),
    (r"(?<=\s)>(?=\s)", ">="),
    (r"(?<=\s)<=(?=\s)", "<"),
    (r"(?<=\s)>=(?=\s)", ">"),
    (r"(?<=\s)<>(?=\s)", "="),
    (r"(?<=\s)~=(?=\s)", "=="),
    (r"(?<=\s)\+ 1\b", "+ 0"),
)


@dataclass(frozen=True)
class Site:
    """One place and its change, as offsets into the text of a file."""

    file: str  # below src/semel
    start: int
    end: int
    new: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same mutants of the same code")
    parser.add_argument("--count", type=int, default=20, help="how many mutants to try")
    parser.add_argument("--under", default="", help="only files below this path of src/semel, e.g. core/")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants at a time")
    parser.add_argument("--quick", action="store_true", help="do not run the tests of the area against survivors")
    parser.add_argument("--record", action="store_true", help="record anew which functions each test enters")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object per mutant")
    args = parser.parse_args()
    sites = [site for site in all_sites() if site.file.startswith(args.under)]
    chosen = random.Random(args.seed).sample(sites, min(args.count, len(sites)))
    tried = [site for site in chosen if not is_equivalent(site)]
    if args.list:
        for site in chosen:
            report(Result(site, None if site in tried else EQUIVALENT_MARK, 0), args.json)
        return 0
    if args.record or not REACH.is_file():
        record()
    survivors = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for result in pool.map(lambda site: run(site, args.quick), tried):
            survivors += result.noticed_by is None
            report(result, args.json)
    print(
        f"{len(tried) - survivors} of {len(tried)} mutants noticed, {len(chosen) - len(tried)} have no effect,"
        f" seed {args.seed}, {len(sites):,} places",
        file=sys.stderr,
    )
    return 1 if survivors else 0


def all_sites() -> list[Site]:
    found: list[Site] = []
    for path in sorted(PACKAGE.rglob("*")):
        file = path.relative_to(PACKAGE).as_posix()
        if not any(file.startswith(prefix) for prefix, _ in TESTS):
            continue
        if file.startswith("values/") and path.stem not in VALUES:
            continue
        if path.suffix == ".py":
            found += python_sites(file, path.read_text())
        elif path.suffix in (".sql", ".lua"):
            found += [site for site in sql_sites(file, path.read_text()) if not is_replaced(site)]
    return found


def is_replaced(site: Site) -> bool:
    """The mutant is in a function of SQL that a later migration defines anew, or under its next number."""
    path = PACKAGE / site.file
    if path.parent.name != "schema":
        return False
    name = next(reversed([name for name, _ in sql_units(path.read_bytes()[: site.start].decode())]), "")
    base, _, number = name.rpartition("_")
    later = {unit for file in path.parent.glob("*.sql") if file > path for unit, _ in sql_units(file.read_text())}
    return name in later or (number.isdigit() and f"{base}_{int(number) + 1}" in later)


def python_sites(file: str, source: str) -> Iterator[Site]:
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    text = source.encode()

    def place(node: ast.AST) -> tuple[int, int]:
        start = lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def between(left: ast.AST, right: ast.AST, old: bytes, new: str) -> Iterator[Site]:
        start, end = place(left)[1], place(right)[0]
        at = text.find(old, start, end)
        if at >= 0:
            yield Site(file, at, at + len(old), new)

    tree = ast.parse(source)
    # `strict=True` of zip checks our own code, and options of a class (`frozen=True`) are not behaviour.
    calls = [node for node in ast.walk(tree) if isinstance(node, (ast.Call, ast.ClassDef))]
    options = {id(keyword.value) for node in calls for keyword in node.keywords if keyword.arg in UNCHANGED}
    for node in ast.walk(tree):
        if id(node) in options:
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            old = ast.unparse(ast.Compare(ast.Name("a"), node.ops, [ast.Name("b")]))[2:-2].encode()
            yield from between(node.left, node.comparators[0], old, SWAPPED_COMPARISONS[type(node.ops[0])])
        elif isinstance(node, ast.BoolOp):
            old, new = (b"and", "or") if isinstance(node.op, ast.And) else (b"or", "and")
            yield from between(node.values[0], node.values[1], old, new)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield Site(file, place(node)[0], place(node.operand)[0], "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield Site(file, *place(node), str(not node.value))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            old, new = (b"+", "-") if isinstance(node.op, ast.Add) else (b"-", "+")
            yield from between(node.left, node.right, old, new)
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, (ast.Call, ast.Await))
            and not ast.unparse(node.value).startswith("log")
        ):
            yield Site(file, *place(node), "pass")


def sql_sites(file: str, source: str) -> Iterator[Site]:
    for line in re.finditer(r"[^\n]+", source):
        code = re.sub(r"'[^']*'|create or replace", lambda text: " " * len(text[0]), line[0].split("--")[0])
        for pattern, new in SWAPPED_SQL:
            for match in re.finditer(pattern, code):
                start = len(source[: line.start() + match.start()].encode())
                yield Site(file, start, start + len(match[0].encode()), new)


def changed(site: Site) -> tuple[str, str, str]:
    """The whole file with the change, and the line before and after it."""
    text = (PACKAGE / site.file).read_bytes()
    mutant = text[: site.start] + site.new.encode() + text[site.end :]
    begin = text.rfind(b"\n", 0, site.start) + 1
    old_end = text.find(b"\n", site.end)
    new_end = mutant.find(b"\n", site.start + len(site.new))
    return mutant.decode(), text[begin:old_end].decode().strip(), mutant[begin:new_end].decode().strip()


def is_equivalent(site: Site) -> bool:
    _, old, new = changed(site)
    return (site.file, old, new) in EQUIVALENT


def record() -> None:
    """Run the tests without a mutant. A test that fails here is not asked about mutants."""
    with tempfile.TemporaryDirectory(prefix="semel-reach-") as folder:
        out = Path(folder) / "reach.json"
        path = f"{ROOT / 'tools'}{os.pathsep}{ROOT / 'src'}"
        environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": path, "SEMEL_MUTANTS_REACH": str(out)}
        command = [*PYTEST, "-p", "mutants_reach", *RECORDED]
        subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=False)
        shutil.copyfile(out, REACH)


@cache
def reach() -> dict[str, tuple[float, list[str]]]:
    """Test -> its seconds, and the functions it enters as `core/relay.py Relay._carry`."""
    recorded: dict[str, tuple[float, list[str]]] = json.loads(REACH.read_text())
    return recorded


@cache
def reached_by() -> dict[str, set[str]]:
    """Function, or file -> the tests that enter it."""
    tests: dict[str, set[str]] = defaultdict(set)
    for test, (_, functions) in reach().items():
        for function in functions:
            tests[function].add(test)
            tests[function.partition(" ")[0]].add(test)
    return tests


def selected(site: Site) -> list[str]:
    """The recorded tests that can notice the mutant: the quickest, and those that enter little else.

    They come file by file, so that the fixtures of a file are made once.
    """
    places = functions_of(site) if site.file.endswith(".py") else users_of_sql(site)
    tests = set().union(*(reached_by()[place] for place in places)) if places else set()
    if not tests:  # statements of a schema, constants: whatever enters the package
        folder = site.file.rpartition("/")[0].removesuffix("/schema").removesuffix("/lua")
        tests = set().union(*(found for place, found in reached_by().items() if place.startswith(folder)))
    quick: list[str] = []
    total = 0.0
    for test in sorted(tests, key=lambda test: (reach()[test][0] + START_S) * len(reach()[test][1])):
        total += reach()[test][0] + START_S
        if total > QUICK_S and quick:
            break
        quick.append(test)
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in quick:
        by_file[test.partition("::")[0]].append(test)
    files = sorted(by_file.values(), key=lambda tests: sum(reach()[test][0] for test in tests))
    return [test for tests in files for test in tests]


def functions_of(site: Site) -> set[str]:
    """The function around the mutant; outside of functions the file."""
    source = (PACKAGE / site.file).read_bytes()
    line = source[: site.start].count(b"\n") + 1
    return {function_at(site.file, source.decode(), line) or site.file}


def function_at(file: str, source: str, line: int) -> str:
    names: list[str] = []
    body: list[ast.stmt] = ast.parse(source).body
    while True:
        around = [
            node
            for node in body
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and min([node.lineno, *(one.lineno for one in node.decorator_list)]) <= line <= (node.end_lineno or 0)
        ]
        if not around:
            return ""
        names.append(around[0].name)
        if not isinstance(around[0], ast.ClassDef):
            return f"{file} {'.'.join(names)}"
        body = around[0].body


SQL_UNIT = re.compile(r"^(?:-- name: (\w+)|create (?:or replace )?function semel\.(\w+))", re.MULTILINE)


def users_of_sql(site: Site) -> set[str]:
    """The functions of Python that mention the statement, or one that calls the SQL function."""
    folder = (PACKAGE / site.file).parent
    folder = folder.parent if folder.name in ("schema", "lua") else folder
    if site.file.endswith(".lua"):
        names = {Path(site.file).stem}
    else:
        units = {name: text for path in folder.rglob("*.sql") for name, text in sql_units(path.read_text())}
        text = (PACKAGE / site.file).read_bytes()[: site.start].decode()
        names = {name for name, _ in list(sql_units(text))[-1:]}
        while True:
            calling = {
                unit for unit, text in units.items() if any(re.search(rf"semel\.{name}\b", text) for name in names)
            }
            if calling <= names:
                break
            names |= calling
    users: set[str] = set()
    for path in folder.rglob("*.py"):
        source = path.read_text()
        file = path.relative_to(PACKAGE).as_posix()
        for name in names:
            for found in re.finditer(rf"[\"']{name}[\"']", source):
                users.add(function_at(file, source, source[: found.start()].count("\n") + 1) or file)
    return users


def sql_units(text: str) -> Iterator[tuple[str, str]]:
    found = list(SQL_UNIT.finditer(text))
    for begin, end in zip(found, [*found[1:], None], strict=False):
        yield begin[1] or begin[2], text[begin.start() : end.start() if end else len(text)]


EQUIVALENT_MARK = "no effect"


@dataclass(frozen=True)
class Result:
    site: Site
    noticed_by: str | None  # a test, or why there was none to fail
    seconds: float


def run(site: Site, quick: bool) -> Result:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="semel-mutant-") as folder:
        plant(site, Path(folder) / "semel")
        noticed_by = run_tests(folder, selected(site), ["--timeout", str(TEST_TIMEOUT_S)])
        if noticed_by is None and not quick:
            patterns = next(tests for prefix, tests in TESTS if site.file.startswith(prefix))
            targets = [str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(pattern))]
            noticed_by = run_tests(folder, targets, ["-m", "not bench"])
    return Result(site, noticed_by, time.monotonic() - began)


def plant(site: Site, package: Path) -> None:
    """A copy of the package with the mutant, and with the compiled files of all other modules."""
    shutil.copytree(PACKAGE, package)
    file = package / site.file
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()
    file.write_text(changed(site)[0])


def run_tests(folder: str, tests: list[str], options: list[str]) -> str | None:
    """The test that notices the mutant in this folder; None: no test does.

    It must fail twice: a test that fails now and then says nothing about a mutant.
    """
    left = tests
    while (failed := first_failure(folder, left, options)) is not None:
        test = failed.partition(" - ")[0]
        if "::" not in test or first_failure(folder, [test], options) is not None:
            return failed
        if test not in left:  # a folder or a file was asked for, not the test
            options = [*options, "--deselect", test]
        else:
            left = left[left.index(test) + 1 :]
    return None


def first_failure(folder: str, tests: list[str], options: list[str]) -> str | None:
    if not tests:
        return None
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".txt") as listed:
        listed.write("\n".join(tests))
        listed.flush()
        try:
            ended = subprocess.run(
                [*PYTEST, "-x", "-rfE", "--no-header", *options, f"@{listed.name}"],
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": folder},
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"no end after {TIMEOUT_S} s"
    if ended.returncode not in (0, NOTICED, 2, 4):  # 2: an import that fails; 4: one of a conftest
        raise SystemExit(f"pytest ended with {ended.returncode}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    if not ended.returncode:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.*)$", ended.stdout, re.MULTILINE)
    return failed[1][:300] if failed else (ended.stdout + ended.stderr)[-200:]


def report(result: Result, as_json: bool) -> None:
    _, old, new = changed(result.site)
    if as_json:
        fields = {**asdict(result.site), "old": old, "changed": new, "by": result.noticed_by, "s": result.seconds}
        print(json.dumps(fields), flush=True)
        return
    print(f"{result.noticed_by or 'SURVIVED'}: {result.site.file} ({result.seconds:.0f} s)", flush=True)
    print(f"    - {old}\n    + {new}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
