"""The simulator in a process of its own, and what tests say to it."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import msgspec

from semel.testing.simulator.callbacks import Called, Ending, Mode
from semel.testing.simulator.server import CONTROL
from semel.testing.simulator.state import Asked, Got

PATIENCE_S = 60.0


class SimulatorProcess:
    """Begins with `with`, or `start`; ends with its block, or with the process that started it."""

    def __init__(self, port: int = 0) -> None:
        """`port`: where a provider that was down comes back. 0: any."""
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

    def phone(self, to: str = "") -> list[Got]:
        """The messages that customers got, in order; or those of one customer."""
        return msgspec.json.decode(self._ask(f"phone?{urlencode({'to': to})}" if to else "phone"), type=list[Got])

    def told(self) -> dict[str, Any]:
        """The applied lies by "provider: lie", the messages of ambiguous ones, all requests, and tokens."""
        told: dict[str, Any] = msgspec.json.decode(self._ask("told"))
        return told

    def lie(self, lie: str, provider: str, *, times: int = 1, share: float = 1.0, to: str = "") -> None:
        """Plan what happens to the next requests for a message, or for one to this recipient. Several plans take
        turns."""
        self._ask("lie", lie=lie, provider=provider, times=times, share=share, to=to)

    def tell_the_truth(self) -> None:
        """No lies, no limits and no callbacks from here on."""
        self._ask("truth", now=True)

    def book(self) -> list[Asked]:
        """Every request for a message that could be read, in order, and what was done to it."""
        return msgspec.json.decode(self._ask("book"), type=list[Asked])

    def answer_after(self, seconds: float) -> None:
        """As real providers do: what is asked is done at once, and heard of a while later."""
        self._ask("latency", seconds=seconds)

    def remember_keys_for(self, seconds: float, provider: str = "") -> None:
        """Of keys that come from here on; of all providers, or of one that then has a window of its own."""
        self._ask("key_window", seconds=seconds, provider=provider)

    def forget_keys(self) -> None:
        """As if their window were over."""
        self._ask("forget_keys", now=True)

    def end_tokens(self) -> None:
        """Those that were given are good for nothing."""
        self._ask("end_tokens", now=True)

    def allow(self, provider: str, requests: int, reset_s: float = 30.0) -> None:
        """So many more requests, and then 429."""
        self._ask("allow", provider=provider, requests=requests, reset_s=reset_s)

    def callbacks(
        self, provider: str, mode: Mode, url: str = "", *, late_s: float = 0.5, ending: Ending = "delivered"
    ) -> None:
        """Set how a provider calls back about the messages that it accepts from now on. `url`: where a request names
        none."""
        self._ask("callbacks", provider=provider, mode=mode, url=url, late_s=late_s, ending=ending)

    def called(self) -> list[Called]:
        """The callbacks that were made."""
        return msgspec.json.decode(self._ask("called"), type=list[Called])

    def _ask(self, word: str, **said: Any) -> bytes:
        asked = Request(
            f"http://127.0.0.1:{self.port}{CONTROL}{word}",
            data=msgspec.json.encode(said) if said else None,
        )
        with urlopen(asked, timeout=PATIENCE_S) as answer:
            body: bytes = answer.read()
        return body
