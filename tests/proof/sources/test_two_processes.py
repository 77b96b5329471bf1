"""The same app behind every transport: two consumers, a third of the messages twice, kills at any moment.

The effects stand in a table without any unique constraint, in the transaction of the settle (PostgreSQL) or behind a
sink that honours keys (Redis).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.proof.sources import storm
from tests.proof.sources.consumer_process import ACK_FIRST, OTHER_KEY, OUTSIDE
from tests.proof.sources.storm import Broker, Stage

TRANSPORTS = ("sqs", "kafka", "rabbitmq")
STORES = ("postgres", "redis")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_consumers_of_which_one_is_killed_lose_nothing_and_double_nothing(
    broker: Broker, stage: Stage, tmp_path: Path
) -> None:
    came = storm.run(broker, stage, tmp_path, messages=2_000, seconds=3, kill_every_s=0.6, enough=4)
    print(came)
    came.check()


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_twenty_thousand_messages_under_kills_lose_nothing_and_double_nothing(
    broker: Broker, stage: Stage, tmp_path: Path
) -> None:
    came = storm.run(broker, stage, tmp_path, messages=20_000, seconds=40, kill_every_s=3)
    print(came)
    came.check()


@pytest.mark.parametrize(
    ("store", "bug", "shows"),
    [("postgres", ACK_FIRST, "are lost"), ("postgres", OUTSIDE, "are doubled"), ("redis", OTHER_KEY, "are doubled")],
)
@pytest.mark.parametrize("transport", ["sqs"])
def test_the_table_shows_what_a_planted_bug_loses_or_doubles(
    broker: Broker, stage: Stage, tmp_path: Path, bug: str, shows: str
) -> None:
    came = storm.run(broker, stage, tmp_path, messages=300, seconds=1.5, kill_every_s=0.4, enough=3, bug=bug)
    assert storm.landed(came.kills), f"inconclusive: no kill interrupted anything; {came}"
    if bug != ACK_FIRST:
        assert came.runs > len(came.events), f"inconclusive: no kill came while a handler ran; {came}"
    with pytest.raises(AssertionError, match=shows):
        came.check()
