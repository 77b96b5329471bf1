"""Runs the simulator in its own process, with methods for its control paths."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import msgspec

from semel.testing.simulator.callbacks import Ending, Mode, SentCallback
from semel.testing.simulator.server import CONTROL
from semel.testing.simulator.state import ReceivedMessage, SendRequest

PATIENCE_S = 60.0


class SimulatorProcess:
    """Starts with `with` or `start`. Ends with its block, or with the process that started it."""

    def __init__(self, port: int = 0) -> None:
        """`port`: a fixed port, for a provider that restarts. 0: any free port."""
        self._wanted = port
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.mail_port = 0

    def __enter__(self) -> SimulatorProcess:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "semel.testing.simulator", str(self._wanted), "--with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port, self.mail_port = (int(port) for port in self._process.stdout.readline().split())

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            with self._process:
                self._process = None

    def url(self, provider: str) -> str:
        return f"http://127.0.0.1:{self.port}/{provider}"

    def phone(self, to: str = "") -> list[ReceivedMessage]:
        """The messages that customers received, in order; or those of one customer."""
        return msgspec.json.decode(
            self._ask(f"phone?{urlencode({'to': to})}" if to else "phone"), type=list[ReceivedMessage]
        )

    def told(self) -> dict[str, Any]:
        """The applied lies by "provider: lie", the messages of ambiguous ones, all requests, and tokens."""
        applied: dict[str, Any] = msgspec.json.decode(self._ask("told"))
        return applied

    def lie(self, lie: str, provider: str, *, times: int = 1, share: float = 1.0, to: str = "") -> None:
        """Plan a lie for the next send requests, or for those to one recipient. Several plans alternate."""
        self._ask("lie", lie=lie, provider=provider, times=times, share=share, to=to)

    def tell_the_truth(self) -> None:
        """Remove all lies, rate limits and callbacks."""
        self._ask("truth", now=True)

    def book(self) -> list[SendRequest]:
        """All valid send requests in order, each with its lie."""
        return msgspec.json.decode(self._ask("book"), type=list[SendRequest])

    def answer_after(self, seconds: float) -> None:
        """Delay every response, after the effect of its request."""
        self._ask("latency", seconds=seconds)

    def remember_keys_for(self, seconds: float, provider: str = "") -> None:
        """Set the window of new idempotency keys, for all providers or for one."""
        self._ask("key_window", seconds=seconds, provider=provider)

    def forget_keys(self) -> None:
        """Expire all idempotency keys."""
        self._ask("forget_keys", now=True)

    def end_tokens(self) -> None:
        """Revoke all access tokens."""
        self._ask("end_tokens", now=True)

    def allow(self, provider: str, requests: int, reset_s: float = 30.0) -> None:
        """Accept this number of requests, then answer 429."""
        self._ask("allow", provider=provider, requests=requests, reset_s=reset_s)

    def callbacks(
        self, provider: str, mode: Mode, url: str = "", *, late_s: float = 0.5, ending: Ending = "delivered"
    ) -> None:
        """Plan the callbacks of messages that a provider accepts from now on. `url`: used if a request has none."""
        self._ask("callbacks", provider=provider, mode=mode, url=url, late_s=late_s, ending=ending)

    def called(self) -> list[SentCallback]:
        """The callbacks that were sent."""
        return msgspec.json.decode(self._ask("called"), type=list[SentCallback])

    def _ask(self, command: str, **body: Any) -> bytes:
        url = f"http://127.0.0.1:{self.port}{CONTROL}{command}"
        request = Request(url, data=msgspec.json.encode(body) if body else None)
        with urlopen(request, timeout=PATIENCE_S) as response:
            content: bytes = response.read()
        return content
