"""Changes one operator at a random place of the safety packages, and runs the tests that should notice it.

    python tools/mutants.py --seed 7 --count 20

Each mutant is one changed operator, constant or deleted call in a copy of the package. A survivor is a mutant that no
test noticed: either a law is missing, or the change has no effect (write it into EQUIVALENT with the reason). The
catalogue in `tests/mutants` holds bugs that somebody thought of; this finds the others.
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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "semel"
TIMEOUT_S = 900  # a mutant that makes the tests wait for ever is noticed, too
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
NOTICED = 1  # pytest's exit code for failed tests; 2 to 5 mean that nothing was tested

# The first prefix that matches a file names the tests to run, the quickest first.
TESTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("adapters/ledgers/memory.py", ("tests/ledgers/test_memory.py", "tests/engine")),
    ("adapters/ledgers/sqlite/outbox", ("tests/outbox",)),
    ("adapters/ledgers/sqlite", ("tests/ledgers", "tests/engine", "tests/outbox")),
    ("adapters/ledgers/postgres", ("tests/ledgers/postgres",)),
    ("adapters/ledgers/redis", ("tests/ledgers/redis", "tests/stores")),
    ("adapters/ledgers/dynamodb", ("tests/ledgers/dynamodb", "tests/stores")),
    ("core/relay.py", ("tests/outbox", "tests/proof/outbox")),
    ("core/resending.py", ("tests/outbox",)),
    ("core/", ("tests/engine", "tests/outbox", "tests/proof", "tests/service")),
    ("values/sending.py", ("tests/outbox",)),
    ("values/coming.py", ("tests/outbox",)),
    ("values/", ("tests/engine", "tests/envelopes", "tests/outbox", "tests/ledgers/test_memory.py")),
    ("adapters/envelopes", ("tests/envelopes", "tests/engine")),
)
VALUES = ("claim", "coming", "decision", "effect", "guarantee", "key", "keys", "outcome", "retry_after", "sending")

# Changes that were looked at and have no effect: (file below src/semel, the line as it is, the line changed) -> why.
EQUIVALENT: dict[tuple[str, str, str], str] = {}

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
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object per mutant")
    args = parser.parse_args()
    sites = [site for site in all_sites() if site.file.startswith(args.under)]
    chosen = random.Random(args.seed).sample(sites, min(args.count, len(sites)))
    survivors = 0
    for number, site in enumerate(chosen, 1):
        began = time.monotonic()
        noticed = None if args.list or is_equivalent(site) else run(site)
        survivors += noticed is False
        report(site, noticed, number, len(chosen), time.monotonic() - began, args.json)
    if args.list:
        return 0
    tried = sum(not is_equivalent(site) for site in chosen)
    print(f"{tried - survivors} of {tried} mutants noticed, seed {args.seed}, {len(sites):,} places", file=sys.stderr)
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
            found += sql_sites(file, path.read_text())
    return found


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
        code = re.split(r"--", line[0])[0]
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


def run(site: Site) -> bool:
    """True: the tests notice the mutant."""
    mutant, _, _ = changed(site)
    targets = next(tests for prefix, tests in TESTS if site.file.startswith(prefix))
    with tempfile.TemporaryDirectory(prefix="semel-mutant-") as folder:
        package = Path(folder) / "semel"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / site.file).write_text(mutant)
        plugins = ["-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", "xdist", "-n", "2"]
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "pytest", "-x", "-q", *plugins, *targets],
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": folder},
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
    if ended.returncode not in (0, NOTICED, 2):  # 2: interrupted by -x, or an import that fails
        raise SystemExit(f"pytest ended with {ended.returncode}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    return ended.returncode != 0


def report(site: Site, noticed: bool | None, number: int, total: int, seconds: float, as_json: bool) -> None:
    _, old, new = changed(site)
    result = {True: "noticed", False: "SURVIVED", None: "not run"}[noticed]
    if as_json:
        print(json.dumps({**asdict(site), "old": old, "changed": new, "result": result}), flush=True)
        return
    print(f"[{number}/{total}] {result:8} {site.file} ({seconds:.0f} s)", flush=True)
    if noticed is not True:
        print(f"    - {old}\n    + {new}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
