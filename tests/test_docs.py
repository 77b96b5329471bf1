"""Hold the documents to the code: their Python runs, what they mention exists, and no machine leaks into the tree."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
RUN_S = 60  # for all blocks of one page

# Blocks of a page share a namespace. Blank lines stand in for the prose, so that a traceback names the page's line.
RUNNER = """
import ast, asyncio, inspect, sys
page, source = sys.argv[1], sys.stdin.read()
space = {"__name__": "__main__"}
result = eval(compile(source, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), space)
if inspect.iscoroutine(result):
    asyncio.run(result)
"""

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@dataclass(frozen=True)
class Block:
    language: str
    line: int  # of its first line of code, from 1
    code: list[str]
    runs: bool


def blocks_in(text: str) -> Iterator[Block]:
    """The fenced blocks of a page. `<!-- not run: reason -->` right above a fence keeps a Python block from running."""
    opened: re.Match[str] | None = None
    start, above, runs = 0, "", True
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if opened is None:
            opened = re.match(r"( *)(```+)\s*(\w*)", line)
            if opened:
                start, runs = number + 1, not re.fullmatch(r"\s*<!-- not run: \S.* -->\s*", above)
            elif line.strip():
                above = line
        elif line.strip() == opened[2]:
            code = [line.removeprefix(opened[1]) for line in lines[start - 1 : number - 1]]
            yield Block(opened[3], start, code, runs)
            opened, above = None, ""
    if opened:
        raise ValueError(f"the fence above line {start} is never closed")


def program_of(text: str) -> str:
    program = [""] * len(text.splitlines())
    for block in blocks_in(text):
        if block.language == "python" and block.runs:
            program[block.line - 1 : block.line - 1 + len(block.code)] = block.code
    return "\n".join(program) if any(program) else ""


def prose_of(text: str) -> str:
    """The page without its fenced blocks."""
    lines = text.splitlines()
    for block in blocks_in(text):
        lines[block.line - 2 : block.line + len(block.code)] = [""] * (len(block.code) + 2)
    return "\n".join(lines)


def inline_code_of(text: str) -> list[str]:
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose_of(text))


def slugs_of(text: str) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", prose_of(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path, text: str) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)[^)]*\)", prose_of(text)):
        if re.match(r"[a-z]+:", link):
            continue  # another site, not ours to check
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists():
            yield link
        elif anchor and target.suffix == ".md":
            there = text if target == page else target.read_text("utf-8")
            if anchor not in slugs_of(there):
                yield link


def unknown_targets(text: str, targets: set[str]) -> Iterator[str]:
    commands = inline_code_of(text)
    commands += [line for block in blocks_in(text) if block.language != "python" for line in block.code]
    for command in commands:
        if called := re.match(r"\s*(?:\$ )?make((?: +[\w.=/-]+)+)", command):
            words = called[1].split()
            yield from (word for word in words if "=" not in word and not word.startswith("-") and word not in targets)


def missing_paths(text: str, root: Path) -> Iterator[str]:
    """Inline code that begins like a path of this repository and leads nowhere. `<name>` and `*` stand for anything."""
    tops = {path.name for path in root.iterdir() if path.is_dir()} | {"docs", "examples"}
    for code in inline_code_of(text):
        if not re.fullmatch(r"[\w.-]+(/[\w.<>*-]+)+/?", code):
            continue
        base = root / "src" if code.startswith("semel/") else root
        if base == root and code.partition("/")[0] not in tops:
            continue
        known, *_ = re.split(r"/[^/]*[<*]", code, maxsplit=1)
        if not (base / known).exists():
            yield code


def unknown_names(text: str) -> Iterator[str]:
    """Inline code that names something in the package by its full dotted name, and is mistaken."""
    for code in inline_code_of(text):
        if re.fullmatch(r"semel(\.\w+){2,}", code):
            try:
                resolve_name(code)
            except (ImportError, AttributeError):
                yield code


def text_files() -> Iterator[tuple[str, str]]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode:
        pytest.skip("not a git checkout, so what belongs to the project is unknown")
    for name in filter(None, listing.stdout.split("\0")):
        try:
            yield name, (ROOT / name).read_text("utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue  # binary, or deleted and not yet committed


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@every_page
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    program = program_of(page.read_text("utf-8"))
    if not program:
        return
    command = [sys.executable, "-W", "error", "-c", RUNNER, page.name]
    run = subprocess.run(command, input=program, cwd=tmp_path, capture_output=True, text=True, timeout=RUN_S)
    assert run.returncode == 0, run.stderr


def test_the_python_of_the_readme_runs_again_in_the_same_folder(tmp_path: Path) -> None:
    """A newcomer tries it twice: the ledger's file remembers the first time."""
    program = program_of((ROOT / "README.md").read_text("utf-8"))
    for _ in range(2):
        command = [sys.executable, "-W", "error", "-c", RUNNER, "README.md"]
        run = subprocess.run(command, input=program, cwd=tmp_path, capture_output=True, text=True, timeout=RUN_S)
        assert run.returncode == 0, run.stderr


