"""Every answer of the webhook source, from the real service over real sockets."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.service.running import Reply, Running, service

ENV = {"SECRET_NEW": "new secret", "SECRET_OLD": "old secret"}

SETTINGS = """
[server]
body_max = 20_000
drain = 5

[[endpoints]]
path = "/inline"
mode = "inline"

[[endpoints]]
path = "/inbox"

[[endpoints]]
path = "/drops-4xx"
mode = "inline"
busy_status = 409

[[endpoints]]
path = "/genesys"
mode = "inline"
tenant = "acme"
verify = { scheme = "genesys", secrets = ["env:SECRET_NEW", "env:SECRET_OLD"] }

[[endpoints]]
path = "/orders"
mode = "inline"
id_path = "order.number"
type_path = "kind"
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with service(tmp_path_factory.mktemp("service"), SETTINGS, "tests.service.handlers_app:app", env=ENV) as running:
        yield running


def event(kind: str, id: str, **data: Any) -> dict[str, Any]:
    return {"id": id, "type": kind, "data": data}


def problem(reply: Reply) -> dict[str, Any]:
    assert reply.headers["content-type"] == "application/problem+json"
    said: dict[str, Any] = reply.json
    assert said["status"] == reply.status
    assert said["title"]
    return said


def runs(running: Running, id: str) -> list[str]:
    path = running.folder / "runs.txt"
    return [line for line in path.read_text().splitlines() if line.split()[0] == id] if path.exists() else []


# ---------------------------------------------------------------------------------------------------- what went well


def test_a_new_event_is_processed_and_its_copy_is_a_duplicate_with_the_stored_result(running: Running) -> None:
    first, copy = (running.post("/inline", event("ok", "a1", x=1)) for _ in range(2))
    assert (first.status, first.json["status"], first.json["result"]) == (200, "processed", {"ran": "a1"})
    assert first.json["id"] == "a1"
    assert (copy.status, copy.json["status"], copy.json["result"]) == (200, "duplicate", {"ran": "a1"})
    assert copy.json["key"] == first.json["key"]
    assert len(runs(running, "a1")) == 1


def test_an_event_for_the_inbox_is_accepted_then_handled_and_its_copies_are_duplicates(running: Running) -> None:
    first, copy = (running.post("/inbox", event("ok", "b1")) for _ in range(2))
    assert (first.status, first.json["status"]) == (200, "accepted")
    assert (copy.status, copy.json["status"]) == (200, "duplicate")
    running.until(lambda: runs(running, "b1"), "the inbox was not handled")
    running.until(
        lambda: running.post("/inbox", event("ok", "b1")).json.get("reason") == "done", "its record did not appear"
    )
    assert len(runs(running, "b1")) == 1


def test_one_event_over_both_roads_is_one_event(running: Running) -> None:
    assert running.post("/inline", event("ok", "b2")).json["status"] == "processed"
    assert running.post("/inbox", event("ok", "b2")).json["status"] == "duplicate"


def test_an_event_without_a_matching_route_is_ignored_with_200(running: Running) -> None:
    for path in ("/inline", "/inbox"):
        reply = running.post(path, event("unknown", "c1"))
        assert (reply.status, reply.json["status"]) == (200, "ignored")


def test_events_that_need_a_decision_are_kept_and_answered_200(running: Running) -> None:
    dead = running.post("/inline", event("refused", "d1"))
    assert (dead.status, dead.json["status"]) == (200, "dead")
    doubtful = running.post("/inline", event("doubtful", "d2"))
    assert (doubtful.status, doubtful.json["status"]) == (200, "uncertain")
    assert b"customer" not in dead.body  # what a handler said may hold a customer's data
    assert b"line broke" not in doubtful.body


# ------------------------------------------------------------------------------------------------------ what did not


def test_a_handler_that_asks_for_a_retry_is_503_with_its_delay(running: Running) -> None:
    reply = running.post("/inline", event("again", "e1", after=7))
    assert (reply.status, reply.headers["retry-after"]) == (503, "7")
    assert "not yet" not in json.dumps(problem(reply))
    assert len(problem(reply)["key"]) == 32
    early = running.post("/inline", event("again", "e1", after=7))
    assert early.status == 503
    assert 1 <= int(early.headers["retry-after"]) <= 7
    assert len(runs(running, "e1")) == 1


def test_a_handler_that_cannot_start_is_503_and_its_attempt_does_not_count(running: Running) -> None:
    replies = [running.post("/inline", event("later", "e2")) for _ in range(3)]
    assert {(reply.status, reply.headers["retry-after"]) for reply in replies} == {(503, "3")}
    assert [line.split()[1] for line in runs(running, "e2")] == ["1", "1", "1"]


