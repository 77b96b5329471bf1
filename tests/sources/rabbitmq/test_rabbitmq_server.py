"""The broker for tests: fetched once, shared by all, and gone when nobody is left, however they went."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.servers.process import NoServer, free_port, not_here
from tests.support.servers.rabbitmq import RabbitServer
from tests.support.servers.rabbitmq_packages import PACKAGES

ROOT = Path(__file__).parents[3]
SOON_S = 60.0
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parents")

# A machine without package lists: names are only known to whoever brings lists of their own.
APT_GET = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$*" in
  *update*) exit 0 ;;
  *Dir::State=*download*) ;;
  *) echo "E: Unable to locate package" >&2; exit 100 ;;
esac
sleep 0.1
for name in {names}; do echo x > "${{name}}_1_all.deb"; done
"""
DPKG_DEB = """#!/bin/sh
mkdir -p "$3/usr/lib/rabbitmq/lib/rabbitmq_server-1/sbin" "$3/usr/lib/erlang/erts-1/bin"
touch "$3/usr/lib/rabbitmq/lib/rabbitmq_server-1/sbin/rabbitmq-server"
"""
ASK = "from tests.support.servers.rabbitmq_packages import _unpacked; print(_unpacked())"
USE = """
import sys, time
from pathlib import Path
from tests.support.servers.process import NoServer
from tests.support.servers.rabbitmq_shared import share
try:
    broker, _ = share(Path(sys.argv[1]))
except NoServer as error:
    print("NONE", error, flush=True)
else:
    print(broker.url, flush=True)
time.sleep(600)
"""


def until(is_so: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < ends, f"waited {SOON_S:g} s for {what}"
        time.sleep(0.05)


def living(mark: str) -> list[int]:
    """Processes that have this text in their environment or command."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            text = process.joinpath("environ").read_bytes() + process.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in text and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


def test_the_packages_are_fetched_once_without_lists_and_after_a_half_finished_try(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"apt-get": APT_GET.format(names=" ".join(PACKAGES)), "dpkg-deb": DPKG_DEB}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }

    def ask(_: int) -> Path:
        command = [sys.executable, "-c", ASK]
        ran = subprocess.run(
            command, check=True, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SOON_S
        )
        return Path(ran.stdout.strip())

    tree = ask(0)
    half = tree.with_name("half")
    tree.rename(half)  # as somebody leaves it who is killed while unpacking
    (half / "rubbish").touch()
    (tmp_path / "calls").unlink()
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(ask, range(4))) == {tree}
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[-1] if "update" in call else "download" for call in calls] == [
        "download",
        "update",
        "download",
    ]
    assert (tree / "bin" / "erl").stat().st_mode & 0o111
    assert not half.exists()
    assert not (tree / "rubbish").exists()


@LINUX
def test_a_server_dies_with_its_parent_by_whatever_death() -> None:
    mark = f"semel-test-{os.getpid()}-{time.monotonic_ns()}"
    start = f"""
import time
from semel.testing.child_processes import start_child
child = start_child(["sh", "-c", "sleep 600; : {mark}"])
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", start])
    until(lambda: len(living(mark)) >= 2, "the child")
    parent.kill()
    parent.wait()
    until(lambda: not [pid for pid in living(mark) if _is_shell(pid)], "the child to die with it")


def _is_shell(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sh\0")
    except OSError:
        return False


@LINUX
def test_a_port_that_is_reserved_for_a_broker_is_not_given_to_others() -> None:
    """It takes seconds to come up, and any other test may ask for a free port meanwhile."""
    place = ("127.0.0.1", free_port())
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(place)
    with socket.create_server(place) as ours, socket.create_connection(place, SOON_S):  # says what Erlang says
        ours.accept()[0].close()


@LINUX
@pytest.mark.long  # it starts a broker of its own
def test_nothing_is_left_of_a_shared_broker_when_its_users_are_killed(tmp_path: Path) -> None:
    if RabbitServer.given() is not None:
        pytest.skip("a given broker is somebody else's")
    folder = tmp_path / "shared"
    users = [
        subprocess.Popen([sys.executable, "-c", USE, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        urls = {user.stdout.readline().strip() for user in users if user.stdout is not None}
        if any(url.startswith("NONE") for url in urls):
            not_here(NoServer(str(urls)))
        assert len(urls) == 1, "one broker for both"
        everything = living(str(folder))
        assert len(everything) >= 5, "two users, the keeper, the broker, and what tells nodes of each other"
        users[0].send_signal(signal.SIGKILL)
        users[0].wait()
        time.sleep(0.5)
        assert (folder / "told.json").exists(), "the other one still uses it"
    finally:
        for user in users:
            user.kill()
            user.wait()
            if user.stdout is not None:
                user.stdout.close()
    until(lambda: not living(str(folder)), "everything to be gone")