@every_page
def test_a_page_mentions_only_what_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    assert list(broken_links(page, text)) == []
    assert list(unknown_targets(text, make_targets())) == []
    assert list(missing_paths(text, ROOT)) == []
    assert list(unknown_names(text)) == []


def test_the_changelog_has_a_section_for_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert re.search(rf"^## \[?{re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)


def test_the_help_lists_every_target() -> None:
    helped = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert sorted(helped) == sorted(make_targets())


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda lock: lock.name)
def test_a_lock_names_packages_and_hashes_and_no_host(lock: Path) -> None:
    text = lock.read_text("utf-8")
    assert re.findall(r"^.*(?:://|file:|index-url|find-links|trusted-host| @ ).*$", text, re.MULTILINE) == []
    pins = re.split(r"^(?=[A-Za-z])", text, flags=re.MULTILINE)[1:]
    assert pins
    assert [pin for pin in pins if "--hash=sha256:" not in pin] == []


def test_the_locks_agree() -> None:
    run, dev = (
        set(re.findall(r"^(\S+==\S+)", (ROOT / "requirements" / name).read_text("utf-8"), re.MULTILINE))
        for name in ("run.txt", "dev.txt")
    )
    assert run
    assert run - dev == set()


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    places = "|".join(["work", "root", "home", "Users", "opt/pypi", "opt/wheels"])
    found = [
        f"{name}: {place}"
        for name, text in text_files()
        for place in re.findall(rf"(?<![\w.*}}])/(?:{places})/[\w.-]*", text)
    ]
    assert found == []


PAGE = """# A page

Read [the other](other.md), [a part](other.md#two-words), [nothing](none.md), [no part](#missing).
Say `make test`, or `make coffee`; see `src/semel`, `src/nowhere.py`, `semel/<name>.py`, `text/plain`.
`semel.values.key` is there, `semel.values.nothing` is not.

```python
x = 1
```

<!-- not run: it needs a server -->
```python
raise SystemExit
```

    ```python
    import asyncio
    await asyncio.sleep(x)
    ```

```sh
$ make tea ARGS=1
```
"""


def test_a_lie_in_a_page_is_caught(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("## Two words\n", "utf-8")
    assert list(broken_links(tmp_path / "page.md", PAGE)) == ["none.md", "#missing"]
    assert list(unknown_targets(PAGE, {"test"})) == ["coffee", "tea"]
    assert list(missing_paths(PAGE, ROOT)) == ["src/nowhere.py"]
    assert list(unknown_names(PAGE)) == ["semel.values.nothing"]


def test_blocks_keep_their_lines_and_one_that_must_not_run_is_left_out() -> None:
    lines = program_of(PAGE).splitlines()
    assert {number: line for number, line in enumerate(lines, 1) if line} == {
        8: "x = 1",
        17: "import asyncio",
        18: "await asyncio.sleep(x)",
    }


def test_a_fence_that_is_never_closed_is_an_error() -> None:
    with pytest.raises(ValueError, match="never closed"):
        list(blocks_in("```python\nx = 1\n"))


def test_the_readme_promises_what_the_code_promises() -> None:
    from semel.values.effect import PROMISES

    readme = (ROOT / "README.md").read_text()
    for effect, row in PROMISES.items():
        assert f"| `{effect}` | {row.promise} | {row.on_crash} |" in readme


def test_the_page_for_python_promises_what_the_code_promises() -> None:
    from semel.values.effect import PROMISES

    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    for effect, row in PROMISES.items():
        assert f"| `{effect}` | {row.promise} | {row.on_crash} |" in page


def test_the_index_leads_to_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages <= set(re.findall(r"\]\(([\w-]+\.md)\)", index))


def test_the_page_for_python_names_every_status() -> None:
    from typing import get_args

    from semel.values.outcome import Status

    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    for status in get_args(Status):
        assert f"| `{status}` |" in page
