"""The page for Prometheus: what was counted is told, in its format, and nothing grows without bound."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.service.telemetry.page import samples, value

from semel.service.metrics import (
    BREAKER_STATES,
    CODES,
    CONTENT_TYPE,
    FAMILIES,
    LABELS_MAX,
    OTHER,
    OUTCOMES,
    STORE_CALLS,
    Metrics,
)
from semel.service.shared_counters import NUMBERS, SPILL, SharedCounters
from semel.values.inbox import Depth
from semel.values.outbox import Backlog


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics()
    yield metrics
    metrics.close()


def test_the_page_has_every_metric_with_its_kind_and_help(metrics: Metrics) -> None:
    metrics.handler("greet")
    metrics.endpoint("/events")
    metrics.destination("crm")
    metrics.source("queue")
    metrics.provider("sms")
    page, content_type = metrics.exposition([], backlog=[])
    told = {family.name: family for family in text_string_to_metric_families(page.decode())}
    assert content_type == CONTENT_TYPE
    assert {(family.name.removesuffix("_total"), family.kind, family.help) for family in FAMILIES} == {
        (name, family.type, family.documentation) for name, family in told.items()
    }


def test_series_begin_at_zero_so_that_the_first_event_is_an_increase(metrics: Metrics) -> None:
    metrics.handler("greet")
    metrics.endpoint("/events")
    assert [value(metrics, "semel_deliveries_total", handler="greet", outcome=outcome) for outcome in OUTCOMES] == [
        0.0
    ] * len(OUTCOMES)
    assert value(metrics, "semel_http_answers_total", endpoint="/events", status="503") == 0.0


def test_counters_count(metrics: Metrics) -> None:
    greet = metrics.handler("greet")
    for _ in range(3):
        greet.outcomes["done"].up()
    greet.outcomes["duplicate"].up()
    greet.fenced.up()
    metrics.handler("greet").failed_open.up()
    assert value(metrics, "semel_deliveries_total", handler="greet", outcome="done") == 3
    assert value(metrics, "semel_fence_refusals_total", handler="greet") == 1
    assert value(metrics, "semel_fail_open_runs_total", handler="greet") == 1
    assert value(metrics, "semel_takeovers_total", handler="greet") == 0


def test_duplicates_and_conflicts_are_read_off_the_deliveries(metrics: Metrics) -> None:
    metrics.handler("greet").outcomes["duplicate"].up()
    metrics.handler("greet").outcomes["conflict"].up()
    metrics.handler("other").outcomes["duplicate"].up()
    assert value(metrics, "semel_duplicates_total", handler="greet") == 1
    assert value(metrics, "semel_conflicts_total", handler="greet") == 1
    assert value(metrics, "semel_conflicts_total", handler="other") == 0


def test_an_answer_with_a_status_of_no_list_is_counted_as_other(metrics: Metrics) -> None:
    endpoint = metrics.endpoint("/events")
    for status in (200, 200, 418, 599):
        endpoint.answered(status)
    assert value(metrics, "semel_http_answers_total", endpoint="/events", status="200") == 2
    assert value(metrics, "semel_http_answers_total", endpoint="/events", status=OTHER) == 2


def test_a_histogram_puts_a_value_at_a_bound_into_its_bucket(metrics: Metrics) -> None:
    seconds = metrics.handler("greet").seconds
    for taken in (0.0, 0.001, 0.0011, 0.3, 1_000.0):
        seconds.saw(taken)

    def up_to(bound: str) -> float | None:
        return value(metrics, "semel_handler_seconds_bucket", handler="greet", le=bound)

    assert [up_to(bound) for bound in ("0.001", "0.005", "0.25", "0.5", "300.0", "+Inf")] == [2, 3, 3, 4, 4, 5]
    assert value(metrics, "semel_handler_seconds_count", handler="greet") == 5
    assert value(metrics, "semel_handler_seconds_sum", handler="greet") == pytest.approx(1000.3021)


def test_a_breaker_reports_its_state_and_counts_only_changes(metrics: Metrics) -> None:
    crm = metrics.destination("crm")
    for state in ("closed", "open", "open", "half-open", "open", "half-open", "closed", "closed"):
        crm.set_state(state)
        expected = BREAKER_STATES.index(state)
        assert value(metrics, "semel_destination_breaker_state", destination="crm") == expected
    name = "semel_destination_breaker_transitions_total"
    assert [value(metrics, name, destination="crm", to=state) for state in BREAKER_STATES] == [1, 2, 2]
    metrics.ledger_breaker.set_state("open")
    assert value(metrics, "semel_ledger_breaker_state") == 2
    assert value(metrics, "semel_ledger_breaker_transitions_total", to="open") == 1


def test_the_inbox_depth_is_exposed_and_an_empty_lane_is_zero(metrics: Metrics) -> None:
    metrics.handler("greet")
    metrics.handler("idle")
    depths = [Depth("greet", waiting=3, taken=1, oldest_ms=97_500), Depth("removed", waiting=1, taken=0, oldest_ms=0)]
    for _ in range(2):  # a scrape leaves nothing behind
        assert value(metrics, "semel_inbox_depth", depths, lane="greet", state="waiting") == 3
        assert value(metrics, "semel_inbox_depth", depths, lane="greet", state="taken") == 1
        assert value(metrics, "semel_inbox_oldest_seconds", depths, lane="greet") == 2.5
    assert value(metrics, "semel_inbox_oldest_seconds", depths, lane="removed") == 100
    assert value(metrics, "semel_inbox_depth", depths, lane="idle", state="waiting") == 0
    assert value(metrics, "semel_inbox_oldest_seconds", depths, lane="idle") == 0


def test_an_unavailable_inbox_is_left_out_of_the_page(metrics: Metrics) -> None:
    metrics.handler("greet")
    assert value(metrics, "semel_inbox_depth", None, lane="greet", state="waiting") is None


def test_an_inbox_with_a_clock_ahead_of_ours_is_not_younger_than_now(metrics: Metrics) -> None:
    depths = [Depth("greet", waiting=1, taken=0, oldest_ms=200_000)]
    assert value(metrics, "semel_inbox_oldest_seconds", depths, lane="greet") == 0


def test_the_number_of_label_values_is_bounded(metrics: Metrics) -> None:
    for number in range(LABELS_MAX + 50):
        metrics.handler(f"handler-{number}").outcomes["done"].up()
        metrics.endpoint(f"/{number}").answered(200)
        metrics.destination(f"d{number}").set_state("open")
    depths = [Depth(f"lane-{number}", 1, 0, 0) for number in range(3 * LABELS_MAX)]
    told = samples(metrics.exposition(depths, now_ms=0)[0])

    def values_of(label: str) -> set[str]:
        return {found for _, labels in told for name, found in labels if name == label}

    assert all(len(values_of(label)) <= LABELS_MAX + 1 for label in ("handler", "endpoint", "destination", "lane"))
    assert told["semel_deliveries_total", frozenset({("handler", OTHER), ("outcome", "done")})] == 50
    assert sum(count for (name, _), count in told.items() if name == "semel_inbox_depth") == 3 * LABELS_MAX


def test_a_series_without_room_spills_and_spoils_no_other(caplog: pytest.LogCaptureFixture) -> None:
    slots = SharedCounters(None, ())
    kept = slots.row(("kept",), 1)
    slots.numbers[kept] = 7
    for number in range(NUMBERS // 50):
        at = slots.row(("filler", str(number)), 60)
        assert at + 60 <= NUMBERS
        for place in range(60):
            slots.numbers[at + place] += 1
    assert caplog.text.count("metrics_full metric=filler") == 1
    (sheet,) = slots.read()
    assert sheet["kept",] == (7,)
    assert {row for name, row in sheet.items() if name[0] == "filler"} == {(1.0,) * 60}
    assert len(sheet) == 1 + (NUMBERS - SPILL - 2) // 60
    slots.close()


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "new\nline", "ünïcödé", "", "a" * 5_000])
def test_any_handler_name_is_exposed_unchanged(metrics: Metrics, name: str) -> None:
    metrics.handler(name).outcomes["done"].up()
    assert value(metrics, "semel_deliveries_total", handler=name, outcome="done") == 1


def test_no_increment_of_any_thread_is_lost(metrics: Metrics) -> None:
    number = metrics.handler("greet").outcomes["done"]
    seconds = metrics.handler("greet").seconds
    start = threading.Barrier(4)

    def count() -> None:
        start.wait()
        for _ in range(50_000):
            number.up()
            seconds.saw(0.5)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(metrics, "semel_deliveries_total", handler="greet", outcome="done") == 200_000
    assert value(metrics, "semel_handler_seconds_sum", handler="greet") == 100_000


def test_every_round_trip_to_the_store_has_its_numbers(metrics: Metrics) -> None:
    assert set(metrics.ledger_seconds) == set(metrics.ledger_failures) == set(STORE_CALLS)
    assert all(code == OTHER or 100 <= int(code) <= 599 for code in CODES)


def test_the_outbox_backlog_is_exposed_and_not_added_up(metrics: Metrics) -> None:
    metrics.provider("sms")
    metrics.provider("idle")
    backlog = [
        Backlog("sms", "pending", 3, oldest_ms=97_500),
        Backlog("sms", "uncertain", 2, oldest_ms=0),
        Backlog("@email", "pending", 1, oldest_ms=0),
    ]
    told = samples(metrics.exposition([], now_ms=100_000, backlog=backlog)[0])

    def of(name: str, **labels: str) -> float:
        return told[name, frozenset(labels.items())]

    assert of("semel_outbox_depth", provider="sms", delivery_state="pending") == 3
    assert of("semel_outbox_depth", provider="sms", delivery_state="uncertain") == 2
    assert of("semel_outbox_depth", provider="idle", delivery_state="pending") == 0
    assert of("semel_outbox_oldest_seconds", provider="sms") == 2.5  # what is uncertain waits for somebody else
    assert of("semel_outbox_oldest_seconds", provider="@email") == 100
    assert not any(name == "semel_outbox_depth" for name, _ in samples(metrics.exposition([])[0]))
