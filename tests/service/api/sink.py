"""A counting downstream: what arrived, under which key. It can be held, so that a caller stays in the middle."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.service.api.live import PATIENCE_S


@dataclass
class Sink:
    url: str = ""
    arrived: list[tuple[str, Any]] = field(default_factory=list)  # (Idempotency-Key, body)
    go_on: threading.Event = field(default_factory=threading.Event)
    status: int = 200

    @property
    def effects(self) -> int:
        """A downstream that honours the key acts on it once, however often it comes."""
        return len({key for key, _ in self.arrived})


@contextmanager
def counting_sink() -> Iterator[Sink]:
    sink = Sink()
    sink.go_on.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            sink.arrived.append((self.headers["idempotency-key"], body))
            number = len(sink.arrived)
            sink.go_on.wait(PATIENCE_S)
            answer = json.dumps({"survey": number}).encode()
            try:
                self.send_response(sink.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            except OSError:
                return  # whoever asked was killed meanwhile

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sink.url = f"http://127.0.0.1:{server.server_address[1]}/surveys"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield sink
    finally:
        sink.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
