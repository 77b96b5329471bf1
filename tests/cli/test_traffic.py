"""Made-up traffic: the same seed is the same bytes, copies are copies, and the storm needs no memory."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections import Counter
from typing import Any

import pytest

from semel.cli.sink import identity
from semel.testing.shapes import SHAPES, Shape
from semel.testing.traffic import BURST_EVENTS, REORDER_MAX, Traffic, TrafficArrival
from semel.wiring import decode

every_shape = pytest.mark.parametrize("shape", SHAPES)
KNOWN_AS = {
    "eventbridge": "genesys-eventbridge",
    "detail": "genesys-detail",
    "webhook": "webhook",
    "open-messaging": "open-messaging",
    "cloudevents": "cloudevents",
}


def storm(seed: int = 1, shape: Shape = "eventbridge", events: int = 700, **options: Any) -> list[TrafficArrival]:
    return list(Traffic(seed, shape, **options).storm(events, 0.5))


@every_shape
def test_the_same_seed_creates_the_same_bytes(shape: Shape) -> None:
    assert storm(3, shape) == storm(3, shape)
    assert storm(3, shape) != storm(4, shape)


@every_shape
def test_an_event_can_be_created_again_by_its_number(shape: Shape) -> None:
    traffic = Traffic(5, shape)
    bodies = {at: traffic.body(at) for at in range(2_000)}
    assert [traffic.body(at) for at in (1_999, 0, 700)] == [bodies[at] for at in (1_999, 0, 700)]
    assert len(set(bodies.values())) == 2_000


@every_shape
@pytest.mark.parametrize("burst", [True, False])
def test_every_copy_is_the_same_event_for_semel_and_for_the_sink(shape: Shape, burst: bool) -> None:
    """Both find identities by themselves; the generator knows them by construction."""
    traffic = Traffic(7, shape, burst=burst)
    fingerprints: dict[int, set[tuple[Any, ...]]] = {}
    for arrival in traffic.storm(500, 0.8):
        event = decode(arrival.body)
        assert event.shape == KNOWN_AS[shape]
        assert identity(arrival.body) == traffic.identity(arrival.at)
        fingerprints.setdefault(arrival.at, set()).add((event.origin, event.identity, event.payload()))
    assert len(fingerprints) == 500
    assert {len(same) for same in fingerprints.values()} == {1}
    assert len({next(iter(same)) for same in fingerprints.values()}) == 500


@every_shape
def test_a_redelivery_has_the_same_bytes_and_a_producer_s_retry_has_others(shape: Shape) -> None:
    traffic = Traffic(2, shape)
    kinds = Counter[str]()
    for arrival in traffic.storm(400, 0.5):
        kinds[arrival.copy] += 1
        assert (arrival.body == traffic.body(arrival.at)) == (arrival.copy != "producer")
    assert kinds[""] == 400
    assert kinds["redelivery"] + kinds["producer"] == 200
    assert min(kinds.values()) > 20


def test_a_producer_s_retry_through_eventbridge_has_a_new_id_around_the_same_detail() -> None:
    traffic = Traffic(2)
    retries = [arrival for arrival in traffic.storm(400, 0.5) if arrival.copy == "producer"]
    for arrival in retries:
        first, again = json.loads(traffic.body(arrival.at)), json.loads(arrival.body)
        assert first["detail"] == again["detail"]
        assert first["id"] != again["id"]
        assert first["time"] < again["time"]


def test_copies_follow_their_original_and_some_are_late() -> None:
    arrivals = storm(events=3_000)
    first: dict[int, int] = {}
    behind = []
    for place, arrival in enumerate(arrivals):
        assert (arrival.at in first) == (arrival.copy != ""), "a copy came before its original"
        first.setdefault(arrival.at, place)
        behind += [place - first[arrival.at]] if arrival.copy else []
    assert max(behind) > 500
    assert sorted(behind)[len(behind) // 2] < 100


def test_neighbours_are_swapped_unless_the_order_is_kept() -> None:
    moved = [at for at, copy, _ in Traffic(1).storm(1_000, 0.3) if not copy]
    kept = [at for at, copy, _ in Traffic(1).storm(1_000, 0.3, reorder=False) if not copy]
    assert kept == list(range(1_000))
    assert moved != kept
    assert sorted(moved) == kept
    assert max(abs(at - place) for place, at in enumerate(moved)) <= 2 * REORDER_MAX + 1


def test_events_of_a_burst_share_a_millisecond_and_others_do_not() -> None:
    def times(burst: bool) -> Counter[int]:
        traffic = Traffic(1, burst=burst)
        return Counter(json.loads(traffic.body(at))["detail"]["eventBody"]["eventTime"] for at in range(500))

    assert set(times(burst=True).values()) == {BURST_EVENTS}
    assert set(times(burst=False).values()) == {1}


@pytest.mark.parametrize(("events", "duplicates"), [(1, 0.0), (1, 10.0), (99, 0.3), (101, 0.3), (1_000, 0.0), (7, 1.0)])
def test_a_storm_has_the_requested_number_of_copies(events: int, duplicates: float) -> None:
    arrivals = list(Traffic(9).storm(events, duplicates))
    assert len(arrivals) == events + round(events * duplicates)
    assert {arrival.at for arrival in arrivals} == set(range(events))


def test_conversations_are_in_order_and_overlap() -> None:
    events = [json.loads(Traffic(1).body(at))["detail"] for at in range(70)]
    by_conversation: dict[str, list[str]] = {}
    for event in events:
        topic = event["topicName"]
        by_conversation.setdefault(event["eventBody"]["conversationId"], []).append(
            topic.partition(".conversation.")[2]
        )
    assert len(by_conversation) == 10
    for steps in by_conversation.values():
        assert steps[0].endswith("customer.start")
        assert steps[-1].endswith("customer.end")
        assert len(set(steps)) == 7


def test_a_large_storm_is_created_while_it_is_sent() -> None:
    arrivals = Traffic(1).storm(1_000_000, 0.3)
    tracemalloc.start()
    try:
        made = sum(1 for _ in itertools.islice(arrivals, 10_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made == 10_000
    assert peak < 2_000_000, "10,000 bodies would be 14 MB"
