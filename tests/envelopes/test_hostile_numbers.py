"""Numbers that are slow to convert cost about as much per byte as ordinary ones.

Costs are compared within one run, each as the least of several rounds, with a document of equal size that holds
ordinary numbers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.service.verification.sns_sender import TOPIC, Host

import semel
from semel.envelopes import decode
from semel.providers.callbacks import parse_json
from semel.values.errors import MalformedEvent
from semel.values.strict_json import parse
from semel.verifiers.sns import SnsVerifier

SIZE = 260_000  # bytes, about what a webhook takes
ROUNDS = 7
ORDINARY = "0.5555"
TIMES_MAX = 30  # Python needs up to 10 times as long for 1e-400, and it is read twice; msgspec 400 times for 3e292

SLOW = [
    "3e292",
    "-1e308",
    "5e-324",
    "1.7976931348623157e308",
    "2.2250738585072014e-308",
    "1e23",
    "1E5",
    "1e-400",
    "9" * 400,
]


def numbers(number: str, size: int = SIZE) -> bytes:
    return b"[" + b",".join([number.encode()] * (size // (len(number) + 1))) + b"]"


def least_s(work: Callable[[], Any]) -> float:
    """The least processor time of several rounds. A loaded machine interrupts long work more often than short work."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def tolerant(read: Callable[[bytes], Any], body: bytes) -> Callable[[], Any]:
    def work() -> None:
        with suppress(MalformedEvent):
            read(body)

    return work


def webhook(list_of_numbers: bytes) -> bytes:
    return b'{"id":"e-1","type":"t","data":' + list_of_numbers + b"}"


def genesys(list_of_numbers: bytes) -> bytes:
    body = b'{"eventTime":1649237504949,"x":' + list_of_numbers + b"}"
    return b'{"id":"b","detail-type":"t","source":"s","detail":{"topicName":"v2.x","eventBody":' + body + b"}}"


READERS: dict[str, tuple[Callable[[bytes], Any], Callable[[bytes], bytes]]] = {
    "strict parse": (parse, bytes),
    "webhook": (decode, webhook),
    "genesys by content": (decode, genesys),
    "provider callback": (lambda body: parse_json(body, "it"), bytes),
}


@pytest.mark.long  # times of 60 numbers, compared
@pytest.mark.parametrize("number", SLOW, ids=lambda number: number[:24])
@pytest.mark.parametrize("reader", READERS)
def test_slow_numbers_cost_about_as_much_as_ordinary_ones(reader: str, number: str) -> None:
    read, around = READERS[reader]
    slow_s = least_s(tolerant(read, around(numbers(number))))
    ordinary_s = least_s(tolerant(read, around(numbers(ORDINARY))))
    assert slow_s < TIMES_MAX * ordinary_s, f"{slow_s * 1000:.1f} ms, ordinary numbers {ordinary_s * 1000:.1f} ms"


@pytest.mark.parametrize("number", SLOW, ids=lambda number: number[:24])
def test_numbers_of_a_message_that_is_not_verified_are_skipped(number: str) -> None:
    """Anyone may post to an `sns` endpoint. Before the signature is checked, unknown members are not decoded."""
    head = b'{"Type":"Notification","MessageId":"m","Timestamp":"t","TopicArn":"a","Message":"m","x":'
    hostile = head + numbers(number) + b"}"
    ours = SnsVerifier([TOPIC], Host().fetch, time.time)

    def refused() -> None:
        with pytest.raises(StopIteration) as answer:  # it ends without waiting for anything
            ours.objection({}, hostile).send(None)
        assert "topics" in answer.value.value

    assert least_s(refused) < 0.1 * least_s(tolerant(parse, numbers(ORDINARY)))


def test_nothing_from_outside_is_decoded_without_types_by_msgspecs_own_conversion() -> None:
    package = Path(semel.__file__).parent
    shipped = [path for path in package.rglob("*.py") if not path.is_relative_to(package / "testing")]
    untyped = re.compile(r"json\.Decoder\(\)|msgspec\.json\.decode\([^,()]*\)")
    assert len(shipped) > 100
    assert [path.name for path in shipped if untyped.search(path.read_text())] == []


@pytest.mark.parametrize(
    "number", ["1e999", "-1e999", "1e400000000000", "9" * 400 + ".0", "1.7976931348623159e308"], ids=lambda n: n[:24]
)
def test_a_number_out_of_range_is_refused(number: str) -> None:
    with pytest.raises(MalformedEvent, match="range"):
        parse(b"[" + number.encode() + b"]")


@pytest.mark.parametrize("number", [*SLOW[:-1], "0.1", "-0.0", "123456789.123456789"])
def test_a_number_has_the_value_that_python_reads(number: str) -> None:
    assert parse(number.encode()) == float(number)
