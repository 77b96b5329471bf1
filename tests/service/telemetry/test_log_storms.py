"""A line that repeats itself is left out after a while, and counted."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable

from tests.service.telemetry.lines import lines

from semel.service.logging import SAME_MAX, Lines, Outlet


def storm(stream: io.StringIO, clock: Callable[[], float]) -> logging.Logger:
    outlet = Outlet(stream, clock)
    outlet.setFormatter(Lines(lambda line: json.dumps(line)))
    logger = logging.Logger("stormy")  # noqa: LOG001 - of this test alone
    logger.addHandler(outlet)
    return logger


def test_the_same_line_is_written_a_few_times_a_second_and_the_rest_is_counted() -> None:
    out, now = io.StringIO(), [10.0]
    logger = storm(out, lambda: now[0])
    for number in range(1_000):
        logger.warning("the ledger is slow: %d", number)
    logger.warning("something else")
    assert [line["event"] for line in lines(out)] == [
        *(f"the ledger is slow: {number}" for number in range(SAME_MAX)),
        "something else",
    ]
    now[0] = 11.0
    logger.info("the next second")
    told, last = lines(out)[-2:]
    assert (told["event"], told["line"], told["times"]) == ("lines_omitted", "the ledger is slow: %d", 1_000 - SAME_MAX)
    assert (told["level"], told["logger"]) == ("warning", "stormy")
    assert last["event"] == "the next second"
    logger.warning("the ledger is slow: %d", 1_000)
    assert lines(out)[-1]["event"] == "the ledger is slow: 1000", "each second begins anew"


def test_omitted_lines_are_counted_at_the_end_too() -> None:
    out = io.StringIO()
    logger = storm(out, lambda: 10.0)
    for _ in range(SAME_MAX + 3):
        logger.error("again")
    logger.handlers[0].close()
    assert (lines(out)[-1]["event"], lines(out)[-1]["times"]) == ("lines_omitted", 3)


def test_a_storm_of_different_lines_is_bounded_too() -> None:
    out, now = io.StringIO(), [10.0]
    logger = storm(out, lambda: now[0])
    for number in range(5_000):
        logger.warning(f"line {number}")  # noqa: G004 - as careless programs do
    assert len(lines(out)) == 1_000 + SAME_MAX
    now[0] = 11.0
    logger.warning("calm")
    assert lines(out)[-2]["times"] == 4_000 - SAME_MAX
