"""Laws of a provider, tested against the simulator over real sockets: its answers state only facts about a message."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Protocol, TypeVar, cast, get_args
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from msgspec.structs import replace

from semel.ports import Provider
from semel.testing.simulator import LIES, ReceivedMessage, SimulatorProcess
from semel.testing.simulator.callbacks import Ending
from semel.values.delivery_state import Accepted, Answer, DeliveryState, Refused, Unknown
from semel.values.errors import ConfigError, LeaseLost, MalformedEvent
from semel.values.notification import Notification
from semel.values.outbox import DeliveryReport, Dispatch, checked_by

T = TypeVar("T")

TAKEN_MS = 1_750_000_000_000
STALLS = frozenset(name for name, lie in LIES.items() if lie.hears == "silence")
PATIENT_S = 30.0  # for every call except a stall; the machine may be busy
SHORT_S = 2.0


class Reporting(Protocol):
    """A provider whose status callbacks can be read."""

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]: ...


@dataclass(frozen=True)
class ProviderKit:
    """The harness of a provider under test."""

    simulator: SimulatorProcess
    dialect: str
    """The name of the provider in the simulator."""

    open: Callable[[Opening], Provider]
    say: Callable[[str], Notification]
    """Returns a notification with this key, to its own recipient."""

    secrets: Sequence[str]
    """Texts that must appear in no request, log line or repr."""

    unfit: Sequence[Notification] = ()
    """Notifications that this provider cannot send."""

    limits: bool = True
    """Whether it reports a rate limit."""

    replays: bool = True
    """True: a known key gets the same answer as the first time. False: the answer only reports a known key."""

    reads: Callable[[Notification], tuple[str, str, str, str]] = field(
        default=lambda notification: (notification.recipient, str(notification.body), "", "")
    )
    """The recipient, text, subject and HTML that the customer receives."""


@dataclass(frozen=True)
class Opening:
    url: str
    right: bool = True
    """Whether the credentials are valid."""

    timeout_s: float = PATIENT_S
    callback: str = ""
    """The callback URL, for a provider that gets it with each message."""


def dispatch_of(notification: Notification) -> Dispatch:
    delivery_state = DeliveryState(state="sending", crossed_ms=TAKEN_MS, keyed_ms=TAKEN_MS, doubt_ms=TAKEN_MS)
    return Dispatch(notification.id, 1, notification, notification.content, delivery_state, TAKEN_MS)


class ProviderBinding:
    """A provider's test class overrides `kit`."""

    @pytest.fixture
    def kit(self) -> ProviderKit:
        raise NotImplementedError("bind the laws to a provider: override the fixture `kit`")

    @pytest.fixture
    def said(self, kit: ProviderKit) -> Notification:
        kit.simulator.tell_the_truth()
        return kit.say(uuid4().hex)


def opened(kit: ProviderKit, story: Callable[[Provider], Awaitable[T]], opening: Opening | None = None) -> T:
    """Run a story with a provider, and close the provider afterwards."""

    async def run() -> T:
        provider = kit.open(opening or Opening(kit.simulator.url(kit.dialect)))
        try:
            return await story(provider)
        finally:
            await provider.close()

    return asyncio.run(run())


def sent(
    kit: ProviderKit, notification: Notification, *, times: int = 1, opening: Opening | None = None
) -> tuple[list[Answer], Provider]:
    """Send the same bytes several times in sequence."""

    async def story(provider: Provider) -> tuple[list[Answer], Provider]:
        dispatch = dispatch_of(notification)
        request = provider.prepare(dispatch)
        return [await provider.send(dispatch, request) for _ in range(times)], provider

    return opened(kit, story, opening)


def got(kit: ProviderKit, notification: Notification) -> list[ReceivedMessage]:
    return [one for one in kit.simulator.phone(kit.reads(notification)[0]) if one.provider == kit.dialect]


