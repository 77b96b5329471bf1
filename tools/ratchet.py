"""Measures how hard the source tree is to read. The figures may only fall.

    python tools/ratchet.py           # print each figure beside its limit
    python tools/ratchet.py --write   # lower the limits in tests/ratchet.toml to today's figures

`tests/test_ratchet.py` fails when a figure is above its limit. A limit that has to rise is edited by hand, with the
reason in the commit.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMITS = ROOT / "tests" / "ratchet.toml"

# Words of the former vocabulary. docs/glossary.md has the words that replace them; `dead letter` is one of those.
RETIRED = frozenset(
    (
        *(
            "said",
            "told",
            "says",
            "letter",
            "letters",
            "letterbox",
            "letterboxes",
            "door",
            "doors",
            "parcel",
            "parcels",
        ),
        *("whoever", "nobody", "somebody", "witness", "witnesses", "hearing", "standing", "sought", "anew", "bearable"),
    )
)
GERUNDS_OF_THE_FIELD = frozenset(
    (
        *("batching", "forwarding", "loading", "logging", "masking", "polling", "publishing", "rendering", "routing"),
        *("settings", "string", "testing", "tracing", "wiring"),
    )
)
_PARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")


def measure(root: Path = ROOT) -> dict[str, int]:
    modules = tracked(root, "src/*.py")
    shipped_tests = [path for path in modules if "testing" in path.relative_to(root / "src").parts]
    product = [path for path in modules if path not in set(shipped_tests)]
    homes: dict[str, set[Path]] = defaultdict(set)
    functions = used_once = 0
    for path in modules:
        text = path.read_text("utf-8")
        words = Counter(re.findall(r"\w+", text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(path)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                functions += 1
                used_once += re.match(r"_(?!_)", node.name) is not None and words[node.name] == 2
    gerunds = [path for path in product if path.stem.endswith("ing") and path.stem not in GERUNDS_OF_THE_FIELD]
    texts = tracked(root, "*.md", "docs/*.md", "src/*.py", "src/*.sql", "src/*.lua")
    return {
        "source_lines": sum(map(lines_of, product)),
        "source_modules": len(product),
        "testing_lines": sum(map(lines_of, shipped_tests)),
        "testing_modules": len(shipped_tests),
        "package_depth": max(len(path.relative_to(root / "src").parts) - 1 for path in product),
        "class_names_with_several_meanings": sum(len(places) > 1 for places in homes.values()),
        "modules_named_by_a_gerund": len(gerunds),
        "private_functions_used_once_percent": round(100 * used_once / functions),
        "retired_words": sum(retired_words(path.read_text("utf-8")) for path in texts),
        "getattr_probes": sum(path.read_text("utf-8").count("getattr(") for path in product),
        "readme_lines": lines_of(root / "README.md"),
    }


def retired_words(text: str) -> int:
    found, before = 0, ""
    for name in re.findall(r"[A-Za-z_]+", text):
        for word in filter(None, _PARTS.split(name)):
            word = word.lower()
            found += word in RETIRED and not (before == "dead" and word.startswith("letter"))
            before = word
    return found


def lines_of(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def tracked(root: Path, *patterns: str) -> list[Path]:
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", *patterns]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [root / name for name in names if (root / name).is_file()]


def limits() -> dict[str, int]:
    return tomllib.loads(LIMITS.read_text("utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="lower the limits to today's figures")
    figures, allowed = measure(), limits()
    if parser.parse_args().write:
        header = "# Limits of tools/ratchet.py. They may only fall: `python tools/ratchet.py --write` lowers them.\n\n"
        lowered = {name: min(value, allowed.get(name, value)) for name, value in figures.items()}
        LIMITS.write_text(header + "".join(f"{name} = {value}\n" for name, value in lowered.items()), "utf-8")
    for name, value in figures.items():
        print(f"{value:>9,}  of {limits().get(name, value):>9,}  {name}")


if __name__ == "__main__":
    main()
