"""No body and no secret gets into a log, wherever it lies and whoever writes it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.service.telemetry.lines import configure, lines, logging_restored, written

from semel.app import IncomingMessage
from semel.service.logging import MASK
from semel.settings.schema import Verify
from semel.values.errors import MalformedEvent
from semel.values.log import log
from semel.values.secret import Secret

styles = pytest.mark.parametrize("style", ["json", "console"])


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    with logging_restored():
        yield io.StringIO()


PLANTED = "hunter2-4111111111111111"


@dataclass
class Account:
    """Somebody's object, which shows everything when it is asked."""

    number: str = PLANTED

    def __str__(self) -> str:
        return self.number


class Stated(msgspec.Struct):
    number: str = PLANTED


HIDDEN_NAMES = [
    *("body", "payload", "authorization", "Authorization", "secret", "client_secret", "clientSecret", "token"),
    *("access_token", "accesstoken", "ACCESS-TOKEN", "password", "db_password", "passwd", "headers", "request_headers"),
    *("cookie", "Set-Cookie", "x-hub-signature-256", "api_key", "apiKey", "X-API-Key", "private_key", "credentials"),
    *("raw", "data", "document", "event_body", "eventBody", "content", "result", "text", "dsn", "ſecret"),
]

planted = st.sampled_from(
    [
        Secret(PLANTED),
        Secret(PLANTED, "env:NAME"),
        PLANTED.encode(),
        bytearray(PLANTED.encode()),
        memoryview(PLANTED.encode()),
        Account(),
        Stated(),
        ValueError(PLANTED),
        MalformedEvent(PLANTED),
        OSError(2, "No such file", PLANTED),
        Verify(scheme="basic", secrets=[Secret(PLANTED)]),
        IncomingMessage(PLANTED.encode(), headers={"authorization": PLANTED}),
        {"password": PLANTED},
        {PLANTED: 1},
        {"harmless": PLANTED},
    ]
)
nested = st.recursive(
    planted,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from(["a", "b", "handler"]), inner, max_size=3)
        | st.builds(lambda value: {Secret(PLANTED): value}, inner)
        | st.builds(lambda value: ValueError(value), inner)
    ),
    max_leaves=8,
)


@styles
@example(value={PLANTED: 1}, name="x")  # logging takes a lone dict for the values of %(name)s
@example(value={"harmless": PLANTED}, name="x")
@example(value=Account(), name="x")
@given(value=nested, name=st.sampled_from(["handler", "count", "key", "x"]))
def test_a_planted_secret_never_appears_however_deep_it_lies(style: str, value: object, name: str) -> None:
    def write() -> None:
        log.info("taken", **{name: value})
        plain = logging.getLogger("semel")
        plain.info("a value: %s", value)
        plain.info("a value: %r and %s", value, 1)
        plain.info("a value: %(x)s", {"x": value})
        plain.info(value)
        plain.info("extra", extra={f"{name}_": value})
        plain.info("too %s many", value, value)
        if isinstance(value, BaseException):
            plain.error("failed", exc_info=value)
            log.write(logging.ERROR, "failed", exc=value)

    text = written(style, write)
    assert text.count("\n") >= 7
    assert PLANTED not in text
    assert "hunter2" not in text


@styles
@given(name=st.sampled_from(HIDDEN_NAMES), value=st.sampled_from([PLANTED, [PLANTED], (PLANTED, 1), {"a": PLANTED}]))
def test_fields_named_like_a_body_or_a_secret_are_masked(style: str, name: str, value: object) -> None:
    def write() -> None:
        log.info("taken", **{name: value})
        logging.getLogger("semel").info("extra", extra={name: value})
        words = f"a value: %({name})s"
        logging.getLogger("semel").info(words, {name: value})

    text = written(style, write)
    assert PLANTED not in text
    assert text.count(MASK) == 3


def test_numbers_about_bodies_and_the_key_of_an_effect_are_shown(out: io.StringIO) -> None:
    configure("json", "info", out)
    own = Secret("x", "env:X")
    log.info("read", body_bytes=120, key="79357a5d3ac84597", token=4, password=1234, endpoint="/events", own=own)
    line = lines(out)[0]
    assert line["own"] == MASK
    assert (line["body_bytes"], line["key"], line["endpoint"]) == (120, "79357a5d3ac84597", "/events")
    assert (line["token"], line["password"]) == (MASK, MASK)


def test_the_asyncio_message_about_a_lost_task_does_not_quote_its_error(out: io.StringIO) -> None:
    configure("json", "info", out)

    async def fail() -> None:
        raise ValueError(PLANTED)

    async def lose() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task

    asyncio.run(lose())
    (line,) = lines(out)
    assert (line["logger"], line["event"]) == ("asyncio", "Task exception was never retrieved")
    assert line["exception"][0] == "ValueError"
    assert PLANTED not in out.getvalue()


def test_a_line_that_cannot_be_written_is_not_printed_by_logging_itself(tmp_path: Path) -> None:
    """Logging's own handling of errors prints all values to standard error."""
    program = f"""
import logging
from semel.service import logging as logs
logs.configure("json", "info", open({str(tmp_path / "log")!r}, "w", encoding="ascii"))
logging.getLogger("semel").info("ü %s", {PLANTED!r})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    line = json.loads((tmp_path / "log").read_text("ascii"))
    assert (line["event"], line["error"]) == ("log_line_failed", "UnicodeEncodeError")
