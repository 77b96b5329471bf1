"""What is too much, too slow, not JSON or nobody's: refused with a reason, never with a 5xx, and nothing is done."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.service.api.live import ACME, PATIENCE_S, Client, api_on, wait_for

from semel.ledgers.sqlite import SqliteLedger
from semel.service.api.errors import TITLES
from semel.values.claim import Claim, Lease, Settlement, Verdict
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Release

ITEM = {"handler": "h", "key": "k"}
MIB = 1024 * 1024
JSON_SAID = ("application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"')
NOWHERE = ("/v1", "/v1/", "/v1/claims/", "/v1/claims/x", "/v1/keys", "/v2/claims", "/", "/v1//claims")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with api_on(tmp_path_factory.mktemp("limits")) as client:
        yield client


def batch(**changed: Any) -> bytes:
    return json.dumps({"items": [{**ITEM, **changed}]}).encode()


MALFORMED = {
    "empty": b"",
    "cut off": b'{"items": [',
    "not UTF-8": b'{"items": [{"handler": "\xff", "key": "k"}]}',
    "UTF-16": '{"items": []}'.encode("utf-16"),
    "NaN": b'{"items": [{"handler": "h", "key": "k", "lease": NaN}]}',
    "a name twice": b'{"items": [{"handler": "h", "handler": "g", "key": "k"}]}',
    "an integer past 64 bits": b'{"items": [{"handler": "h", "key": "k", "payload": 18446744073709551616}]}',
    "half a pair": b'{"items": [{"handler": "h", "key": "\\ud800"}]}',
    "NUL": b'{"items": [{"handler": "h", "key": "a\\u0000"}]}',
    "too deep": b'{"items": [{"handler": "h", "key": "k", "event": ' + b"[" * 200 + b"]" * 200 + b"}]}",
    "too many values": b'{"items": [{"handler": "h", "key": "k", "event": [' + b"0," * 60_000 + b"0]}]}",
    "an array": b"[]",
    "no items": b"{}",
    "none": b'{"items": []}',
    "501 items": json.dumps({"items": [ITEM] * 501}).encode(),
    "another name": b'{"items": [{"handler": "h", "key": "k", "leese": 5}]}',
    "another name beside": b'{"items": [{"handler": "h", "key": "k"}], "dry_run": true}',
    "a name without end": b'{"items": [{"handler": "h", "key": "k"}], "' + b"x" * 100_000 + b'": 1}',
    "no key": b'{"items": [{"handler": "h"}]}',
    "an empty key": batch(key=""),
    "no parts": batch(key=[]),
    "empty parts": batch(key=["", ""]),
    "17 parts": batch(key=["p"] * 17),
    "a long part": batch(key=["p" * 256]),
    "a number for a key": batch(key=7),
    "a control character": batch(key="a\nb"),
    "a newline at the end": batch(key="a\n"),
    "a newline after a handler": batch(handler="h\n"),
    "a long handler": batch(handler="h" * 256),
    "no handler": batch(handler=""),
    "no lease": batch(lease=0),
    "a lease of two days": batch(lease=172_800),
    "a text for a lease": batch(lease="25"),
    "a negative retention": batch(retention=-1),
    "half an attempt": batch(max_attempts=1.5),
    "no attempt": batch(max_attempts=0),
    "half a position": batch(order={"subject": "s", "position": 0.5}),
    "a position past 53 bits": batch(order={"subject": "s", "position": 2**53}),
    "an empty subject": batch(order={"subject": [""], "position": 1}),
    "a truth for a position": batch(order={"subject": "s", "position": True}),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_requests_are_refused_with_a_reason(client: Client, body: bytes) -> None:
    reply = client.ask("POST", "/v1/claims", body)
    assert (reply.status, reply.headers["content-type"]) == (400, "application/problem+json"), reply.body
    said = reply.json()
    assert (said["status"], said["title"], said["type"]) == (400, TITLES[400], "about:blank")
    assert said["detail"]
    assert len(reply.body) < 1_000


@pytest.mark.parametrize(
    ("path", "item", "place", "named"),
    [
        ("", {"handler": "h", "key": 7}, "items[0].key: ", ["string", "array", "integer"]),
        ("", {"handler": "h", "key": "k", "leas": 1}, "items[0]: ", ["`leas`"]),
        (
            "/settle",
            {"lease": "x", "outcome": "ok" * 999},
            "items[0].outcome: ",
            ["done", "retry", "reject", "uncertain", "release", "'okok"],
        ),
    ],
)
def test_the_error_of_a_malformed_request_names_the_field_and_the_expected_type(
    client: Client, path: str, item: dict[str, object], place: str, named: list[str]
) -> None:
    reply = client.ask("POST", f"/v1/claims{path}", {"items": [item]})
    assert reply.status == 400
    detail = reply.json()["detail"]
    assert detail.startswith(place)
    assert all(name in detail for name in named), detail


def test_one_malformed_item_is_named_and_nothing_of_its_batch_is_claimed(client: Client) -> None:
    items = [{"handler": "h", "key": "beside"}, {"handler": "h", "key": ["", ""]}]
    reply = client.ask("POST", "/v1/claims", {"items": items})
    assert (reply.status, "items[1].key: " in reply.json()["detail"]) == (400, True)
    assert client.grant("beside")["attempt"] == 1


@pytest.mark.parametrize(
    "settlement",
    [
        {"outcome": "done"},
        {"outcome": "finished", "lease": "x"},
        {"lease": "x"},
        {"outcome": "done", "lease": "x", "after": 5},
        {"outcome": "reject", "lease": "x"},
        {"outcome": "reject", "lease": "x", "reason": ""},
        {"outcome": "retry", "lease": "x", "after": -1},
        {"outcome": "retry", "lease": "x", "after": 1e300},
        {"outcome": "retry", "lease": "x", "result": 1},
        {"outcome": "done", "lease": "not base64!"},
        {"outcome": "done", "lease": ""},
        {"outcome": "done", "lease": "A" * 70_000},
    ],
)
def test_a_malformed_settlement_is_refused(client: Client, settlement: dict[str, Any]) -> None:
    assert client.ask("POST", "/v1/claims/settle", {"items": [settlement]}).status == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"Content_Type": "text/plain"},
        {"Content_Type": "application/json; charset=utf-16"},
        {"Content_Type": "application/x-www-form-urlencoded"},
        {"Content_Type": ""},
        {"Content_Encoding": "gzip"},
    ],
)
def test_a_body_without_a_json_content_type_is_refused(client: Client, headers: dict[str, str]) -> None:
    assert client.ask("POST", "/v1/claims", batch(), **headers).status == 415


@pytest.mark.parametrize("said", JSON_SAID)
def test_json_content_types_are_accepted_in_several_spellings(client: Client, said: str) -> None:
    assert client.ask("POST", "/v1/claims", batch(), Content_Type=said).status == 200


def test_a_body_that_is_too_large_is_refused_by_its_length(client: Client) -> None:
    reply = client.ask("POST", "/v1/claims", b"x", Content_Length=str(MIB + 1))
    assert (reply.status, reply.headers["connection"]) == (413, "close")


def test_a_body_that_is_too_large_is_refused_without_a_length(client: Client) -> None:
    with connected(client) as line:
        line.sendall(head("Transfer-Encoding: chunked"))
        chunk = b"%x\r\n%b\r\n" % (64 * 1024, b" " * 64 * 1024)
        try:
            for _ in range(40):
                line.sendall(chunk)
        except OSError:
            pass  # it was answered and closed before we were through
        assert b" 413 " in line.recv(100)


def test_the_largest_body_is_read(client: Client) -> None:
    body = batch()
    assert client.ask("POST", "/v1/claims", body + b" " * (MIB - len(body))).status == 200


def test_a_slow_body_is_not_waited_for(tmp_path: Path) -> None:
    with api_on(tmp_path, read_timeout=0.2) as client, connected(client) as line:
        line.sendall(head("Content-Length: 100") + b'{"items":')
        assert b" 408 " in line.recv(100)


def test_a_sender_that_goes_away_in_the_middle_is_no_error(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with connected(client) as line:
        line.sendall(head("Content-Length: 100") + b'{"items":')
        wait_for(lambda: client.connections)
    wait_for(lambda: not client.connections)
    assert client.ask("POST", "/v1/claims", batch(key="afterwards")).status == 200
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/claims", {"POST"}),
        ("OPTIONS", "/v1/claims", {"POST"}),
        ("DELETE", "/v1/claims/settle", {"POST"}),
        ("PUT", "/v1/claims/renew", {"POST"}),
        ("POST", f"/v1/keys/{'0' * 32}", {"GET", "HEAD"}),
        ("POST", "/openapi.json", {"GET", "HEAD"}),
    ],
)
def test_a_wrong_method_gets_405_with_the_allowed_ones(
    client: Client, method: str, path: str, allowed: set[str]
) -> None:
    reply = client.ask(method, path, batch())
    assert (reply.status, set(reply.headers["allow"].split(", "))) == (405, allowed)


@pytest.mark.parametrize("path", NOWHERE)
def test_an_unknown_path_is_a_problem_too(client: Client, path: str) -> None:
    reply = client.ask("GET", path)
    assert (reply.status, reply.headers["content-type"]) == (404, "application/problem+json")


# --------------------------------------------------------------------------------------------- a ledger in trouble


class Line:
    """Stands between the API and its ledger. Calls in `cut` fail; `gate` holds claims back. `landed` counts both."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger
        self.cut: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.landed = 0
        self.released = 0

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        self._fail_if_cut("claim")
        if not self.gate.is_set():
            self.landed += 1
            await asyncio.to_thread(self.gate.wait, PATIENCE_S)
        return await self._ledger.claim(claims)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        self._fail_if_cut("settle")
        self.released += sum(isinstance(settlement.outcome, Release) for settlement in settlements)
        return await self._ledger.settle(settlements)

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        self._fail_if_cut("renew")
        return await self._ledger.renew(leases)

    def _fail_if_cut(self, name: str) -> None:
        if name in self.cut:
            self.landed += 1
            raise LedgerUnavailable("/var/lib/secret/place: the disk is full")


