"""Where a message could be lost or held for ever between two threads: each of these was, once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.sources.kafka.test_kafka_groups import bodies, opened, received, run, until
from tests.sources.kafka.topics import SOON_S, Topics

from semel.adapters.sources.kafka import KafkaSource
from semel.adapters.sources.kafka import source as source_module
from semel.adapters.sources.kafka.options import Options
from semel.adapters.sources.kafka.sending import Sender
from semel.adapters.sources.kafka.steps import Step
from semel.testing.servers.kafka import PRODUCE, KafkaServer
from semel.values.errors import ConfigError

NOT_ENOUGH_REPLICAS = 19


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_what_is_given_up_while_its_partition_is_taken_away_is_not_committed(topics: Topics) -> None:
    """It has no dead letter: whoever gets the partition next has to see it."""
    leaving, rejected = threading.Event(), threading.Event()
    armed: list[bool] = []

    def observe(step: str) -> None:
        poller = source._poller or ending[0]
        if step == Step.BEFORE_COMMIT and armed and not poller._lanes:  # the last commit of a partition
            leaving.set()
            assert rejected.wait(SOON_S), "nobody has rejected"

    source = topics.source(observe=observe)
    ending: list[Any] = []

    async def story() -> None:
        topics.send(bodies(2))
        async with opened(source):
            first, second = await received(source, 2)
            ending.append(source._poller)
            own = source._poller
            assert own is not None
            refused = own._commit_before_leaving
            # The commits before the revoke are refused, so that there is something to be committed by it.
            own._commit_now_and_then = lambda: None  # type: ignore[method-assign]
            await first.ack()
            armed.append(True)
            other = topics.source()
            async with opened(other):
                own._let_go = own._consumer.close  # type: ignore[method-assign]
                own.ending = True
                await asyncio.to_thread(leaving.wait, SOON_S)
                assert leaving.is_set(), "inconclusive: no commit while leaving"
                await second.reject("nobody can act on it")
                rejected.set()
                await asyncio.wait_for(source._let_go.wait(), SOON_S)
                assert refused is not None
                assert topics.positions() == {0: 1}, "what has no letter is buried"
                (again,) = await received(other, 1)
                assert again.body == second.body
                await again.ack()
        assert topics.left() == 0
        assert topics.letters() == []

    run(story)
