"""RabbitMQ for tests: a broker of our own on free ports of loopback, or one that is given.

    server = RabbitServer(folder)            # or RabbitServer.given()
    server.start()
    source = RabbitSource(server.url, "orders", dead_letters="orders.dead")

Its programs are found by `rabbitmq_packages`. It can be killed and started again on its data, and it dies with the
process that started it, however that ends. `rabbitmq_shared` shares one between all processes of a test run.

A given broker (SEMEL_TEST_RABBITMQ_URL, `amqp://user:password@host/vhost`) must let its user declare queues. It is
neither started nor stopped here, and can be asked nothing but what AMQP answers.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from tests.support.servers.process import NoServer, ServerProcess, free_port, given_url
from tests.support.servers.rabbitmq_packages import Programs, find_programs

USER = "semel"
PASSWORD = "test-password"  # of a broker on loopback that lives as long as a test
ANSWER_S = 30.0
SETTINGS = {
    "default_user": USER,
    "default_pass": PASSWORD,
    "loopback_users.guest": "true",
    "log.console.level": "warning",
    "disk_free_limit.absolute": "50MB",  # its own default stops all publishers on a small disk
    "vm_memory_high_watermark.relative": "0.6",
}


@dataclass(frozen=True)
class Broker:
    """The ways to a broker that runs."""

    url: str  # amqp://user:password@host:port/vhost
    distribution: int = 0  # the port on which Erlang nodes talk to it; 0: it is not ours
    home: str = ""  # where its cookie is, which lets other nodes talk to it
    erl_call: str = ""

    @property
    def is_ours(self) -> bool:
        return bool(self.distribution)

    def evaluate(self, expressions: str) -> str:
        """Erlang, within the broker. For what AMQP does not tell: it takes some milliseconds."""
        ran = subprocess.run(
            [self.erl_call, "-address", f"127.0.0.1:{self.distribution}", "-h", f"c{uuid4().hex}", "-e"],
            check=False,
            input=f"{expressions}.\n",
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            env={"HOME": self.home},
        )
        if ran.returncode or not ran.stdout.startswith("{ok, "):
            raise NoServer(f"RabbitMQ did not evaluate {expressions!r}: {ran.stdout}{ran.stderr}")
        return ran.stdout.strip().removeprefix("{ok, ").removesuffix("}")

    def messages(self, queue: str) -> int:
        """All that a quorum queue of the vhost / holds, in somebody's hands or not. AMQP tells only the latter."""
        asked = f"ra:leader_query({{'%2F_{queue}', node()}}, fun rabbit_fifo:query_messages_total/1)"
        return int(self.evaluate(f"case {asked} of {{ok, {{_, Count}}, _}} -> Count end"))

    def told(self) -> dict[str, str | int]:
        """For another process, as JSON takes it."""
        return asdict(self)


class RabbitServer:
    """One broker and the ways to it. `settings` as in rabbitmq.conf, `environment` as in advanced.config:
    `{"channel_tick_interval": "500"}`."""

    def __init__(
        self, folder: Path, settings: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._settings = {**SETTINGS, **(settings or {})}
        self._environment = dict(environment or {})
        self._process: ServerProcess | None = None
        self._names: ServerProcess | None = None  # epmd, which tells Erlang nodes of each other
        self._broker: Broker | None = None

    @classmethod
    def given(cls) -> Broker | None:
        """The broker that SEMEL_TEST_RABBITMQ_URL names; None: there is none."""
        url = given_url("RABBITMQ")
        return None if url is None else Broker(url)

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "the broker was not started"
        return self._broker

    @property
    def url(self) -> str:
        return self.broker.url

    @property
    def process(self) -> ServerProcess:
        """To be killed, paused and started again: same port, same data."""
        assert self._process is not None, "the broker was not started"
        return self._process

    def start(self) -> None:
        """The first time it makes its data; later it goes on with them. Raises NoServer."""
        if self._process is None:
            self._make()
        assert self._names is not None
        if not self._names.running:
            self._names.start()
        try:
            self.process.start()
        except NoServer:
            self._names.kill()
            raise

    def stop(self) -> None:
        """Its data belong to a test: nobody needs it to end gracefully, which takes long."""
        for process in (self._process, self._names):
            if process is not None:
                process.kill()

    def _make(self) -> None:
        programs = find_programs()
        self._folder.mkdir(parents=True, exist_ok=True)
        port, distribution, names = free_port(), free_port(), free_port()
        _write_secret(self._folder / ".erlang.cookie", secrets.token_hex(16))
        config = [f"{name} = {value}\n" for name, value in self._settings.items()]
        (self._folder / "rabbitmq.conf").write_text("".join(config))
        more = ", ".join(f"{{{name}, {value}}}" for name, value in self._environment.items())
        (self._folder / "advanced.config").write_text(f"[{{rabbit, [{more}]}}].\n")
        environment = self._variables(programs, port, distribution, names)
        self._names = ServerProcess(
            [str(programs.erlang / "epmd"), "-port", str(names), "-address", "127.0.0.1"],
            lambda: _listens(names),
            self._folder / "epmd.log",
            environment=environment,
        )
        self._process = ServerProcess(
            ["sh", str(programs.server)],
            lambda: _listens(port),
            self._folder / "log",
            environment=environment,
        )
        url = f"amqp://{USER}:{PASSWORD}@127.0.0.1:{port}/"
        self._broker = Broker(url, distribution, str(self._folder), str(programs.erlang / "erl_call"))

    def _variables(self, programs: Programs, port: int, distribution: int, names: int) -> dict[str, str]:
        """Nothing of the machine's own broker, nor of the user's Erlang."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        folder = self._folder
        return {
            **clean,
            "PATH": programs.path,
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "semel@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "config"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_ALLOW_INPUT": "1",  # its script then becomes the broker, and does not stay as its parent
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1}",
        }


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def _write_secret(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(file, text.encode())
    os.close(file)