class SendingLaws(ProviderBinding):
    def test_nothing_leaves_when_the_lease_ended_before_the_first_byte(
        self, kit: ProviderKit, said: Notification
    ) -> None:
        """The relay stalled while the provider connected or fetched a token. Another relay may own the message now."""

        def too_late() -> None:
            raise LeaseLost("stalled")

        with checked_by(too_late), pytest.raises(LeaseLost):
            sent(kit, said)
        assert got(kit, said) == []

    def test_an_accepted_message_arrives_once_and_unchanged(self, kit: ProviderKit, said: Notification) -> None:
        (answer,), _ = sent(kit, said)
        assert isinstance(answer, Accepted), answer
        (message,) = got(kit, said)
        assert (message.to, message.text, message.subject, message.html) == kit.reads(said)
        assert answer.reference, "callbacks identify the message by its reference"
        assert message.ours in ("", said.id.hex())

    def test_a_request_is_the_same_bytes_every_time_and_holds_no_secret(
        self, kit: ProviderKit, said: Notification
    ) -> None:
        async def story(provider: Provider) -> set[bytes]:
            first = dispatch_of(said)
            later = replace(
                first, token=9, slot_ms=5, vanished=True, delivery_state=replace(first.delivery_state, attempts=3)
            )
            return {provider.prepare(first), provider.prepare(first), provider.prepare(later)}

        requests = opened(kit, story) | opened(kit, story)
        assert len(requests) == 1
        (request,) = requests
        assert not [secret for secret in kit.secrets if secret.encode() in request]

    def test_the_same_bytes_twice_are_one_message_where_a_key_is_honoured(
        self, kit: ProviderKit, said: Notification
    ) -> None:
        """Without a key they are two messages. A contract must not promise a key that the provider ignores."""
        answers, provider = sent(kit, said, times=2)
        assert [type(answer) for answer in answers] == [Accepted, Accepted]
        keyed = provider.contract.key is not None
        assert len(got(kit, said)) == (1 if keyed else 2)
        if keyed:
            first, second = answers
            if kit.replays:
                assert first == second, "the same message has the same reference"
            else:
                assert getattr(second, "reference", "?") == "", "a missing reference is not invented"
            assert {one.key for one in got(kit, said)} == {said.id.hex()}

    def test_an_expired_key_does_not_deduplicate(self, kit: ProviderKit, said: Notification) -> None:
        """A contract has a window because a key that expires too early leads to a second message."""
        _, provider = sent(kit, said)
        kit.simulator.forget_keys()
        sent(kit, said)
        assert len(got(kit, said)) == 2, provider.contract.key

    def test_an_unfit_notification_is_refused_before_it_leaves(self, kit: ProviderKit, said: Notification) -> None:
        assert kit.unfit, "every provider has something that it cannot send"

        async def story(provider: Provider) -> None:
            for unfit in kit.unfit:
                with pytest.raises(ConfigError) as refused:
                    provider.prepare(dispatch_of(unfit))
                assert unfit.recipient not in str(refused.value)

        opened(kit, story)


