"""docs/dead-letters.md matches the commands: its console blocks are run one after the other."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path
from typing import Any

from tests.cli.command import ROOT, semel
from tests.test_docs import blocks_in

from semel import Context, Event, Reject, Retry, Semel

PAGE = ROOT / "docs" / "dead-letters.md"
WIDTH = "200"
ANY_TIME = ((r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME"), (r"\d+ (second|minute)s?( ago)?", "AGE"), (r"─+", "─"))


def fill(folder: Path) -> str:
    url = f"sqlite:///{folder}/semel.db"
    app = Semel(url, origin="shop")

    @app.on("order.*", name="crm", max_attempts=3)
    async def crm(event: Event, ctx: Context) -> Any:
        if event.body.get("fine"):
            return {"ticket": 7}
        if event.body["customer"] == "c-404":
            return Reject("unknown customer c-404")
        return Retry(after=0, reason="the CRM answered 503")

    async def handle() -> None:
        async with app:
            for _ in range(3):
                await app.process(order("o-17", customer="c-9", total=12.5))
            await app.process(order("o-18", customer="c-404"))
            await app.process(order("o-19", fine=True))

    asyncio.run(handle())
    return url


def order(name: str, **data: Any) -> dict[str, Any]:
    return {"id": name, "type": "order.created", "createdTime": 1_773_957_600_000, "data": data}


def lines_of(text: str) -> list[str]:
    """Without what is different every time; tables are as wide as their words."""
    for pattern, word in ANY_TIME:
        text = re.sub(pattern, word, text)
    return [re.sub(r"\s+", " ", line).rstrip() for line in text.splitlines()]


def test_the_page_shows_the_output_of_the_commands(tmp_path: Path) -> None:
    url = fill(tmp_path)
    told: list[str] = []
    shown: list[str] = []
    for block in blocks_in(PAGE.read_text("utf-8")):
        if block.language != "console":
            continue
        for line in block.code:
            if line.startswith("$ semel "):
                ended = semel(*shlex.split(line)[2:], "--ledger", url, env={"COLUMNS": WIDTH})
                assert ended.err == ""
                told += [line, *lines_of(ended.out)]
                shown.append(line)
            else:
                shown += lines_of(line) or [""]
    assert len([line for line in shown if line.startswith("$ ")]) >= 6
    assert told == shown