@pytest.mark.parametrize(("path", "status"), [("/inline", 503), ("/drops-4xx", 409)])
def test_an_event_that_another_worker_processes_is_busy(running: Running, path: str, status: int) -> None:
    id = f"f-{status}"
    first: list[Reply] = []
    holder = threading.Thread(target=lambda: first.append(running.post("/inline", event("slow", id, seconds=1.5))))
    holder.start()
    running.until(lambda: runs(running, id), "the handler did not begin")
    busy = running.post(path, event("slow", id, seconds=1.5))
    assert busy.status == status
    assert int(busy.headers["retry-after"]) >= 1
    problem(busy)
    holder.join()
    assert first[0].json["status"] == "processed"
    assert len(runs(running, id)) == 2  # its beginning and its end


def test_the_same_id_with_another_body_is_422_and_the_first_record_stays(running: Running) -> None:
    for path in ("/inline", "/inbox"):
        id = f"g{path}"
        running.post(path, event("ok", id, amount=1))
        other = running.post(path, event("ok", id, amount=2))
        assert other.status == 422
        problem(other)
        assert running.post(path, event("ok", id, amount=1)).json["status"] == "duplicate"


@pytest.mark.parametrize("path", ["/inline", "/inbox"])
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", ""),
        (b"not json", ""),
        (b"[]", "array"),
        (b'{"id":"h","id":"i","type":"ok"}', "id"),
        (b'{"id":"h","type":"ok","data":' + b"[" * 100 + b"]" * 100 + b"}", "64"),
        (b'{"id":"h","type":"ok","data":NaN}', ""),
        (b"\xff\xfe", ""),
    ],
)
def test_a_body_that_is_no_event_is_400_with_the_reason(running: Running, path: str, body: bytes, why: str) -> None:
    reply = running.post(path, body)
    assert reply.status == 400
    assert why in problem(reply)["detail"]


def test_any_json_is_an_event_where_its_paths_are_configured(running: Running) -> None:
    order = {"order": {"number": 17}, "kind": "ok"}
    assert [running.post("/orders", order).json["status"] for _ in range(2)] == ["processed", "duplicate"]


def test_cloudevents_in_binary_mode_are_read_from_their_headers(running: Running) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "ce1", "ce-source": "/crm", "ce-type": "ok"}
    replies = [running.post("/inline", {"any": "thing"}, headers | {"Content-Type": "application/json"}) for _ in "12"]
    assert [reply.json["status"] for reply in replies] == ["processed", "duplicate"]


# ---------------------------------------------------------------------------------------------------- verification


def signed(body: bytes, secret: bytes) -> dict[str, str]:
    digest = hmac.new(secret, body, hashlib.sha256).digest()
    return {"X-Hub-Signature-256": "sha256=" + base64.b64encode(digest).decode()}


def test_an_unverified_delivery_is_401_with_a_constant_body_and_claims_nothing(running: Running) -> None:
    body = json.dumps(event("ok", "v1")).encode()
    hex_digest = hmac.new(b"new secret", body, hashlib.sha256).hexdigest()
    tries: list[dict[str, str]] = [
        {},
        {"X-Hub-Signature-256": ""},
        {"X-Hub-Signature-256": f"sha256={hex_digest}"},
        signed(body, b"guess"),
        signed(body + b" ", b"new secret"),
    ]
    replies = [running.post("/genesys", body, headers) for headers in tries]
    replies.append(running.post("/genesys", b"not even json"))
    assert {reply.status for reply in replies} == {401}
    assert len({reply.body for reply in replies}) == 1
    assert running.post("/genesys", body, signed(body, b"new secret")).json["status"] == "processed"


def test_both_active_secrets_count(running: Running) -> None:
    body = json.dumps(event("ok", "v2")).encode()
    assert running.post("/genesys", body, signed(body, b"old secret")).json["status"] == "processed"
    assert running.post("/genesys", body, signed(body, b"new secret")).json["status"] == "duplicate"


# ----------------------------------------------------------------------------------------------------------- limits


def test_a_body_over_the_limit_is_413_whether_or_not_its_length_is_announced(running: Running) -> None:
    big = json.dumps(event("ok", "l1", text="x" * 20_000)).encode()
    assert running.post("/inline", big).status == 413
    with socket.create_connection(("127.0.0.1", running.port), 30) as connection:
        connection.sendall(
            b"POST /inline HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        for part in (big[:9_000], big[9_000:]):
            connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
            time.sleep(0.3)  # so that it arrives in pieces
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")
    assert runs(running, "l1") == []


def test_an_encoded_body_is_415(running: Running) -> None:
    assert running.post("/inline", b"\x1f\x8b", {"Content-Encoding": "gzip"}).status == 415


def test_other_methods_and_paths_are_refused(running: Running) -> None:
    reply = running.get("/inline")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    problem(reply)
    assert running.post("/nowhere", event("ok", "m1")).status == 404
    assert running.get("/").status == 404


def test_a_service_that_works_is_healthy_and_ready(running: Running) -> None:
    assert (running.get("/healthz").status, running.get("/readyz").status) == (200, 200)