class LyingLaws(ProviderBinding):
    def test_an_ambiguous_response_is_unknown(self, kit: ProviderKit, said: Notification) -> None:
        """This holds for every ambiguous lie of the simulator."""
        messages = {name: kit.say(uuid4().hex) for name in LIES if LIES[name].ambiguous and name not in STALLS}

        async def story(provider: Provider) -> dict[str, Answer]:
            answers = {}
            for name, message in messages.items():
                kit.simulator.lie(name, kit.dialect)
                dispatch = dispatch_of(message)
                answers[name] = await provider.send(dispatch, provider.prepare(dispatch))
            return answers

        before = Counter(kit.simulator.told()["told"])
        answers = opened(kit, story)
        applied = Counter(kit.simulator.told()["told"])
        applied.subtract(before)
        missing = {name for name in messages if applied[f"{kit.dialect}: {name}"] != 1}
        assert not missing, f"inconclusive: {missing} did not happen"
        assert {name: answer for name, answer in answers.items() if not isinstance(answer, Unknown)} == {}
        arrived = {name for name, message in messages.items() if got(kit, message)}
        assert arrived == {name for name in messages if LIES[name].delivers}

    def test_silence_is_unknown_and_ends(self, kit: ProviderKit, said: Notification) -> None:
        """Both kinds of stall run at the same time, because each lasts until the timeout."""
        other, first = kit.say(uuid4().hex), dispatch_of(kit.say(uuid4().hex))

        async def story(provider: Provider) -> tuple[list[Answer], int]:
            both = [(dispatch, provider.prepare(dispatch)) for dispatch in map(dispatch_of, (said, other))]
            await provider.send(first, provider.prepare(first))  # signs in before the short timeout applies
            for lie in sorted(STALLS):
                kit.simulator.lie(lie, kit.dialect)
            before = len(kit.simulator.told()["about"])
            answers = await asyncio.gather(*(provider.send(dispatch, request) for dispatch, request in both))
            return list(answers), len(kit.simulator.told()["about"]) - before

        answers, arrived = opened(kit, story, Opening(kit.simulator.url(kit.dialect), timeout_s=SHORT_S))
        assert arrived == 2, "inconclusive: a request did not arrive in time"
        assert [type(answer) for answer in answers] == [Unknown, Unknown], answers
        assert len(got(kit, said)) + len(got(kit, other)) == 1

    def test_a_refusal_is_final(self, kit: ProviderKit, said: Notification) -> None:
        kit.simulator.lie("400", kit.dialect)
        (answer,), _ = sent(kit, said)
        assert isinstance(answer, Refused)
        assert answer.final
        assert not answer.limited
        assert got(kit, said) == []

    def test_a_rate_limit_is_waited_for_and_is_no_refusal_of_the_message(
        self, kit: ProviderKit, said: Notification
    ) -> None:
        kit.simulator.lie("429", kit.dialect)
        (answer,), _ = sent(kit, said)
        assert isinstance(answer, Refused)
        assert not answer.final
        if kit.limits:
            assert (answer.limited, answer.after_s) == (True, 1.0)
        assert got(kit, said) == []

    def test_a_key_in_progress_is_not_taken_for_an_answer(self, kit: ProviderKit, said: Notification) -> None:
        kit.simulator.lie("409", kit.dialect)
        (answer,), provider = sent(kit, said)
        assert not isinstance(answer, Accepted)
        assert not (isinstance(answer, Refused) and answer.final)
        if provider.contract.key is not None:
            assert isinstance(answer, Unknown), "a concurrent request with this key may be accepted"
        assert got(kit, said) == []


