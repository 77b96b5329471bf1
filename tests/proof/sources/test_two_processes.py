"""The same app behind every transport: two consumers, a third of the messages twice, kills at any moment.

The effects stand in a table without any unique constraint, in the transaction of the settle (PostgreSQL) or behind a
sink that honours keys (Redis).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.proof.sources import storm
from tests.proof.sources.consumer_process import ACK_FIRST, OTHER_KEY, OUTSIDE
from tests.proof.sources.storm import Broker, Kill, Stage, Storm

TRANSPORTS = ("sqs", "kafka", "rabbitmq")
STORES = ("postgres", "redis")


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_twenty_thousand_messages_under_kills_lose_nothing_and_double_nothing(
    broker: Broker, stage: Stage, tmp_path: Path
) -> None:
    came = storm.run(broker, stage, tmp_path, messages=20_000, seconds=40, kill_every_s=3)
    print(came)
    came.check()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("store", "bug", "shows"),
    [("postgres", ACK_FIRST, "are lost"), ("postgres", OUTSIDE, "are doubled"), ("redis", OTHER_KEY, "are doubled")],
)
@pytest.mark.parametrize("transport", ["sqs"])
def test_the_table_shows_what_a_planted_bug_loses_or_doubles(
    broker: Broker, stage: Stage, tmp_path: Path, bug: str, shows: str
) -> None:
    came = storm.run(broker, stage, tmp_path, messages=200, seconds=1.5, kill_every_s=0.4, enough=3, bug=bug)
    assert came.lost or came.doubled, f"inconclusive: the bug had no consequences; {came}"
    with pytest.raises(AssertionError, match=shows):
        came.check()


GOOD = Storm(
    events=("a", "b"),
    messages=3,
    deliveries=5,
    runs=3,
    kills=(Kill(1), Kill(0), Kill(2), Kill(1)),
    happened=Counter("ab"),
    counts={"done": 2, "dead": 0},
    dead_letters=0,
    seconds=1.0,
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"happened": Counter("a")}, "1 of 2 .*lost"),
        ({"happened": Counter("abb")}, "1 .*doubled"),
        ({"happened": Counter("abc")}, "nobody sent"),
        ({"dead_letters": 1}, "1 dead letters"),
        ({"counts": {"done": 1, "leased": 1}}, "leased"),
        ({"deliveries": 2}, "each message was delivered"),
        ({"messages": 2}, "with the copies"),
        ({"kills": (Kill(1), Kill(0), Kill(2))}, "inconclusive: too few kills"),
        ({"runs": 2}, "inconclusive: no kill came while a handler ran"),
    ],
)
def test_the_check_sees_what_is_lost_doubled_or_left_and_what_was_never_tried(change: Any, says: str) -> None:
    GOOD.check()
    with pytest.raises(AssertionError, match=says):
        replace(GOOD, **change).check()
