"""A replica of a PostgreSQL server of ours, which can take its place."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.servers import postgres
from tests.support.servers.postgres import PostgresServer
from tests.support.servers.process import NoServer, ServerProcess, free_port

from semel.testing.laws.faults import wait_until

COPY_S = 120.0


class Standby(PostgresServer):
    """Copied from its primary when it is first started, by way of `link` (a URL that leads to the primary)."""

    def __init__(self, folder: Path, primary: PostgresServer, link: str) -> None:
        super().__init__(folder)
        self._primary = primary
        self._link = link

    def follow(self, *, synchronous: bool) -> None:
        """Start it, and wait until it has everything. A synchronous one has each commit before it is answered."""
        self.start()
        if synchronous:
            self._primary.execute("alter system set synchronous_standby_names = '*'", "select pg_reload_conf()")
        wanted = "sync" if synchronous else "async"
        streams = f"select 1 from pg_stat_replication where state = 'streaming' and sync_state = '{wanted}'"
        wait_until(lambda: bool(self._primary.execute(streams)), f"a replica that is {wanted}")

    def promote(self) -> None:
        """It is a primary from now on."""
        assert self.execute("select pg_promote(true, 60)") == [["t"]]

    def _made(self) -> ServerProcess:
        user = postgres.NOBODY_UID if os.geteuid() == 0 else None
        self._folder.mkdir(parents=True, exist_ok=True)
        if user is not None:
            os.chown(self._folder, user, user)
        programs, data = postgres._programs(), self._folder / "data"
        made = subprocess.run(
            [str(programs / "pg_basebackup"), "-d", self._link, "-D", str(data), "-R", "-c", "fast", "--no-sync"],
            check=False,
            capture_output=True,
            text=True,
            timeout=COPY_S,
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
        )
        if made.returncode:
            raise NoServer(f"pg_basebackup failed: {made.stderr[-2000:]}")
        self.port = free_port()
        settings = {**self._settings, "port": str(self.port)}
        return ServerProcess(
            [str(programs / "postgres"), "-D", str(data), *[f"--{name}={value}" for name, value in settings.items()]],
            self._answers,
            self.log,
            user=user,
        )
