"""Credentials are reused until shortly before they expire, requested once, and never shown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from tests.outbox.providers.kits import HERE

from semel.http_client.client import Answered, Client
from semel.http_client.resolver import server_address
from semel.providers.auth import (
    EARLY_S,
    AwsSignature,
    BasicAuth,
    CredentialsError,
    HeaderAuth,
    OAuthToken,
    OutgoingRequest,
    basic_header,
    redact_secrets,
)
from semel.providers.generic import Generic, GenericOptions
from semel.testing.simulator.http import SimulatedResponse, read_request, write_response
from semel.values.errors import ConfigError, LeaseLost
from semel.values.outbox import checked_by
from semel.values.secret import Secret

REQUEST = OutgoingRequest("POST", "http://127.0.0.1/x", b"{}", "application/json")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def with_endpoint(
    answers: list[SimulatedResponse],
    story: Callable[[OAuthToken, Clock, list[bytes]], Awaitable[None]],
    budget_s: float = 20.0,
) -> None:
    """The story, with a token endpoint that gives these answers, and the last one again and again."""

    async def run() -> None:
        asked: list[bytes] = []
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(task) if (task := asyncio.current_task()) else None
            try:
                while (request := await read_request(reader)) is not None:
                    asked.append(request.body)
                    await write_response(writer, answers[min(len(asked), len(answers)) - 1])
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/oauth/token"
        clock = Clock()
        token = OAuthToken(
            Client(server_address("t", url), HERE, budget_s),
            url,
            lambda: {"grant_type": "x", "password": "the-password"},
            budget_s=budget_s,
            secrets=(Secret("the-password"),),
            clock=clock,
        )
        try:
            await story(token, clock, asked)
        finally:
            await token.close()
            server.close()
            if tasks:
                with suppress(TimeoutError):
                    await asyncio.wait(tasks, timeout=20)

    asyncio.run(run())


def grant(token: str, expires: str = "3600") -> SimulatedResponse:
    return SimulatedResponse(200, f'{{"access_token": "{token}", "expires_in": {expires}}}'.encode())


def test_a_token_is_used_until_shortly_before_its_end() -> None:
    async def story(token: OAuthToken, clock: Clock, asked: list[bytes]) -> None:
        for _ in range(3):
            assert await token.headers(REQUEST) == {"Authorization": "Bearer first"}
        clock.now += 3600 - EARLY_S - 1
        assert await token.headers(REQUEST) == {"Authorization": "Bearer first"}
        clock.now += 1
        assert await token.headers(REQUEST) == {"Authorization": "Bearer second"}
        assert len(asked) == 2

    with_endpoint([grant("first"), grant("second")], story)


def test_a_number_may_be_written_as_a_text_and_a_short_life_is_not_asked_for_at_every_send() -> None:
    async def story(token: OAuthToken, clock: Clock, asked: list[bytes]) -> None:
        await token.headers(REQUEST)
        await token.headers(REQUEST)
        assert len(asked) == 1
        clock.now += 1.1
        await token.headers(REQUEST)
        assert len(asked) == 2

    with_endpoint([grant("first", '"5"')], story)


def test_only_the_refused_token_is_discarded() -> None:
    """Twenty are told that the old one is no good, one after the other, while there is a new one already."""

    async def story(token: OAuthToken, clock: Clock, asked: list[bytes]) -> None:
        old = await token.headers(REQUEST)
        token.invalidate(old)
        assert await token.headers(REQUEST) == {"Authorization": "Bearer second"}
        for _ in range(20):
            token.invalidate(old)
            await token.headers(REQUEST)
        assert len(asked) == 2

    with_endpoint([grant("first"), grant("second"), grant("third")], story)


def test_the_previous_token_is_redacted_too() -> None:
    async def story(token: OAuthToken, clock: Clock, asked: list[bytes]) -> None:
        token.invalidate(await token.headers(REQUEST))
        assert await token.headers(REQUEST) == {"Authorization": "Bearer second-token"}
        assert token.redact("bad: first-token, second-token") == "bad: …, …"

    with_endpoint([grant("first-token"), grant("second-token")], story)


def test_concurrent_sends_share_one_token_request_and_its_failure() -> None:
    async def story(token: OAuthToken, clock: Clock, asked: list[bytes]) -> None:
        failures = await asyncio.gather(*(token.headers(REQUEST) for _ in range(30)), return_exceptions=True)
        assert all("503" in str(failure) for failure in failures)
        assert {type(failure) for failure in failures} == {CredentialsError}
        assert len(asked) == 1
        given = await asyncio.gather(*(token.headers(REQUEST) for _ in range(30)))
        assert len(asked) == 2
        assert {headers["Authorization"] for headers in given} == {"Bearer second"}

    with_endpoint([SimulatedResponse(503, b"the-password"), grant("second")], story)


def test_an_expired_lease_does_not_fail_the_shared_token_request() -> None:
    def check() -> None:
        raise LeaseLost("over")

    async def story(token: OAuthToken, clock: Clock, asked: list[bytes]) -> None:
        with checked_by(check):
            first = asyncio.create_task(token.headers(REQUEST))
        await asyncio.sleep(0)  # it asks, and the other one waits for its answer
        assert await token.headers(REQUEST) == {"Authorization": "Bearer first"}
        await first
        assert len(asked) == 1

    with_endpoint([grant("first")], story)


def test_a_cancelled_send_does_not_cancel_the_shared_token_request() -> None:
    async def story(token: OAuthToken, clock: Clock, asked: list[bytes]) -> None:
        first = asyncio.create_task(token.headers(REQUEST))
        second = asyncio.create_task(token.headers(REQUEST))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == {"Authorization": "Bearer only"}
        assert len(asked) == 1

    with_endpoint([grant("only")], story)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"access_token": 5}', b'{"access_token": "a\\r\\nX: y"}']
)
def test_a_malformed_token_is_not_used(body: bytes) -> None:
    async def story(token: OAuthToken, clock: Clock, asked: list[bytes]) -> None:
        with pytest.raises(CredentialsError, match="token"):
            await token.headers(REQUEST)

    with_endpoint([SimulatedResponse(200, body)], story)


def test_a_limit_of_the_token_endpoint_is_passed_on() -> None:
    async def story(token: OAuthToken, clock: Clock, asked: list[bytes]) -> None:
        with pytest.raises(CredentialsError) as refused:
            await token.headers(REQUEST)
        assert refused.value.after_s == 7.0

    with_endpoint([SimulatedResponse(429, b"", {"Retry-After": "7"})], story)


def test_a_secret_that_is_invalid_in_a_header_is_not_sent() -> None:
    auth = HeaderAuth({"Authorization": Secret("two\nlines")}, scheme="Bearer ")
    with pytest.raises(CredentialsError) as refused:
        asyncio.run(auth.headers(REQUEST))
    assert "two" not in str(refused.value)


def test_a_token_is_redacted_with_and_without_its_scheme() -> None:
    headers = HeaderAuth({"authorization": Secret("Bearer gateway-token-1")})
    assert headers.redact("no such token: gateway-token-1") == "no such token: …"
    assert headers.redact("authorization=Bearer gateway-token-1") == "authorization=…"


def test_a_token_in_a_url_is_redacted_from_evidence() -> None:
    url = "https://sms.example/messages/hook-0123456789abcdef?key=abcdef0123456789&v=2"
    provider = Generic(GenericOptions(url=url), Generic.CONTRACT)
    page = (
        "The requested URL /messages/hook-0123456789abcdef was not found (hook-0123456789abcdef, key abcdef0123456789)"
    )
    told = provider.evidence(Answered(404, page.encode()))
    assert "0123456789" not in told
    assert told.startswith("404: The requested URL … was not found")
    assert provider.evidence(Answered(400, b"messages: v=2 is too old")) == "400: messages: v=2 is too old"


def test_secrets_are_redacted_from_responses() -> None:
    password = Secret("correct horse")
    auth = BasicAuth("user", password)
    repeated = f"bad header {basic_header('user', password)} with correct horse"
    assert auth.redact(repeated) == "bad header Basic … with …"
    assert redact_secrets("abc", "b", "") == "abc", "a letter is no secret"
    assert redact_secrets("abcdef abcd", "abcd", "abcdef") == "… …"


def test_aws_keys_are_set_together_or_found_by_the_credential_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"access_key_id.*secret_access_key"):
        AwsSignature("ses", "eu-central-1", timeout_s=30, key_id="k")
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(CredentialsError, match="AWS"):
        asyncio.run(AwsSignature("ses", "eu-central-1", timeout_s=60).headers(REQUEST))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
    headers = asyncio.run(AwsSignature("ses", "eu-central-1", timeout_s=60).headers(REQUEST))
    assert headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKID/")
    assert headers["X-Amz-Security-Token"] == "session"
