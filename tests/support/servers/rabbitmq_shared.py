"""One RabbitMQ for all processes of a test run: Erlang takes seconds of two cores to start, and 150 MB.

    broker, leave = share(folder)            # the same folder for all of them
    ...
    leave()

The first that needs a broker starts a keeper, a process of its own, and the keeper starts the broker. Whoever uses it
holds a connection to the keeper, which ends with the last of them: also when they are killed, because then the kernel
hangs up for them. The broker dies with the keeper.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from tests.support.servers.process import NoServer
from tests.support.servers.rabbitmq import Broker, RabbitServer

ROOT = Path(__file__).parents[3]
TOLD, FAILED, SAID = "told.json", "failed", "keeper.log"
READY_S = 900.0  # the packages may have to be fetched first
FIRST_S = 60.0  # for the one who started the keeper to come
HELLO_S = 10.0
HELLO = b"here"


def share(folder: Path) -> tuple[Broker, Callable[[], None]]:
    """The broker that runs for this folder, started if there is none, and the way to leave it. Raises NoServer."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (failed := folder / FAILED).exists():
            raise NoServer(failed.read_text())
        joined = _join(folder)
        if joined is None:
            _start_keeper(folder)
            joined = _join(folder)
    if joined is None:
        raise NoServer(f"the keeper of RabbitMQ has gone again: {_said(folder)}")
    broker, line = joined
    return broker, line.close


def _join(folder: Path) -> tuple[Broker, socket.socket] | None:
    """None: nobody keeps a broker here."""
    try:
        told = json.loads((folder / TOLD).read_text())
        line = socket.create_connection(("127.0.0.1", told.pop("door")), HELLO_S)
    except (OSError, ValueError):
        return None
    with suppress(OSError):
        if line.recv(len(HELLO)) == HELLO:
            return Broker(**told), line
    line.close()  # it is about to end
    return None


def _start_keeper(folder: Path) -> None:
    """It may outlive us: others use it too."""
    (folder / TOLD).unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.support.servers.rabbitmq_shared", str(folder)]
    said = os.open(folder / SAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    actions = [(os.POSIX_SPAWN_DUP2, nothing, 0), (os.POSIX_SPAWN_DUP2, said, 1), (os.POSIX_SPAWN_DUP2, said, 2)]
    found_at = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": found_at}  # the working directory may be another one
    keeper = os.posix_spawn(command[0], command, environment, file_actions=actions, setpgroup=0)
    os.close(said)
    os.close(nothing)
    ends = time.monotonic() + READY_S
    while not (folder / TOLD).exists():
        if (failed := folder / FAILED).exists():
            os.waitpid(keeper, 0)
            raise NoServer(failed.read_text())
        if os.waitpid(keeper, os.WNOHANG)[0] or time.monotonic() > ends:
            raise NoServer(f"the keeper of RabbitMQ did not come up: {_said(folder)}")
        time.sleep(0.05)


def _said(folder: Path) -> str:
    return (folder / SAID).read_text(errors="replace")[-2000:]


def _keep(folder: Path) -> None:
    """Until nobody holds a connection to us any more."""
    server = RabbitServer(folder / f"node-{uuid4().hex[:8]}")
    try:
        server.start()
    except NoServer as error:
        _write(folder / FAILED, str(error))
        return
    try:
        with socket.create_server(("127.0.0.1", 0)) as door:
            _write(folder / TOLD, json.dumps({**server.broker.told(), "door": door.getsockname()[1]}))
            _serve(door)
    finally:
        (folder / TOLD).unlink(missing_ok=True)
        server.stop()


def _serve(door: socket.socket) -> None:
    lines: list[socket.socket] = []
    wait_s = FIRST_S
    while readable := select.select([door, *lines], [], [], None if lines else wait_s)[0]:
        for one in readable:
            if one is door:
                line, _ = door.accept()
                line.sendall(HELLO)
                lines.append(line)
            else:  # nobody ever says anything: it has hung up
                lines.remove(one)
                one.close()
        wait_s = 0.0


def _write(path: Path, text: str) -> None:
    """At once: whoever sees the file sees all of it."""
    half = path.with_suffix(".half")
    half.write_text(text)
    half.rename(path)


if __name__ == "__main__":
    os.umask(0o077)
    _keep(Path(sys.argv[1]))
