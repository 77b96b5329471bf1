"""Where RabbitMQ's programs are: on the PATH, or Debian's packages, unpacked into the user's cache folder.

No root is needed for that, and nothing is installed. Where the machine has no package lists, lists of our own are
fetched. Several processes may want the programs at the same moment: one fetches them, the others wait.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from tests.support.servers.process import NoServer

PACKAGES = (
    "rabbitmq-server",
    *(f"erlang-{part}" for part in ("base", "asn1", "crypto", "eldap", "ftp", "inets", "mnesia", "os-mon")),
    *(f"erlang-{part}" for part in ("parsetools", "public-key", "runtime-tools", "snmp", "ssl", "syntax-tools")),
    *(f"erlang-{part}" for part in ("tftp", "tools", "xmerl")),
)
FETCH_S = 600.0  # 34 MB, perhaps over a slow line
ASK_S = 60.0
INSTEAD = "install rabbitmq-server, or set SEMEL_TEST_RABBITMQ_URL"
OURS = "bin"  # in the unpacked tree: what we put before everything else on its PATH

# Debian's own `erl` knows only where it would have been installed.
ERL = """#!/bin/sh
ROOTDIR="$(cd "$(dirname "$0")/../usr/lib/erlang" && pwd)"
BINDIR="$(echo "$ROOTDIR"/erts-*/bin)"
EMU=beam
PROGNAME=erl
export ROOTDIR BINDIR EMU PROGNAME
exec "$BINDIR/erlexec" "$@"
"""


@dataclass(frozen=True)
class Programs:
    """Of one installation."""

    server: Path  # the script that becomes the broker
    erlang: Path  # the folder of `epmd` and `erl_call`
    path: str  # the PATH on which `erl` is found


def find_programs() -> Programs:
    """Raises NoServer, which says what to do."""
    found = shutil.which("rabbitmq-server")
    if found is not None and shutil.which("erl") is not None:
        return _installed(Path(found).resolve())
    tree = _unpacked()
    try:
        (server,) = tree.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
        (erlang,) = tree.glob("usr/lib/erlang/erts-*/bin")
    except ValueError:
        raise NoServer(f"Debian's packages in {tree} are not what they used to be: {INSTEAD}") from None
    return Programs(server, erlang, f"{tree / OURS}{os.pathsep}{os.environ.get('PATH', os.defpath)}")


def _installed(server: Path) -> Programs:
    if server.name == "rabbitmq-script-wrapper":  # Debian's: only for root, and for the one broker of the machine
        server = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    asked = 'io:put_chars([code:root_dir(), "/erts-", erlang:system_info(version), "/bin"]), halt().'
    told = _run(["erl", "-noshell", "-eval", asked], ASK_S)
    return Programs(server, Path(told), os.environ.get("PATH", os.defpath))


def _unpacked() -> Path:
    """The root of the unpacked packages. It is there as a whole or not at all."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NoServer(f"RabbitMQ is not here, and Debian's packages cannot be had without apt-get: {INSTEAD}")
    place = _cache() / f"rabbitmq-{_release()}"
    tree = place / "root"
    if not tree.exists():
        place.mkdir(parents=True, exist_ok=True)
        with _alone(place / "lock"):
            if not tree.exists():
                _unpack(_downloaded(place), tree)
    return tree


def _unpack(packages: Sequence[Path], tree: Path) -> None:
    half = tree.with_name("half")
    shutil.rmtree(half, ignore_errors=True)  # of somebody who was killed here
    half.mkdir()
    for package in packages:
        _run(["dpkg-deb", "-x", str(package), str(half)], FETCH_S)
    (half / OURS).mkdir(exist_ok=True)
    (half / OURS / "erl").write_text(ERL)
    (half / OURS / "erl").chmod(0o755)
    half.rename(tree)
    shutil.rmtree(tree.with_name("packages"), ignore_errors=True)


def _downloaded(place: Path) -> list[Path]:
    """What was fetched already, and is whole, is not fetched again."""
    folder = place / "packages"
    folder.mkdir(exist_ok=True)
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root"]
    try:
        _run([*command, "download", *PACKAGES], FETCH_S, folder)
    except NoServer:  # most often there are no lists on this machine, or old ones
        own = place / "apt"
        for name in ("state/lists/partial", "cache/archives/partial"):
            (own / name).mkdir(parents=True, exist_ok=True)
        options = ["-o", f"Dir::State={own}/state", "-o", f"Dir::Cache={own}/cache"]
        options += ["-o", "Dir::State::status=/var/lib/dpkg/status"]
        _run([*command, *options, "update"], FETCH_S)
        _run([*command, *options, "download", *PACKAGES], FETCH_S, folder)
        shutil.rmtree(own, ignore_errors=True)
    found = sorted(folder.glob("*.deb"))
    names = {package.name.partition("_")[0] for package in found}
    if missing := set(PACKAGES) - names:
        raise NoServer(f"apt-get did not bring {', '.join(sorted(missing))}: {INSTEAD}")
    return found


def _release() -> str:
    """Of this machine: another release has other packages."""
    told: Mapping[str, str] = {}
    release = Path("/etc/os-release")
    if release.exists():
        lines = (line.partition("=") for line in release.read_text().splitlines())
        told = {name: value.strip('"') for name, _, value in lines}
    return f"{told.get('ID', 'unknown')}-{told.get('VERSION_ID', '0')}-{os.uname().machine}"


def _cache() -> Path:
    """The user's cache folder, or one of the user's own among the temporary files."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        (home / "semel").mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(gettempdir()) / f"semel-{os.getuid()}"
    return home / "semel"


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time. The lock of a dead one is free."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], within_s: float, folder: Path | None = None) -> str:
    try:
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=within_s, cwd=folder)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoServer(f"{command[0]} failed: {error}; {INSTEAD}") from None
    if ran.returncode:
        raise NoServer(f"{' '.join(command[:6])} … failed: {ran.stderr.strip()[-1500:]}; {INSTEAD}")
    return ran.stdout.strip()


if __name__ == "__main__":  # fetch them ahead of the tests: python -m tests.support.servers.rabbitmq_packages
    print(find_programs().server)
