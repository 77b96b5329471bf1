"""A process that dies on either side of the commit of its own transaction."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.outbox.adding import adding_process
from tests.outbox.adding.places import Place, notification

import semel
from semel.testing.crash import landing
from semel.values.outbox import Added

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
@pytest.mark.parametrize("road", ["psycopg", "apsw"])
def test_the_message_is_there_exactly_when_the_order_is(
    request: pytest.FixtureRequest, tmp_path: Path, road: str, when: str
) -> None:
    is_postgres = road == "psycopg"
    place = Place(request.getfixturevalue("url" if is_postgres else "file"), is_postgres)
    place.empty()
    marker = tmp_path / "landed"
    found_at = [str(Path(semel.__file__).parent.parent), str(ROOT), os.environ.get("PYTHONPATH", "")]
    died = subprocess.run(
        [sys.executable, adding_process.__file__, road, place.url, when, str(marker)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, found_at))},
        timeout=60,
    )
    assert died.returncode == -signal.SIGKILL
    assert marker.read_text() == landing(when), f"inconclusive: the crash at {when} did not land"
    committed = when == "after_commit"
    assert (place.keys(), place.orders()) == ((["order-1"], ["4711"]) if committed else ([], []))

    async def again() -> list[Added]:
        async with place.roads[road](place.url) as customer:
            answers = await customer.add(notification(provider="one"))
            await customer.end(commit=True)
            return answers

    (answer,) = asyncio.run(again())
    assert answer.status == ("known" if committed else "added"), "whoever repeats it has it once"
    assert place.keys() == ["order-1"]
