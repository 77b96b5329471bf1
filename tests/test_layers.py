"""The arrows between the layers (CONTRIBUTING.md has the table). There is no ignore list: move the code instead.

Every import counts, also one inside a function or under TYPE_CHECKING: a type is a dependency too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
MAX_LINES = 700  # ports.py holds all protocols; any other file that long holds two things
VAGUE_NAMES = {"base", "common", "helpers", "manager", "misc", "util", "utils"}

WIRING = "semel.wiring"  # the only module outside the adapters that may name one

MAY_IMPORT = {
    "values": {"values"},
    "ports": {"values", "ports"},
    "core": {"values", "ports", "core"},
    "adapters": {"values", "ports", "adapters"},
    "testing": {"values", "ports", "testing"},
    "edges": {"values", "ports", "core", "adapters", "testing", "edges"},
}

SERVICE = {"aiohttp", "httptools", "opentelemetry", "prometheus_client", "starlette", "structlog", "uvicorn", "uvloop"}

THIRD_PARTY = {
    "values": {"msgspec"},
    "ports": {"msgspec"},
    "core": {"msgspec", "typing_extensions"},  # the latter for type checkers alone: it is not imported
    "adapters": {"msgspec"},
    "testing": {"msgspec", "pytest", "hypothesis"},
    "edges": {"msgspec", "typer", "rich", *SERVICE},
}

DRIVERS = {  # what one package may import besides; a new adapter with a driver adds its line
    "semel.ledgers.sqlite": {"apsw"},
    "semel.ledgers.redis": {"redis"},
    "semel.ledgers.postgres": {"asyncpg"},
    "semel.aws": {"aiobotocore", "botocore"},
    "semel.http_client": {"aiohttp", "yarl"},  # which are its URLs
    "semel.destinations": {"aiohttp"},
    "semel.providers": {"aiobotocore", "botocore", "cryptography"},
    "semel.verifiers": {"cryptography"},
    "semel.sources.kafka_topic": {"confluent_kafka"},
    "semel.sources.rabbitmq_queue": {"aio_pika", "aiormq", "pamqp"},
    "semel.testing.simulator": {"cryptography"},  # it signs callbacks as providers do
}

ADAPTER_KINDS = {"ledgers", "sources"}  # one package for each adapter
ADAPTER_PACKAGES = {"aws", "dead_letter_targets", "destinations", "envelopes", "http_client", "providers", "verifiers"}
FACTORIES = {"sources", "providers"}  # `__init__` of these holds the public factories, which call the wiring
SHARED = {
    "semel.aws",
    "semel.http_client",
    "semel.ledgers.entries",
    "semel.sources.lifecycle",
}  # adapters share these, and import no other adapter
ADAPTER_NAME = re.compile(rf"semel\.({'|'.join(ADAPTER_KINDS | ADAPTER_PACKAGES)})\.[\w.]+(:\w+)?")


@dataclass(frozen=True)
class Named:
    """One place where a module names another one."""

    target: str
    line: int
    as_text: bool = False  # in a string, as lazy imports do


def layer_of(module: str) -> str | None:
    match module.split("."):
        case ["semel"]:
            return "edges"
        case ["semel", "ports"]:
            return "ports"
        case ["semel", "ports", *_]:
            return None  # all protocols are in one file
        case ["semel", ("values" | "core" | "testing") as layer, *_]:
            return layer
        case ["semel", package] if package in FACTORIES:
            return "edges"
        case ["semel", kind, *_] if kind in ADAPTER_KINDS | ADAPTER_PACKAGES:
            return "adapters"
        case ["semel", *_]:
            return "edges"
    return None


def adapter_package(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:3] if len(parts) > 1 and parts[1] in ADAPTER_KINDS else parts[:2])


def modules_in(src: Path) -> dict[str, Path]:
    found = {}
    for path in sorted((src / "semel").rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def names_in(module: str, path: Path, known: set[str]) -> Iterator[Named]:
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        match node:
            case ast.Import(names=aliases):
                yield from (Named(alias.name, node.lineno) for alias in aliases)
            case ast.ImportFrom(module=origin, names=aliases, level=level):
                above = package[: len(package) - level + 1] if level else []
                whole = ".".join([*above, *([origin] if origin else [])])
                for alias in aliases:
                    member = f"{whole}.{alias.name}"
                    yield Named(member if member in known else whole, node.lineno)
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]
            ):
                if called in {"import_module", "__import__", "resolve_name"}:
                    yield Named(name.partition(":")[0], node.lineno)
            case ast.Constant(value=str(text)) if ADAPTER_NAME.fullmatch(text):
                yield Named(text.partition(":")[0], node.lineno, as_text=True)


def what_is_wrong(module: str, named: Named) -> str | None:
    layer = layer_of(module)
    if layer is None:
        return f"{module} belongs to no layer"
    top = named.target.partition(".")[0]
    if top in sys.stdlib_module_names:
        return None
    if top != "semel":
        allowed = THIRD_PARTY[layer].union(
            *(DRIVERS[package] for package in DRIVERS if f"{module}.".startswith(f"{package}."))
        )
        return None if top in allowed else f"{layer} may not import the package {top}"
    other = layer_of(named.target)
    if other is None:
        return f"{named.target} belongs to no layer"
    if other not in MAY_IMPORT[layer]:
        return f"{layer} may not import {other}"
    if other == "adapters":
        if layer == "edges" and module != WIRING:
            return f"only {WIRING} names adapters"
        package = adapter_package(named.target)
        if layer == "adapters" and package != adapter_package(module) and package not in SHARED:
            return "an adapter may not import another adapter"
    return None


def wrong_arrows(src: Path) -> list[str]:
    modules = modules_in(src)
    return sorted(
        {
            f"{path.relative_to(src)}:{named.line}: {module} → {named.target}: {wrong}"
            for module, path in modules.items()
            for named in names_in(module, path, set(modules))
            if (wrong := what_is_wrong(module, named))
        }
    )


def test_every_arrow_points_the_right_way() -> None:
    assert wrong_arrows(SRC) == []


def test_every_module_belongs_to_a_layer() -> None:
    modules = modules_in(SRC)
    assert modules, "found nothing to check"
    assert [module for module in modules if layer_of(module) is None] == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [module for module in modules_in(SRC) if module.rpartition(".")[2] in VAGUE_NAMES] == []


def test_no_file_is_too_long() -> None:
    files = [*SRC.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in files}
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_import_semel_is_light() -> None:
    """A Lambda starts cold: drivers and the command line are imported when used."""
    heavy = {"rich", "typer", "pydantic", *SERVICE}.union(*DRIVERS.values(), THIRD_PARTY["testing"])
    code = "import sys, semel; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "semel" in loaded
    assert heavy.intersection(loaded) == set()


PLANTED = {  # (where, what it says): why it is wrong
    ("values/a.py", "import semel.ports"): "values may not import ports",
    ("values/b.py", "import apsw"): "values may not import the package apsw",
    ("values/c.py", "def f():\n    from semel.core import engine"): "values may not import core",
    ("values/d.py", "from semel import Semel"): "values may not import edges",
    ("values/e.py", "from .. import app"): "values may not import edges",
    ("ports.py", "from semel.core.engine import Engine"): "ports may not import core",
    ("core/a.py", "from semel.ledgers.sqlite import X"): "core may not import adapters",
    ("core/b.py", "import rich"): "core may not import the package rich",
    ("core/c.py", "from semel import wiring"): "core may not import edges",
    ("core/d.py", "import importlib\nimportlib.import_module('semel.wiring')"): "core may not import edges",
    ("core/e.py", "LAZY = 'semel.ledgers.sqlite:Ledger'"): "core may not import adapters",
    ("core/f.py", "from semel.testing import laws"): "core may not import testing",
    ("ledgers/memory/a.py", "import semel.core.engine"): "adapters may not import core",
    ("ledgers/memory/b.py", "from semel.ledgers import sqlite"): "an adapter may not import another",
    ("ledgers/memory/c.py", "import apsw"): "adapters may not import the package apsw",
    ("ledgers/memory/d.py", "from ..sqlite import store"): "an adapter may not import another adapter",
    ("ledgers/__init__.py", "from .sqlite import store"): "an adapter may not import another adapter",
    ("envelopes/a.py", "from semel.ledgers.memory import x"): "an adapter may not import another",
    ("testing/a.py", "from semel.core import engine"): "testing may not import core",
    ("testing/b.py", "import typer"): "testing may not import the package typer",
    ("testing/c.py", "import semel.ledgers.memory"): "testing may not import adapters",
    ("testing/d.py", "from semel import Semel"): "testing may not import edges",
    ("cli/a.py", "from semel.ledgers import memory"): "only semel.wiring names adapters",
    ("cli/b.py", "if TYPE_CHECKING:\n    import semel.envelopes"): "only semel.wiring names adapters",
    ("cli/c.py", "import apsw"): "edges may not import the package apsw",
    ("app.py", "LAZY = 'semel.ledgers.sqlite'"): "only semel.wiring names adapters",
}
RIGHT = {
    "__init__.py": "from semel.app import Semel",
    "app.py": "from semel import wiring\nfrom semel.core import engine",
    "wiring.py": "from semel.ledgers import memory, sqlite\nLAZY = 'semel.envelopes:decode'",
    "cli/main.py": "import rich, typer\nfrom semel.app import Semel\nfrom semel.testing import laws",
    "values/key.py": "import hashlib, msgspec\nfrom semel.values import claim",
    "values/claim.py": "",
    "ports.py": "from semel.values.key import Key",
    "core/engine.py": "from semel.values import key\nfrom semel.ports import Ledger\nfrom . import batcher",
    "core/batcher.py": "'''Unlike semel.ledgers.sqlite, which prose may name.'''",
    "ledgers/memory/__init__.py": "from semel.ports import Ledger",
    "ledgers/sqlite/__init__.py": "import apsw\nfrom semel.ledgers.sqlite import store",
    "ledgers/sqlite/claims.py": "from . import statements",
    "ledgers/sqlite/statements.py": "",
    "envelopes/__init__.py": "from semel.envelopes.cloudevents import decode",
    "envelopes/cloudevents.py": "import msgspec",
    "testing/laws.py": "import pytest, hypothesis\nfrom semel.ports import Ledger",
}


def plant(src: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = src / "semel" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return src


def test_right_arrows_are_let_through(tmp_path: Path) -> None:
    assert wrong_arrows(plant(tmp_path, RIGHT)) == []


@pytest.mark.parametrize(("where", "text"), list(PLANTED))
def test_a_planted_wrong_arrow_is_caught(tmp_path: Path, where: str, text: str) -> None:
    (caught,) = wrong_arrows(plant(tmp_path, RIGHT | {where: text}))
    assert caught.startswith(str(Path("semel", where)))
    assert PLANTED[where, text] in caught


@pytest.mark.parametrize("module", ["semel.ports.extra", "other"])
def test_a_module_outside_every_layer_is_caught(module: str) -> None:
    assert layer_of(module) is None
    assert what_is_wrong(module, Named("json", 1)) == f"{module} belongs to no layer"