@pytest.fixture
def troubled(tmp_path: Path) -> Iterator[tuple[Client, Line]]:
    lines: list[Line] = []

    def line(ledger: SqliteLedger) -> Line:
        lines.append(Line(ledger))
        return lines[0]

    with api_on(tmp_path, line=line, max_in_flight=3) as client:
        yield client, lines[0]
        lines[0].gate.set()


@pytest.mark.parametrize("call", ["claim", "settle", "renew"])
def test_without_a_ledger_the_client_gets_503_with_retry_after(troubled: tuple[Client, Line], call: str) -> None:
    client, line = troubled
    lease = client.grant("a")["lease"]
    asked = {
        "claim": ("/v1/claims", ITEM),
        "settle": ("/v1/claims/settle", {"lease": lease, "outcome": "done"}),
        "renew": ("/v1/claims/renew", {"lease": lease}),
    }
    path, item = asked[call]
    line.cut = {call}
    reply = client.ask("POST", path, {"items": [item]})
    assert (reply.status, reply.headers["retry-after"], line.landed) == (503, "1", 1)
    assert b"secret" not in reply.body  # where the ledger is kept is nothing for those outside
    line.cut = set()
    assert client.ask("POST", path, {"items": [item]}).status == 200


def test_a_dead_letter_that_cannot_be_written_costs_no_other_claim_its_lease(troubled: tuple[Client, Line]) -> None:
    client, line = troubled
    poison = {"handler": "h", "key": "poison", "lease": 0.1, "max_attempts": 1}
    client.claim(poison)
    threading.Event().wait(0.15)
    line.cut = {"settle"}
    poisoned, beside = client.claim(poison, {"handler": "h", "key": "beside"})
    assert line.landed == 1
    assert (poisoned["verdict"], poisoned["after"], beside["verdict"]) == ("busy", 0.1, "granted")
    line.cut = set()
    threading.Event().wait(0.15)
    assert client.claim(poison)[0]["verdict"] == "dead"


