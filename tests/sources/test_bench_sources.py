"""The measures of sources run, and measure what they say they do."""

from __future__ import annotations

import asyncio

from bench.sources.sqs import bodies, by_hand, by_semel


def test_each_message_is_handled_and_batches_save_requests() -> None:
    messages = bodies(300)
    assert len(set(messages)) == 210
    ours = asyncio.run(by_semel(messages, "memory://", pollers=4, lanes=2))
    theirs = asyncio.run(by_hand(messages[:20]))
    assert ours.requests < 0.5 < 2 <= theirs.requests
    assert ours.rate > theirs.rate
