"""Logs: one format for everybody's lines, none of which can be forged, is endless, or tells a secret."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.telemetry.lines import configure, lines, logging_restored, written
from tests.service.telemetry.spans import ids, remembered

from semel.service import logging as logs
from semel.service.logging import ITEMS_MAX, TEXT_MAX, Lines
from semel.values.errors import LedgerUnavailable
from semel.values.log import log

styles = pytest.mark.parametrize("style", ["json", "console"])


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    with logging_restored():
        yield io.StringIO()


# ------------------------------------------------------------------------------------------------- one format


def test_a_line_is_json_with_time_level_logger_event_and_fields(out: io.StringIO) -> None:
    configure("json", "info", out)
    log.info("taken", lane="greet", count=3, late=True, after_s=0.5, nothing=None, lanes=["a", 1])
    (line,) = lines(out)
    assert datetime.fromisoformat(line.pop("timestamp")).tzinfo == UTC
    assert list(line.items()) == [
        *(("level", "info"), ("logger", "semel"), ("event", "taken"), ("lane", "greet"), ("count", 3)),
        *(("late", True), ("after_s", 0.5), ("lanes", ["a", 1])),
    ]


def test_lines_of_logging_and_of_uvicorn_look_the_same(out: io.StringIO) -> None:
    configure("json", "info", out)
    logging.getLogger("semel").warning("%s: %d left", "greet", 3, extra={"handler": "greet"})
    logging.getLogger("uvicorn.error").info("Started [%d]", 7, extra={"color_message": "Started [\x1b[36m%d\x1b[0m]"})
    logging.getLogger("somebody").info("a %(kind)s one", {"kind": "named"})
    first, second, third = lines(out)
    assert (first["event"], first["handler"], first["level"]) == ("greet: 3 left", "greet", "warning")
    assert (second["event"], second["logger"]) == ("Started [7]", "uvicorn.error")
    assert "color_message" not in second
    assert third["event"] == "a named one"


def test_levels_are_ours_and_libraries_never_say_what_they_send(out: io.StringIO) -> None:
    configure("json", "debug", out)
    logging.getLogger("somebody").debug("sending")
    logging.getLogger("semel").debug("heard")
    log.debug("heard too")
    configure("json", "warning", out)
    logging.getLogger("semel").info("not heard")
    log.info("not heard")
    logging.getLogger("uvicorn.error").info("not heard")
    logging.getLogger("somebody").info("not heard")
    assert [line["event"] for line in lines(out)] == ["heard", "heard too"]


def test_configuring_twice_writes_once(out: io.StringIO) -> None:
    before = io.StringIO()
    configure("json", "info", before)
    logs.configure("json", "info", out)
    logging.getLogger("semel").info("once")
    assert (len(lines(out)), before.getvalue()) == (1, "")


def test_uvicorn_has_no_log_handlers_and_no_access_log_by_default(out: io.StringIO) -> None:
    access = logging.getLogger("uvicorn.access")
    access.addHandler(logging.StreamHandler(io.StringIO()))
    configure("json", "info", out)
    assert not access.hasHandlers(), "uvicorn looks at this, and makes no line at all"
    configure("json", "info", out, access=True)
    access.info('%s - "%s %s"', "127.0.0.1", "GET", "/healthz")
    assert [line["event"] for line in lines(out)] == ['127.0.0.1 - "GET /healthz"']


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_text_on_a_terminal_and_json_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    with logging_restored():
        terminal, pipe = Terminal(), io.StringIO()
        for stream in (terminal, pipe):
            configure("auto", "info", stream)
            log.info("taken", lane="greet")
        assert "\x1b[" in terminal.getvalue()
        assert lines(pipe)[0]["lane"] == "greet"


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def line() -> None:
        log.info("taken", lane="greet")

    assert re.fullmatch(r"\S+Z? \[info +\] taken +\[semel\] lane=greet *\n", written("console", line))
    monkeypatch.setenv("NO_COLOR", "1")
    with logging_restored():
        terminal = Terminal()
        configure("console", "info", terminal)
        line()
        assert "\x1b" not in terminal.getvalue()


def test_a_log_line_has_the_ids_of_its_span(out: io.StringIO) -> None:
    configure("json", "info", out)
    with remembered() as spans:
        with spans.tracing.receive({}, "/events"):
            logging.getLogger("semel").info("inside")
        logging.getLogger("semel").info("outside")
        inside, outside = lines(out)
        trace, span = ids(spans.ended()["semel.receive"])
    assert (inside["trace_id"], inside["span_id"]) == (f"{trace:032x}", f"{span:016x}")
    assert "trace_id" not in outside


def test_an_error_is_logged_with_its_type_and_location(out: io.StringIO) -> None:
    configure("json", "info", out)
    try:
        try:
            raise LedgerUnavailable("the disk is full")
        except LedgerUnavailable as error:
            raise RuntimeError("about +49 170 1234567") from error
    except RuntimeError:
        log.exception("it failed")
        logging.getLogger("semel").exception("it failed")
    for line in lines(out):
        kind, place, cause, origin = line["exception"]
        assert kind == "RuntimeError"
        assert cause.endswith("LedgerUnavailable: the disk is full")
        for frame in (place, origin):
            assert re.search(r"test_logs\.py:\d+.*test_an_error_is_logged_with_its_type_and_location", frame)
    assert "1234567" not in out.getvalue()


def test_the_errors_of_a_group_are_logged(out: io.StringIO) -> None:
    configure("json", "info", out)
    group = ExceptionGroup("secret words", [ValueError("more"), OSError(28, "No space left on device", "/a/path")])
    log.write(logging.ERROR, "several", exc=group)
    kind, first, second = lines(out)[0]["exception"]
    assert kind == "ExceptionGroup"
    assert first.endswith("ValueError")
    assert second.endswith("OSError: No space left on device")


def test_an_error_that_is_its_own_cause_ends(out: io.StringIO) -> None:
    configure("json", "info", out)
    error = ValueError()
    error.__cause__ = error
    log.write(logging.ERROR, "round and round", exc=error)
    assert len(lines(out)[0]["exception"]) == 10


# --------------------------------------------------------------------------------------------------- forging

FORGERIES = [
    'x\n{"level":"error","event":"forged"}',
    "x\r\n2026-01-01T00:00:00Z [error    ] forged",
    "x\x1b[2K\x1b[1Gforged",
    "x\u2028forged",
    "x\u0085forged",
    "x\x0bforged\x0c",
    "x\u202egnidrof",
    "x\x00\x07\x08\x7f\x9b31m",
    "x\ud800y",
]


@styles
@pytest.mark.parametrize("forgery", FORGERIES, ids=ascii)
def test_no_value_ends_its_line_or_moves_the_cursor(style: str, forgery: str) -> None:
    def write() -> None:
        logging.getLogger("semel").warning("from %s", forgery, extra={"field": forgery, forgery: 1})
        logging.getLogger("semel").warning(forgery)
        logging.getLogger(forgery).warning("named")
        log.warning(forgery, value=forgery, **{forgery: forgery}, items=[forgery])
        log.write(logging.WARNING, "x", exc=OSError(1, forgery))
        log.write(logging.WARNING, "x", exc=type(forgery.replace("\0", "").replace("\ud800", ""), (Exception,), {})())

    text = written(style, write)
    plain = [line for line in text.split("\n")[:-1] if style == "json" or not line.startswith("    ")]
    assert len(plain) == 6
    assert all(line.isprintable() for line in text.split("\n"))
    assert not any(line.startswith(("forged", "2026-01-01", '{"level"')) for line in plain)


def test_no_field_can_pretend_to_be_ours(out: io.StringIO) -> None:
    configure("json", "info", out)
    log.info("true", level="critical", timestamp="1970", logger="root", trace_id="0", span_id="0", exception="no")
    logging.getLogger("semel").info("true", extra={"level": "critical", "event": "false", "timestamp": "1970"})
    for line in lines(out):
        assert (line["level"], line["event"], line["logger"]) == ("info", "true", "semel")
        assert line["timestamp"] > "2020"
        assert not {"trace_id", "span_id", "exception"} & set(line)


@given(st.text(), st.text(min_size=1))
def test_any_text_comes_back_as_one_line(text: str, name: str) -> None:
    said = written("json", lambda: log.info(text, field=text, extra={name: text}))
    (line,) = said.splitlines()
    assert line.isprintable()
    assert json.loads(line)["event"] is not None


# ----------------------------------------------------------------------------------------------------- length


def test_every_value_is_bounded(out: io.StringIO) -> None:
    configure("json", "info", out)
    huge = "x" * 1_000_000
    log.info(huge, field=huge, items=[huge] * 1_000, many=list(range(1_000)), number=10**10_000, **{huge: huge})
    logging.getLogger("semel").info("%s and %s", huge, huge)
    log.info("fields", **{f"field{number}": number for number in range(1_000)})
    first, second, third = lines(out)
    assert first["field"].startswith("x" * TEXT_MAX + "…")
    assert "1000000" in first["field"]
    assert first["many"][:-1] == [*range(ITEMS_MAX)]
    assert "1000" in first["many"][-1]
    assert len(str(first["number"])) < 50
    assert all(len(json.dumps(line)) < 10_000 for line in (first, second, third))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -(10**30), 2**64, object(), print, ..., Lines, {1: 2}])
def test_any_object_can_be_a_field(out: io.StringIO, value: object) -> None:
    configure("json", "info", out)
    log.info("x", field=value)
    assert "field" in lines(out)[0]


class Hostile:
    """An object that fails at whatever it is asked."""

    def __repr__(self) -> str:
        raise RuntimeError("hostile")

    __str__ = __repr__

    def __len__(self) -> int:
        raise RuntimeError("hostile")

    def __iter__(self) -> Iterator[object]:
        raise RuntimeError("hostile")

    def __contains__(self, _: object) -> bool:
        raise RuntimeError("hostile")


@styles
def test_an_object_that_cannot_be_shown_costs_no_line(style: str) -> None:
    def write() -> None:
        log.info("x", field=Hostile(), items=[Hostile()])
        logging.getLogger("semel").info("from %s", Hostile())
        logging.getLogger("semel").info(Hostile())

    assert written(style, write).count("<Hostile>") == 4


def test_a_line_whose_words_do_not_fit_its_values_is_still_written(out: io.StringIO) -> None:
    configure("json", "info", out)
    logging.getLogger("semel").info("%s and %s", "only one")
    logging.getLogger("semel").info("%d", "no number")
    logging.getLogger("semel").info("%(missing)s", {"there": 1})
    assert [line["event"] for line in lines(out)] == ["%s and %s", "%d", "%(missing)s"]


class Broken(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_a_closed_log_stream_stops_nothing_and_leaks_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with logging_restored():
        configure("json", "info", Broken())
        logging.getLogger("semel").info("into the void with %s", "a secret")
    assert capfd.readouterr() == ("", "")
