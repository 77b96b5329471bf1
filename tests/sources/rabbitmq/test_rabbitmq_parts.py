"""What needs no broker: names, delays, frames, copies, and what is refused before anything is opened."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from semel.sources.rabbitmq_queue import RabbitPublisher, RabbitSource
from semel.sources.rabbitmq_queue.messages import (
    DELAYS_S,
    RETRIES,
    WAIT,
    RabbitMessage,
    dead_letter_copy,
    next_wait,
    remaining_wait_s,
    retry_copy,
    wait_queue,
)
from semel.sources.rabbitmq_queue.options import display_url, driver_url
from semel.sources.rabbitmq_queue.session import (
    UNREADABLE,
    AckBatcher,
    rabbit_error,
    readable_frame,
)
from semel.values.errors import ConfigError

URL = "amqp://me:s3cret-word@broker.example/orders"


def held_with(
    headers: Mapping[str, Any] | None = None, exchange: str = "", routing_key: str = "q", **more: Any
) -> RabbitMessage:
    properties = Basic.Properties(headers=dict(headers) if headers is not None else None, **more)
    message = SimpleNamespace(
        body=b"x",
        header=SimpleNamespace(properties=properties),
        delivery=SimpleNamespace(delivery_tag=1, exchange=exchange, routing_key=routing_key),
    )
    session: Any = None
    return RabbitMessage(session, message, 0.0)


# ---------------------------------------------------------------------------------------------------------- the address


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dead_letters": ""}, "dead_letters"),
        ({"dead_letters": "orders"}, "'orders'"),
        ({"queue": ""}, "queue"),
        ({"queue": "q" * 250}, "queue"),
        ({"prefetch": 0}, "prefetch=0"),
        ({"prefetch": True}, "prefetch=True"),
        ({"consumer_timeout": 0.0}, "consumer_timeout=0.0"),
        ({"url": "http://broker.example"}, "amqp://"),
        ({"url": "amqp:///orders"}, "amqp://"),
        ({"url": f"{URL}?hartbeat=3"}, "'hartbeat'"),
        ({"url": f"{URL}?cafile=ca.pem"}, "amqps://"),
        ({"url": "amqp://me:s3cret-word/@broker.example/orders"}, "percent-encode"),
    ],
)
def test_invalid_options_are_refused_at_once_without_the_password(change: Mapping[str, Any], said: str) -> None:
    given: dict[str, Any] = {"url": URL, "queue": "orders", "dead_letters": "orders.dead", **change}
    with pytest.raises(ConfigError) as refused:
        RabbitSource(given.pop("url"), given.pop("queue"), **given)
    assert said in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_nothing_shows_the_password() -> None:
    source = RabbitSource(f"{URL}?heartbeat=5", "orders", dead_letters="orders.dead")
    for text in (repr(source), repr(RabbitPublisher(URL, "orders")), display_url(URL), source._where):
        assert "s3cret" not in text
        assert "broker.example" in text
    assert display_url("amqp://me:s3:cret@[::1]:99999999/") == "amqp://…"
    assert "s3cret" not in str(rabbit_error(OSError(111, "refused"), display_url(URL)))


@pytest.mark.parametrize("change", [{"queue": ""}, {"timeout": 0}, {"timeout": 61}, {"exchange": "x" * 256}])
def test_a_publisher_that_cannot_work_is_refused_at_once(change: Mapping[str, Any]) -> None:
    given: dict[str, Any] = {"queue": "orders", **change}
    with pytest.raises(ConfigError):
        RabbitPublisher(URL, given.pop("queue"), **given)


def test_a_connection_has_a_heartbeat_and_a_name_unless_the_url_sets_them() -> None:
    assert driver_url(URL, "a&b") == f"{URL}?heartbeat=30&name=a%26b"
    assert driver_url(f"{URL}?heartbeat=5&name=mine", "ours") == f"{URL}?heartbeat=5&name=mine"


# ----------------------------------------------------------------------------------------------------------- the delays


@given(st.floats(min_value=0.0, max_value=100 * 365 * 86_400.0))
def test_a_wait_is_never_shorter_than_requested_and_ends(after_s: float) -> None:
    waited, rounds = 0.0, 0
    left_s = after_s
    while left_s > 0 and rounds < 40_000:
        delay_s, left_s = next_wait(left_s)
        assert delay_s in DELAYS_S
        waited, rounds = waited + delay_s, rounds + 1
    assert waited >= after_s - 1e-6
    assert waited <= max(1.0, 2 * after_s)
    assert next_wait(0.0) == (0, 0.0)


def test_the_longest_name_of_a_queue_still_fits() -> None:
    name = "q" * (255 - 16)
    RabbitSource(URL, name, dead_letters="dead")
    assert max(len(wait_queue(name, delay)) for delay in DELAYS_S) <= 255


# ----------------------------------------------------------------------------------------------------- acknowledgements


class Told:
    """What a channel of the broker has heard, and what it holds it for."""

    def __init__(self, delivered: int) -> None:
        self.open = set(range(1, delivered + 1))
        self.acked: list[int] = []
        self.frames = 0

    async def basic_ack(self, tag: int, *, multiple: bool, wait: bool) -> None:
        self.frames += 1
        assert tag in self.open, "unknown delivery tag: the broker closes the channel"
        meant = {one for one in self.open if one <= tag} if multiple else {tag}
        self.open -= meant
        self.acked += sorted(meant)
        await asyncio.sleep(0)

    async def basic_nack(self, tag: int, *, requeue: bool, wait: bool) -> None:
        assert requeue
        self.open.remove(tag)
        await asyncio.sleep(0)


@given(st.permutations(range(1, 21)), st.sets(st.integers(1, 20)), st.sets(st.integers(0, 19)), st.integers(0, 20))
def test_exactly_the_answered_tags_are_acknowledged_in_any_order(
    order: list[int], returned: set[int], pauses: set[int], answered: int
) -> None:
    async def story() -> Told:
        channel: Any = Told(20)
        acks = AckBatcher(channel, lambda _: None, lambda *_: None)
        for at, tag in enumerate(order[:answered]):
            (acks.return_message if tag in returned else acks.ack)(tag)
            if at in pauses:
                await asyncio.sleep(0)
        await acks.drained()
        return channel  # type: ignore[no-any-return]

    told = asyncio.run(story())
    assert sorted(told.acked) == sorted(set(order[:answered]) - returned)
    assert told.open == set(order[answered:])


def test_a_batch_that_was_answered_in_order_is_one_frame() -> None:
    async def story() -> Told:
        channel: Any = Told(100)
        acks = AckBatcher(channel, lambda _: None, lambda *_: None)
        for tag in range(1, 101):
            acks.ack(tag)
        await acks.drained()
        return channel  # type: ignore[no-any-return]

    told = asyncio.run(story())
    assert (told.frames, told.open) == (1, set())


# ----------------------------------------------------------------------------------------------------------- the copies


def test_a_copy_keeps_the_message_and_drops_properties_that_would_reroute_it() -> None:
    theirs = {"a": 1, "nested": {"b": [True, None]}, "semel": "{}"}
    ours = {"CC": ["x"], "x-death": [{"count": 1}], "x-first-death-queue": "q", "x-delivery-count": 3}
    held = held_with(
        {**theirs, **ours},
        exchange="events",
        routing_key="a.b",
        message_id="m",
        correlation_id="c",
        content_type="application/json",
        expiration="5000",
        user_id="them",
        delivery_mode=1,
    )
    copy = retry_copy(held, 0.0)
    said = {"semel.exchange": "events", "semel.routing_key": "a.b", "semel.user_id": "them"}
    assert copy.headers == {**theirs, **said, "semel.expiration": "5000", RETRIES: 1}
    assert (copy.message_id, copy.correlation_id, copy.content_type) == ("m", "c", "application/json")
    assert (copy.expiration, copy.user_id, copy.delivery_mode) == (None, None, 2)
    again = retry_copy(held_with(copy.headers, exchange="", routing_key="orders"), 0.0)
    assert again.headers is not None
    assert again.headers[RETRIES] == 2
    assert again.headers["semel.exchange"] == "events", "where it first came from"
    dead_letter = dead_letter_copy(held, "orders", "é" * 5_000 + "\ud800")
    assert dead_letter.headers is not None
    assert dead_letter.headers["semel.queue"] == "orders"
    assert len(str(dead_letter.headers["semel.reason"]).encode()) <= 2_000


def test_a_long_wait_counts_as_one_retry() -> None:
    first = retry_copy(held_with(), 3600.0)
    assert first.headers is not None
    assert (first.headers[RETRIES], remaining_wait_s(held_with(first.headers))) == (1, 3600.0)
    second = retry_copy(held_with(first.headers), 0.0)
    assert second.headers is not None
    assert (second.headers[RETRIES], WAIT in second.headers) == (1, False)


@pytest.mark.parametrize("forged", ["nan", "inf", "-1", "x" * 40, 5, None, b"9", "1e99", {}])
def test_a_wait_that_a_stranger_wrote_is_a_number_or_nothing(forged: Any) -> None:
    assert remaining_wait_s(held_with({WAIT: forged})) == 0.0


field = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.text(max_size=20),
        st.binary(max_size=20),
        st.binary(max_size=20).map(bytearray),
        st.decimals(allow_nan=False, allow_infinity=False),
        st.datetimes(max_value=datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=150), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=150), field, max_size=4))
def test_any_header_that_the_driver_reads_can_be_written_again(headers: dict[str, Any]) -> None:
    copy = dead_letter_copy(held_with(headers), "orders", "because")
    frame = pamqp.frame.marshal(ContentHeader(body_size=1, properties=copy), 1)
    _, _, header = pamqp.frame.unmarshal(frame)
    assert isinstance(header, ContentHeader)
    assert header.properties.headers is not None
    assert header.properties.headers["semel.reason"] == "because"


def test_numbers_that_do_not_fit_survive_as_text() -> None:
    copy = retry_copy(held_with({"big": 1e300, "odd": 0.1, "half": 0.5, "decimal": Decimal("1E+20")}), 0.0)
    assert copy.headers is not None
    assert copy.headers["big"] == "1e+300"
    assert copy.headers["odd"] == "0.1"
    assert copy.headers["half"] == 0.5
    assert copy.headers["decimal"] == "1E+20"


# ------------------------------------------------------------------------------------------------------ careful reading


def frame_of(properties: bytes, flags: int, body_size: int = 7) -> bytes:
    payload = (60).to_bytes(2) + bytes(2) + body_size.to_bytes(8) + flags.to_bytes(2) + properties
    return b"\x02" + (5).to_bytes(2) + len(payload).to_bytes(4) + payload + b"\xce"


@pytest.mark.parametrize(
    ("flags", "properties"),
    [
        (1 << 15, b"\x04caf\xe9"),  # a content type in Latin-1
        (1 << 6, (1_700_000_000_000_000).to_bytes(8)),  # a time in microseconds
        (1 << 13, (7).to_bytes(4) + b"\x01aZ1234"),  # a header of a type that nobody knows
        (1 << 13, (6).to_bytes(4) + b"\x02\xff\xfet\x01\x00"),  # a header's name that is no text
    ],
)
def test_unreadable_properties_are_replaced_by_the_reason(flags: int, properties: bytes) -> None:
    frame = frame_of(properties, flags)
    with pytest.raises(Exception, match=r"."):
        pamqp.frame.unmarshal(frame)
    _, channel, header = pamqp.frame.unmarshal(readable_frame(frame))
    assert isinstance(header, ContentHeader)
    assert (channel, header.body_size) == (5, 7)
    assert header.properties.headers is not None
    assert "properties" in str(header.properties.headers[UNREADABLE])


def test_readable_properties_are_unchanged() -> None:
    frame = frame_of(b"\x04text", 1 << 15)
    assert readable_frame(frame) is frame
