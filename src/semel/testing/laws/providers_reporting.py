"""Laws of a provider's status callbacks: they name the message, whichever way they come, and nonsense is none."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, cast, get_args
from urllib.parse import urlsplit

import pytest

from semel.testing.laws.providers import Opening, ProviderBinding, ProviderKit, Reporting, sent
from semel.testing.simulator import LIES
from semel.testing.simulator.calling import Ending
from semel.values.errors import MalformedEvent
from semel.values.notification import Notification
from semel.values.outbox import Witness
from semel.values.sending import Accepted

DEADLINE_S = 60.0
NONSENSE = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b"[1]",
    b'"x"',
    b"\xff\xfe",
    b"<html>",
    b"[" * 100_000,
    b'{"data":{"payload":[]}}',
)


class Heard(NamedTuple):
    headers: dict[str, str]
    body: bytes
    query: str


class Ear:
    """A server that hears callbacks. It answers 200 to all of them."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        ear = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the standard library's name
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                ear.heard.append(Heard(headers, body, urlsplit(self.path).query))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: tests are quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/callbacks"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def wait_for(self, count: int) -> list[Heard]:
        deadline = time.monotonic() + DEADLINE_S
        while len(self.heard) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        return list(self.heard)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class ReportLaws(ProviderBinding):
    """For a provider that tells what became of a message."""

    @pytest.fixture
    def ear(self) -> Iterator[Ear]:
        ear = Ear()
        try:
            yield ear
        finally:
            ear.close()

    def witnesses(self, kit: ProviderKit, heard: list[Heard]) -> list[Witness]:
        async def story() -> list[Witness]:
            provider = kit.open(Opening(kit.simulator.url(kit.dialect)))
            try:
                return [witness for one in heard for witness in cast(Reporting, provider).reports(*one)]
            finally:
                await provider.close()

        return asyncio.run(story())

    def test_callbacks_name_the_message_and_say_what_became_of_it(
        self, kit: ProviderKit, said: Notification, ear: Ear
    ) -> None:
        kit.simulator.callbacks(kit.dialect, "out of order", ear.url)
        (answer,), provider = sent(kit, said, opening=Opening(kit.simulator.url(kit.dialect), callback=ear.url))
        assert isinstance(answer, Accepted)
        told = self.witnesses(kit, ear.wait_for(2))
        assert [one.says for one in told] == ["delivered", "accepted"]
        assert {one.provider for one in told} == {provider.contract.name}
        assert {one.reference for one in told} == {answer.reference}

    @pytest.mark.parametrize("ending", get_args(Ending))
    def test_a_callback_finds_a_message_of_which_nothing_else_is_known(
        self, kit: ProviderKit, said: Notification, ear: Ear, ending: Ending
    ) -> None:
        """Our id comes back: the answer that had the provider's own was lost."""
        kit.simulator.lie("accept then drop", kit.dialect)
        assert LIES["accept then drop"].delivers
        kit.simulator.callbacks(kit.dialect, "twice", ear.url, ending=ending)
        sent(kit, said, opening=Opening(kit.simulator.url(kit.dialect), callback=ear.url))
        told = self.witnesses(kit, ear.wait_for(4))
        assert [one.says for one in told] == ["accepted", "accepted", ending, ending]
        assert {one.id for one in told} == {said.id}

    def test_nonsense_is_no_callback(self, kit: ProviderKit, said: Notification) -> None:
        async def story() -> None:
            provider = kit.open(Opening(kit.simulator.url(kit.dialect)))
            for body in NONSENSE:
                with suppress(MalformedEvent):
                    assert cast(Reporting, provider).reports({}, body, f"id={said.id.hex()}") == [], body
            await provider.close()

        asyncio.run(story())