def test_leases_for_a_client_that_went_away_are_given_back(troubled: tuple[Client, Line]) -> None:
    client, line = troubled
    line.gate.clear()
    body = batch(key="abandoned")
    with connected(client) as gone:
        gone.sendall(head(f"Content-Length: {len(body)}") + body)
        wait_for(lambda: line.landed)
    wait_for(lambda: not client.connections)  # the server has heard of it
    line.gate.set()
    wait_for(lambda: line.released)
    assert client.grant("abandoned")["attempt"] == 1


def test_requests_over_the_limit_get_429_with_retry_after(troubled: tuple[Client, Line]) -> None:
    client, line = troubled
    line.gate.clear()
    crew = [threading.Thread(target=client.claim, args=({"handler": "h", "key": f"{n}"},)) for n in range(3)]
    for thread in crew:
        thread.start()
    wait_for(lambda: line.landed == 3)
    refused = client.ask("POST", "/v1/claims", batch())
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    line.gate.set()
    for thread in crew:
        thread.join()
    assert client.ask("POST", "/v1/claims", batch()).status == 200


def connected(client: Client) -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.port), PATIENCE_S)


def head(*more: str) -> bytes:
    first = ("POST /v1/claims HTTP/1.1", "Host: semel", "Content-Type: application/json")
    return "\r\n".join((*first, f"Authorization: Bearer {ACME}", *more, "", "")).encode()
