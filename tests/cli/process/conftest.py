"""An app in its own module for each test, and files with events for it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.cli.command import Ended, semel
from typer.testing import CliRunner

from semel.cli import main

MODULE = """
from semel import Reject, Retry, Semel

app = Semel("sqlite:///shop.db", random=lambda: 0.0)

@app.on("sale", effect="transaction")
async def book(event, ctx):
    ctx.tx.execute("create table if not exists effect (event text)")
    ctx.tx.execute("insert into effect values (?)", (event.id,))

@app.on("refused")
async def refuse(event, ctx):
    raise Reject("unknown customer")

@app.on("doubtful", effect="park")
async def doubt(event, ctx):
    raise ConnectionResetError("after the first byte")

@app.on("soon")
async def soon(event, ctx):
    if ctx.attempt == 1:
        raise Retry(after=0.2)

@app.on("later")
async def later(event, ctx):
    raise Retry(after=3600, reason="in an hour")
"""


def event(own_id: str, kind: str = "sale", **data: Any) -> bytes:
    return json.dumps({"id": own_id, "type": kind, "createdTime": 1_678_886_400_000, "data": data}).encode()


class Shop:
    """An app, its folder, and its effects."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.module = f"shop_{uuid4().hex}"
        self.file = folder / "events.jsonl"
        (folder / f"{self.module}.py").write_text(MODULE)

    def write(self, bodies: Iterable[bytes], name: str = "events.jsonl") -> Path:
        path = self.folder / name
        path.write_bytes(b"".join(body + b"\n" for body in bodies))
        return path

    def process(self, *arguments: str, stdin: bytes | None = None) -> Ended:
        if stdin is None:
            return semel("process", *arguments, "--app", f"{self.module}:app")
        result = CliRunner().invoke(main.app, ["process", *arguments, "--app", f"{self.module}:app"], input=stdin)
        return Ended(result.exit_code, result.stdout, result.stderr)

    def booked(self) -> list[str]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            if not connection.execute("select 1 from sqlite_master where name = 'effect'").fetchone():
                return []
            return [row[0] for row in connection.execute("select event from effect order by rowid")]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Shop(tmp_path)
