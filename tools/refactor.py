"""Moves, merges and renames across source, tests, docs, benches and the planted-bug catalogues.

    python tools/refactor.py move core/act.py core/handler_run.py
    python tools/refactor.py merge core/engine.py core/engine.py core/answers.py core/settling.py
    python tools/refactor.py rename Act HandlerRun [--under src tests]

Paths are below src/semel. `move` takes a module or a package. `merge TARGET SOURCES…` writes the sources in this order
into the target and removes them. The target keeps its docstring, or gets that of the first source. A merge stops at
names that two sources define differently. `rename` changes whole identifiers in the text. Run `ruff check --fix` and
`ruff format` afterwards, then mypy and the tests: the script does not understand the code, it only saves the typing.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "semel"
TEXT = (".py", ".md", ".toml", ".sql", ".lua", ".yaml", ".yml", ".json", ".txt", ".in", ".ts", ".html", "")


def tracked(under: list[str]) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *under], cwd=ROOT, capture_output=True, check=True
    )
    paths = [ROOT / line for line in listed.stdout.decode().splitlines()]
    return [path for path in paths if path.is_file() and path.suffix in TEXT and path != Path(__file__)]


def dotted(path: str) -> str:
    return "semel." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def substitute(pairs: list[tuple[re.Pattern[str], str]], under: list[str]) -> int:
    changed = 0
    for path in tracked(under):
        text = path.read_text(encoding="utf-8")
        new = text
        for pattern, replacement in pairs:
            new = pattern.sub(replacement, new)
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed += 1
    return changed


def repoint(old: str, new: str) -> None:
    """Rewrite every mention of a module: as a dotted name, as an import from its package, and as a path."""
    old_dotted, new_dotted = dotted(old), dotted(new)
    pairs = [
        (re.compile(rf"(?<![\w.]){re.escape(old_dotted)}(?!\w)"), new_dotted),
        (
            re.compile(
                rf"(?<![\w/]){re.escape(old)}(?![\w/])" if old.endswith(".py") else rf"(?<![\w/]){re.escape(old)}/"
            ),
            new if old.endswith(".py") else f"{new}/",
        ),
        (re.compile(rf"src/semel/{re.escape(old)}(?![\w])"), f"src/semel/{new}"),
    ]
    substitute(pairs, [])
    old_parent, _, old_name = old_dotted.rpartition(".")
    new_parent, _, new_name = new_dotted.rpartition(".")
    for path in tracked(["*.py"]):
        _import_from_elsewhere(path, (old_parent, old_name), (new_parent, new_name))


def _import_from_elsewhere(path: Path, old: tuple[str, str], new: tuple[str, str]) -> None:
    """Rewrite `from package import module`, also where it imports several, and the module's name where it is used."""
    text = path.read_text(encoding="utf-8")
    if f"from {old[0]} import" not in text or not re.search(rf"\b{old[1]}\b", text):
        return
    lines = text.splitlines()
    changed = renamed = False
    for node in sorted(ast.walk(ast.parse(text)), key=lambda each: -getattr(each, "lineno", 0)):
        if not isinstance(node, ast.ImportFrom) or node.module != old[0]:
            continue
        found = [alias for alias in node.names if alias.name == old[1]]
        if not found:
            continue
        indent = " " * node.col_offset
        local = found[0].asname or old[1]
        free = local == old[1] != new[1] and not re.search(rf"(?<![\w.]){new[1]}\b(?!=)", text)
        name = new[1] if free or local == new[1] else f"{new[1]} as {local}"
        renamed |= free
        written = [f"{indent}from {new[0]} import {name}"]
        rest = [
            f"{alias.name} as {alias.asname}" if alias.asname else alias.name
            for alias in node.names
            if alias not in found
        ]
        if rest:
            written.insert(0, f"{indent}from {old[0]} import {', '.join(rest)}")
        comment = re.search(r"\s+#.*$", lines[(node.end_lineno or node.lineno) - 1])
        if comment:
            written[-1] += comment.group()
        lines[node.lineno - 1 : node.end_lineno] = written
        changed = True
    if changed:
        text = "\n".join(lines) + "\n"
        if renamed:
            text = re.sub(rf"(?<![\w.\"'/]){old[1]}(?=\.[A-Za-z_])", new[1], text)
        path.write_text(text, encoding="utf-8")


def move(old: str, new: str) -> None:
    target = PACKAGE / new
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "mv", str(PACKAGE / old), str(target)], cwd=ROOT, check=True)
    repoint(old, new)


