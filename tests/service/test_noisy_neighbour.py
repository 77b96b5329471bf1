"""Large batches of one API client do not make the service refuse everybody else."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

from tests.service.running import Running, event, service

from semel.cli.token import make_token

ROUTE = '[[routes]]\nname = "all"\ntopics = ["**"]\nconsole = true\n'
ENDPOINTS = '[[endpoints]]\npath = "/inline"\nmode = "inline"\n[[endpoints]]\npath = "/inbox"\n'
BATCH = 500
CONNECTIONS = 4
SECONDS = 6.0


class Noise:
    """Connections that claim and settle one batch after the other."""

    def __init__(self, running: Running, bearer: dict[str, str]) -> None:
        self.statuses: Counter[int] = Counter()
        self._running, self._bearer = running, bearer
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(CONNECTIONS)]

    def _send(self, number: int) -> None:
        sent = 0
        while not self._over.is_set():
            sent += 1
            items = [{"handler": "h", "key": [f"{number}-{sent}-{item}"]} for item in range(BATCH)]
            claimed = self._running.post("/v1/claims", {"items": items}, self._bearer, 60)
            self.statuses[claimed.status] += 1
            if claimed.status == 200:
                done = [{"lease": verdict["lease"], "outcome": "done"} for verdict in claimed.json["items"]]
                self.statuses[self._running.post("/v1/claims/settle", {"items": done}, self._bearer, 60).status] += 1

    def __enter__(self) -> Noise:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def test_batches_of_four_connections_leave_single_requests_alone(tmp_path: Path) -> None:
    token, digest = make_token()
    tokens = f'[[tokens]]\nname = "t"\ndigest = "{digest}"\nscopes = ["claims"]\n'
    bearer = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    single: Counter[tuple[str, int]] = Counter()
    with service(tmp_path, ENDPOINTS + ROUTE + tokens) as running:
        assert running.post("/inline", event("before")).status == 200
        with Noise(running, bearer) as noise:
            ends = time.monotonic() + SECONDS
            number = 0
            while time.monotonic() < ends:
                number += 1
                single["inline", running.post("/inline", event(f"a{number}")).status] += 1
                single["inbox", running.post("/inbox", event(f"b{number}")).status] += 1
                claim = {"items": [{"handler": "h", "key": [f"single-{number}"]}]}
                single["claim", running.post("/v1/claims", claim, bearer).status] += 1
        assert noise.statuses[200] >= 2 * CONNECTIONS, "the noise did not land"
        assert set(noise.statuses) == {200}
        assert {status for _, status in single} == {200}, (single, running.text)
