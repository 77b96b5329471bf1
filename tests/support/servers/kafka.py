"""Kafka for tests: librdkafka's mock cluster in a process of its own, on loopback, or a broker that is given.

    server = KafkaServer(folder)             # or KafkaServer.given()
    server.start()
    server.create("orders", partitions=3)
    source = KafkaSource(server.servers, ["orders"], group="billing", dead_letters="orders-dead")

The mock speaks the protocol of Kafka by real sockets: consumer groups with the cooperative-sticky assignor, committed
offsets, idempotent producers, headers and timestamps. It is no model of Kafka in everything: nothing is on disk or
replicated or compacted, a partition keeps its newest 5 MB, no client is authenticated, a group's session may be
as short as one likes, and a message as large. The rest is shown where SEMEL_TEST_KAFKA names a broker.

A given broker (SEMEL_TEST_KAFKA, its bootstrap servers) is neither started nor stopped here, and cannot be broken on
purpose. Its topics are made by an admin client: the mock cluster cannot be asked that way.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any, Self

from tests.support.servers.process import NoServer, ServerProcess, free_port

GIVEN = "SEMEL_TEST_KAFKA"
BROKERS = 3
ANSWER_S = 10.0
PRODUCE, FETCH, OFFSET_COMMIT = 0, 1, 8  # requests, as the protocol numbers them


class KafkaServer:
    """One cluster and the way to it."""

    def __init__(self, folder: Path, brokers: int = BROKERS) -> None:
        self._folder = folder
        self.brokers = brokers
        self._process: ServerProcess | None = None
        self._control = 0
        self.servers = ""

    @classmethod
    def given(cls) -> Self | None:
        """The broker that SEMEL_TEST_KAFKA names; None: there is none."""
        servers = os.environ.get(GIVEN)
        if not servers:
            return None
        server = cls(Path())
        server.servers = servers
        return server

    @property
    def is_given(self) -> bool:
        return bool(self.servers) and self._process is None

    @property
    def process(self) -> ServerProcess:
        """To be killed and paused. After a kill it has forgotten everything, and its ports."""
        assert self._process is not None, "a given broker belongs to somebody else, or it was not started"
        return self._process

    def start(self) -> None:
        """Raises NoServer."""
        if self.is_given:
            return
        library()  # says what is missing
        self._folder.mkdir(parents=True, exist_ok=True)
        self._control = free_port()
        command = [sys.executable, "-m", __name__, str(self._control), str(self.brokers)]
        self._process = ServerProcess(command, self._answers, self._folder / "kafka.log")
        self._process.start()
        self.servers = self._ask("servers")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def create(self, topic: str, partitions: int = 1) -> None:
        """A topic of the mock cluster."""
        assert not self.is_given, "topics of a given broker are made by an admin client"
        self._ask(f"topic {topic} {partitions}")

    def down(self) -> None:
        """No broker listens, and every connection is cut. They forget nothing."""
        for broker in range(1, self.brokers + 1):
            self._ask(f"down {broker}")

    def up(self) -> None:
        for broker in range(1, self.brokers + 1):
            self._ask(f"up {broker}")

    def refuse(self, request: int, code: int, count: int = 1) -> None:
        """The next requests of this kind are answered with this error of the protocol."""
        self._ask(f"refuse {request} {code} {count}")

    def _answers(self) -> bool:
        try:
            return bool(self._ask("servers"))
        except OSError:
            return False

    def _ask(self, command: str) -> str:
        with socket.create_connection(("127.0.0.1", self._control), ANSWER_S) as connection:
            connection.sendall(f"{command}\n".encode())
            answer = connection.makefile("rb").readline().decode().strip()
        if not answer or answer.startswith("error"):
            raise RuntimeError(f"the mock cluster was asked {command!r}: {answer or 'it is gone'}")
        return answer


# ------------------------------------------------------------------------------------------ the process of the cluster


def library() -> Path:
    """librdkafka, as the wheel of confluent-kafka brings it. Raises NoServer, which says what to do."""
    wheel = find_spec("confluent_kafka")
    if wheel is not None and wheel.origin is not None:
        for found in (Path(wheel.origin).parent.parent / "confluent_kafka.libs").glob("librdkafka*"):
            return found
    raise NoServer(f"librdkafka's mock cluster is not here: pip install confluent-kafka (a wheel), or set {GIVEN}")


class MockCluster:
    """The part of librdkafka's own test interface that we need."""

    def __init__(self, brokers: int) -> None:
        self._c = ctypes.CDLL(str(library()))
        for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
            getattr(self._c, name).restype = ctypes.c_void_p
        self._c.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        said = ctypes.create_string_buffer(512)
        settings = ctypes.c_void_p(self._c.rd_kafka_conf_new())
        self._c.rd_kafka_conf_set(settings, b"log_level", b"3", said, ctypes.c_size_t(512))
        client = self._c.rd_kafka_new(0, settings, said, ctypes.c_size_t(512))
        assert client, said.value
        self._cluster = ctypes.c_void_p(self._c.rd_kafka_mock_cluster_new(ctypes.c_void_p(client), brokers))
        self._call("group_initial_rebalance_delay_ms", 0)  # a group's first member waits for nobody

    def answer(self, command: str) -> str:
        match command.split():
            case ["servers"]:
                servers: bytes = self._c.rd_kafka_mock_cluster_bootstraps(self._cluster)
                return servers.decode()
            case ["topic", name, partitions]:
                return self._done(self._call("topic_create", name.encode(), int(partitions), 1))
            case [("down" | "up") as how, broker]:
                return self._done(self._call(f"broker_set_{how}", ctypes.c_int32(int(broker))))
            case ["refuse", request, code, count]:
                codes = (ctypes.c_int * int(count))(*[int(code)] * int(count))
                self._call(
                    "push_request_errors_array", ctypes.c_int16(int(request)), ctypes.c_size_t(int(count)), codes
                )
                return "done"
            case _:
                return "error: no such command"

    def _call(self, name: str, *given: Any) -> int:
        return int(getattr(self._c, f"rd_kafka_mock_{name}")(self._cluster, *given) or 0)

    @staticmethod
    def _done(code: int) -> str:
        return "done" if code == 0 else f"error {code}"


def _serve(port: int, brokers: int) -> None:
    cluster = MockCluster(brokers)

    class Asked(StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(f"{cluster.answer(self.rfile.readline().decode())}\n".encode())

    ThreadingTCPServer.allow_reuse_address = True  # its port is kept for it
    with ThreadingTCPServer(("127.0.0.1", port), Asked) as server:
        server.serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