class AccessLaws(ProviderBinding):
    def test_wrong_credentials_send_nothing_and_can_be_put_right(self, kit: ProviderKit, said: Notification) -> None:
        wrong = Opening(kit.simulator.url(kit.dialect), right=False)
        (answer,), _ = sent(kit, said, opening=wrong)
        assert isinstance(answer, Refused), answer
        assert not answer.final, "the message can be sent after an operator corrects them"
        assert got(kit, said) == []

    @pytest.mark.parametrize("right", [True, False])
    def test_secrets_are_seen_nowhere(
        self, kit: ProviderKit, said: Notification, right: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        answers, provider = sent(kit, said, opening=Opening(kit.simulator.url(kit.dialect), right=right))
        shown = f"{answers!r} {provider!r} {provider.contract!r} {caplog.text}"
        assert not [secret for secret in kit.secrets if secret in shown]

    def test_an_unreachable_provider_receives_nothing(self, kit: ProviderKit, said: Notification) -> None:
        with socket.socket() as closed:  # bound, but not listening
            closed.bind(("127.0.0.1", 0))
            (answer,), _ = sent(kit, said, opening=Opening(f"http://127.0.0.1:{closed.getsockname()[1]}"))
        assert isinstance(answer, Refused), answer
        assert not answer.final

    def test_a_provider_that_fails_tls_receives_nothing(self, kit: ProviderKit, said: Notification) -> None:
        (answer,), _ = sent(kit, said, opening=Opening(kit.simulator.url(kit.dialect).replace("http:", "https:")))
        assert isinstance(answer, Refused), answer
        assert not answer.final
        assert got(kit, said) == []

    def test_it_can_be_closed_without_having_been_used(self, kit: ProviderKit, said: Notification) -> None:
        async def story(provider: Provider) -> None:
            await provider.close()

        opened(kit, story)


class TokenLaws(ProviderBinding):
    """Laws for a provider with access tokens."""

    def test_a_token_that_ended_is_renewed_once_for_all(self, kit: ProviderKit, said: Notification) -> None:
        many = [dispatch_of(kit.say(uuid4().hex)) for _ in range(20)]

        def tokens() -> int:
            return int(kit.simulator.told()["tokens"].get(kit.dialect, 0))

        async def story(provider: Provider) -> tuple[list[Answer], list[Answer], int]:
            async def send_all() -> list[Answer]:
                return list(await asyncio.gather(*(provider.send(one, provider.prepare(one)) for one in many)))

            await provider.send(dispatch_of(said), provider.prepare(dispatch_of(said)))
            kit.simulator.end_tokens()
            before = tokens()
            return await send_all(), await send_all(), tokens() - before

        refused, accepted, renewed = opened(kit, story)
        assert {type(answer) for answer in refused} == {Refused}
        assert not [answer for answer in refused if isinstance(answer, Refused) and answer.final]
        assert {type(answer) for answer in accepted} == {Accepted}
        assert renewed == 1
        assert [len(got(kit, one.notification)) for one in many] == [1] * len(many)


# Laws of a provider's status callbacks: each identifies its message, and a malformed body is not a report.

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
    """A server that receives callbacks and answers 200."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        ear = self

        class CallbackHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the standard library's name
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                ear.heard.append(Heard(headers, body, urlsplit(self.path).query))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), CallbackHandler)
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
    """Laws for a provider that reports the delivery state of a message."""

    @pytest.fixture
    def ear(self) -> Iterator[Ear]:
        ear = Ear()
        try:
            yield ear
        finally:
            ear.close()

    def _reports(self, kit: ProviderKit, heard: list[Heard]) -> list[DeliveryReport]:
        async def story() -> list[DeliveryReport]:
            provider = kit.open(Opening(kit.simulator.url(kit.dialect)))
            try:
                return [report for one in heard for report in cast(Reporting, provider).reports(*one)]
            finally:
                await provider.close()

        return asyncio.run(story())

    def test_callbacks_identify_the_message_and_its_delivery_state(
        self, kit: ProviderKit, said: Notification, ear: Ear
    ) -> None:
        kit.simulator.callbacks(kit.dialect, "out of order", ear.url)
        (answer,), provider = sent(kit, said, opening=Opening(kit.simulator.url(kit.dialect), callback=ear.url))
        assert isinstance(answer, Accepted)
        reports = self._reports(kit, ear.wait_for(2))
        assert [one.status for one in reports] == ["delivered", "accepted"]
        assert {one.provider for one in reports} == {provider.contract.name}
        assert {one.reference for one in reports} == {answer.reference}

    @pytest.mark.parametrize("ending", get_args(Ending))
    def test_a_callback_finds_a_message_of_which_nothing_else_is_known(
        self, kit: ProviderKit, said: Notification, ear: Ear, ending: Ending
    ) -> None:
        """The callback contains our id. The answer with the provider's reference was lost."""
        kit.simulator.lie("accept then drop", kit.dialect)
        assert LIES["accept then drop"].delivers
        kit.simulator.callbacks(kit.dialect, "twice", ear.url, ending=ending)
        sent(kit, said, opening=Opening(kit.simulator.url(kit.dialect), callback=ear.url))
        reports = self._reports(kit, ear.wait_for(4))
        assert [one.status for one in reports] == ["accepted", "accepted", ending, ending]
        assert {one.id for one in reports} == {said.id}

    def test_a_malformed_body_is_not_a_callback(self, kit: ProviderKit, said: Notification) -> None:
        async def story() -> None:
            provider = kit.open(Opening(kit.simulator.url(kit.dialect)))
            for body in NONSENSE:
                with suppress(MalformedEvent):
                    assert cast(Reporting, provider).reports({}, body, f"id={said.id.hex()}") == [], body
            await provider.close()

        asyncio.run(story())
