"""Routes with `console = true` print what senders chose: nothing of it commands the terminal."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.settings.writing import ROUTE, loaded

from semel.service.assembly import build


def test_types_and_ids_of_events_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = loaded(tmp_path, f'ledger = "memory://"\n{ROUTE}')

    async def story() -> None:
        built = build(settings)
        try:
            await built.app.process({"id": "\u202e1", "type": "a\x1b[2Jb\r", "data": {}})
        finally:
            await built.close()
            await built.app.close()

    asyncio.run(story())
    out = capsys.readouterr().out
    assert out.endswith("attempt 1\n")
    assert out[:-1].isprintable()
    assert "\\x1b[2J" in out