def merge(target: str, sources: list[str]) -> None:
    parts = [Part(source) for source in sources]
    defined: dict[str, str] = {}
    for part in parts:
        for name, text in list(part.defined.items()):
            if name in defined and defined[name] != text:
                sys.exit(f"{part.source} defines {name} again, differently: rename one of them first")
            if name in defined:
                part.drop(name)
            defined[name] = text
    merged = {dotted(source) for source in sources}
    imports = [
        rest
        for part in parts
        for line in part.imports
        if not _imports_from(line, merged) and (rest := _without_modules(line, merged))
    ]
    for part in parts:
        for line in part.imports:
            for name in _imported(line):
                if name in defined and not _imports_from(line, merged):
                    sys.exit(f"{part.source} imports {name}, which is defined in the merged module")
            for name in _module_aliases(line, merged):
                part.inline(name)
    typed = [
        line
        for part in parts
        for line in part.typing_imports
        if not _imports_from(line, merged) and line not in imports
    ]
    for part in parts:
        for line in (*part.imports, *part.typing_imports):
            if _imports_from(line, merged) and any(alias.asname for alias in _import(line).names):
                print(f"by hand: {part.source}: {line}")
    docstring = next((part.docstring for part in parts if part.source == target), parts[0].docstring)
    kept = next((part for part in parts if part.source == target), parts[0])
    body = "\n\n\n".join(
        part.body if part is kept else f"{_as_comment(part.docstring)}\n\n{part.body}" for part in parts if part.body
    )
    if typed:
        block = "\n".join(dict.fromkeys(typed))
        body = "if TYPE_CHECKING:\n" + "\n".join(f"    {line}" for line in block.splitlines()) + f"\n\n{body}"
    text = (
        f'"""{docstring}"""\n\nfrom __future__ import annotations\n\n'
        + "\n".join(dict.fromkeys(imports))
        + f"\n\n{body}\n"
    )
    for source in sources:
        if source != target:
            subprocess.run(["git", "rm", "-q", "-f", str(PACKAGE / source)], cwd=ROOT, check=True)
    (PACKAGE / target).parent.mkdir(parents=True, exist_ok=True)
    (PACKAGE / target).write_text(text, encoding="utf-8")
    for source in sources:
        if source != target:
            repoint(source, target)


def _is_typing_block(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and ast.unparse(node.test) == "TYPE_CHECKING"
        and not node.orelse
        and all(isinstance(inner, (ast.Import, ast.ImportFrom)) for inner in node.body)
    )


def _as_comment(docstring: str) -> str:
    """The docstring of a merged module stays above its code, for somebody to put it where it belongs."""
    return "\n".join(f"# {line}".rstrip() for line in docstring.strip().splitlines())


class Part:
    """One source of a merge, cut into docstring, imports and body."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = (PACKAGE / source).read_text(encoding="utf-8").splitlines()
        tree = ast.parse("\n".join(self._lines))
        self.docstring = ast.get_docstring(tree, clean=False) or ""
        self.imports: list[str] = []
        self.typing_imports: list[str] = []  # below `if TYPE_CHECKING:`
        self.defined: dict[str, str] = {}
        self._removed: set[int] = set()
        self._places: dict[str, range] = {}
        for at, node in enumerate(tree.body):
            place = range(node.lineno - 1, node.end_lineno or node.lineno)
            if getattr(node, "decorator_list", None):
                place = range(node.decorator_list[0].lineno - 1, place.stop)  # type: ignore[attr-defined]
            if _is_typing_block(node):
                self._removed.update(place)
                for inner in node.body:  # type: ignore[attr-defined]
                    lines = self._lines[inner.lineno - 1 : inner.end_lineno]
                    self.typing_imports.append("\n".join(line.removeprefix("    ") for line in lines))
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self._removed.update(place)
                if getattr(node, "module", "") != "__future__":
                    self.imports.append("\n".join(self._lines[line] for line in place))
            elif at == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                self._removed.update(place)
            else:
                for name in _names(node):
                    self.defined[name] = "\n".join(self._lines[line] for line in place)
                    self._places[name] = place

    def inline(self, module: str) -> None:
        """Use the names of a module that is merged into this one without its prefix."""
        self._lines = [re.sub(rf"(?<![\w.]){module}\.(?=[A-Za-z_])", "", line) for line in self._lines]

    def drop(self, name: str) -> None:
        self._removed.update(self._places[name])

    @property
    def body(self) -> str:
        return "\n".join(line for at, line in enumerate(self._lines) if at not in self._removed).strip("\n")


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _import(line: str) -> ast.Import | ast.ImportFrom:
    node = ast.parse(line).body[0]
    assert isinstance(node, (ast.Import, ast.ImportFrom))
    return node


def _imports_from(line: str, modules: set[str]) -> bool:
    node = _import(line)
    return isinstance(node, ast.ImportFrom) and node.module in modules


def _imported(line: str) -> list[str]:
    return [alias.asname or alias.name.partition(".")[0] for alias in _import(line).names]


def _module_aliases(line: str, modules: set[str]) -> list[str]:
    node = _import(line)
    if not isinstance(node, ast.ImportFrom):
        return []
    return [alias.asname or alias.name for alias in node.names if f"{node.module}.{alias.name}" in modules]


def _without_modules(line: str, modules: set[str]) -> str:
    node = _import(line)
    if not isinstance(node, ast.ImportFrom):
        return line
    rest = [alias for alias in node.names if f"{node.module}.{alias.name}" not in modules]
    if len(rest) == len(node.names):
        return line
    names = ", ".join(f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in rest)
    return f"from {node.module} import {names}" if rest else ""


def rename(old: str, new: str, under: list[str]) -> None:
    print(substitute([(re.compile(rf"\b{re.escape(old)}\b"), new)], under), "files")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    moved = commands.add_parser("move")
    moved.add_argument("old")
    moved.add_argument("new")
    merged = commands.add_parser("merge")
    merged.add_argument("target")
    merged.add_argument("sources", nargs="+")
    deleted = commands.add_parser("delete")
    deleted.add_argument("old")
    renamed = commands.add_parser("rename")
    renamed.add_argument("old")
    renamed.add_argument("new")
    renamed.add_argument("--under", nargs="*", default=[])
    args = parser.parse_args()
    if args.command == "move":
        move(args.old, args.new)
    elif args.command == "delete":
        subprocess.run(["git", "rm", "-q", "-f", str(PACKAGE / args.old)], cwd=ROOT, check=True)
    elif args.command == "merge":
        merge(args.target, args.sources)
    else:
        rename(args.old, args.new, args.under)


if __name__ == "__main__":
    main()
