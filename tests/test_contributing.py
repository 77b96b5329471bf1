"""Every file and function that the walks in CONTRIBUTING.md name exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
STEPS = re.findall(
    r"^\| [^|]+ \| `(src/[\w/]+\.py)` \| `([\w.]+)` \|$",
    (ROOT / "CONTRIBUTING.md").read_text("utf-8"),
    re.MULTILINE,
)


def functions_in(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield from functions_in(node.body, f"{node.name}.")


def test_the_walks_name_functions_that_exist() -> None:
    assert len(STEPS) >= 20
    assert [
        (file, function)
        for file, function in STEPS
        if function not in functions_in(ast.parse((ROOT / file).read_text("utf-8")).body)
    ] == []
