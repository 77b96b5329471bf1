"""Semel's SQS source on a queue a millisecond away, against the loop that one would write by hand on the same queue."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from dataclasses import dataclass
from typing import Any

from bench.sources.fake_sqs import ROUND_TRIP_S, FakeSqs

from semel import Context, Event, Semel
from semel.adapters.sources.sqs import SqsSource

URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/bench"
DUPLICATES = 0.3
PEER_SHARE = 20  # the loop is so slow that it gets a part of the messages


@dataclass(frozen=True)
class Sample:
    rate: float  # messages a second
    cpu_us: float  # of this process, for each message
    requests: float  # to the queue, for each message


def bodies(count: int) -> list[str]:
    """Genesys events through EventBridge, of which some come twice."""
    distinct = max(1, round(count * (1 - DUPLICATES)))
    return [_event(at % distinct) for at in range(count)]


def _event(number: int) -> str:
    return json.dumps(
        {
            "version": "0",
            "id": f"0f9e-{number}",
            "detail-type": "v2.detail.events.conversation.{id}.customer.end",
            "source": "aws.partner/genesys.com/cloud/org/bench",
            "account": "123456789012",
            "time": "2026-03-19T22:04:48Z",
            "region": "eu-central-1",
            "resources": [],
            "detail": {
                "topicName": f"v2.detail.events.conversation.{number}.customer.end",
                "version": "2",
                "eventBody": {
                    "eventTime": 1649237504949 + number,
                    "conversationId": f"conversation-{number}",
                    "participantId": f"participant-{number}",
                    "sessionId": f"session-{number}",
                    "mediaType": "CHAT",
                },
                "metadata": {"CorrelationId": f"correlation-{number}"},
                "timestamp": "2022-04-06T09:30:45.013Z",
            },
        },
        separators=(",", ":"),
    )


async def by_semel(messages: list[str], ledger: str, *, pollers: int, lanes: int) -> Sample:
    """The whole flow: decode, key, claim, handler, settle, delete."""
    queue = FakeSqs(messages)
    ran = 0
    async with Semel(ledger) as app:

        @app.on("v2.**")
        async def handle(event: Event, ctx: Context) -> None:
            nonlocal ran
            ran += 1

        source = SqsSource(
            URL,
            dead_letters=URL + "-dead",
            pollers=pollers,
            max_in_flight=max(1_000, pollers * 20),
            wait=1,
            connect=queue.connect,
        )
        gc.collect()
        began, cpu = time.perf_counter(), time.process_time()
        workers = [asyncio.ensure_future(app.worker(source).run()) for _ in range(lanes)]
        await queue.empty.wait()
        sample = _sample(len(messages), began, cpu, queue)
        source.stop()
        await asyncio.gather(*workers)
        await source.close()
    assert ran == len(set(messages)), "each event acts once"
    return sample


async def by_hand(messages: list[str]) -> Sample:
    """Receive one, SETNX, act, delete it. SETNX is as far away as the queue."""
    queue = FakeSqs(messages)
    known: set[str] = set()
    ran = 0
    gc.collect()
    began, cpu = time.perf_counter(), time.process_time()
    while queue.left:
        for message in (await queue.receive_message(WaitTimeSeconds=1))["Messages"]:
            event: dict[str, Any] = json.loads(message["Body"])
            await asyncio.sleep(ROUND_TRIP_S)
            if event["id"] not in known:
                known.add(event["id"])
                ran += 1
            await queue.delete_message(ReceiptHandle=message["ReceiptHandle"])
    assert ran == len(set(messages))
    return _sample(len(messages), began, cpu, queue)


def _sample(count: int, began: float, cpu: float, queue: FakeSqs) -> Sample:
    seconds = time.perf_counter() - began
    return Sample(count / seconds, (time.process_time() - cpu) / count * 1e6, queue.requests / count)
