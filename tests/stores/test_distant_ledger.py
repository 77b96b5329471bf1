"""`semel run` with a ledger that is far away all the time, and with one that becomes slow."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.service.running import Running, event, service
from tests.stores.commands import migrated, semel

from semel.cli.token import make_token
from semel.testing.proxy import Fault, FaultProxy

ROUTE = '[[routes]]\nname = "all"\ntopics = ["**"]\nconsole = true\n'
INLINE = '[[endpoints]]\nmode = "inline"\n'
REQUESTS = 7  # more than the slow calls in a row that open a breaker
SETTLED_S = 30.0  # for the breaker to stay closed


@pytest.fixture(params=["redis", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("redis_url" if request.param == "redis" else "database"))


@contextmanager
def behind_proxy(url: str, folder: Path, fault: Fault) -> Iterator[tuple[Running, FaultProxy, dict[str, str]]]:
    """A service whose ledger is behind this network from its first connection on."""
    migrated(url)
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    token, digest = make_token()
    tokens = f'[[tokens]]\nname = "t"\ndigest = "{digest}"\nscopes = ["claims"]\n'
    with FaultProxy(parts.hostname, parts.port) as proxy:
        proxy.set(fault)
        with service(folder, f'ledger = "{proxy.url(url)}"\n{INLINE}{ROUTE}{tokens}') as running:
            bearer = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            yield running, proxy, bearer


def claim(name: str) -> dict[str, object]:
    return {"items": [{"handler": "h", "key": [name]}]}


@pytest.mark.parametrize(
    "ms", [10, 60, pytest.param(100, marks=pytest.mark.long), pytest.param(250, marks=pytest.mark.long)]
)
def test_a_distant_ledger_works_from_the_first_request_on(ms: int, url: str, tmp_path: Path) -> None:
    """The proxy delays each direction by `ms`: a round trip takes at least twice as long."""
    with behind_proxy(url, tmp_path, Fault(latency_ms=ms)) as (running, proxy, bearer):
        running.until(lambda: running.get("/readyz").status == 200, "it does not become ready")
        statuses = [running.post("/events", event(number)).status for number in range(REQUESTS)]
        statuses += [running.post("/v1/claims", claim(f"k-{n}"), bearer).status for n in range(REQUESTS)]
        assert statuses == [200] * 2 * REQUESTS, running.text
        assert proxy.seen.delayed, "the fault did not land"
        ready = running.get("/readyz").json
        assert ready["status"] == "ready"
        assert ready["ledger"]["breaker"] == "closed"
        assert ready["ledger"]["round_trip_ms"] >= 2 * ms


@pytest.mark.long  # half a minute; tests/engine/test_ledger_breaker.py has the rule in short windows
def test_a_ledger_that_moves_away_opens_the_breaker_and_works_again_when_it_stays_there(
    redis_url: str, tmp_path: Path
) -> None:
    with behind_proxy(redis_url, tmp_path, Fault()) as (running, proxy, _):
        assert running.post("/events", event("near")).status == 200
        proxy.set(Fault(latency_ms=200))
        answers: list[int] = []
        number = 0

        def open_now() -> bool:
            nonlocal number
            number += 1
            answers.append(running.post("/events", event(f"far-{number}")).status)
            return answers[-1] == 503

        running.until(open_now, "the breaker does not open")
        ready = running.get("/readyz").json
        assert ready["ledger"]["breaker"] != "closed"
        assert ready["ledger"]["since"]
        assert ready["ledger"]["reason"]
        running.until(lambda: any("ledger_patience" in line for line in running.log), "the log names no setting")
        running.until(lambda: not open_now(), "a ledger that stays far away stays an outage", within_s=60)
        deadline = time.monotonic() + SETTLED_S
        while time.monotonic() < deadline and answers[-10:] != [200] * 10:
            open_now()
        assert answers[-10:] == [200] * 10, running.text
        assert running.get("/readyz").json["ledger"]["breaker"] == "closed"


def test_doctor_reports_the_round_trip_and_the_breaker_of_the_running_service(redis_url: str, tmp_path: Path) -> None:
    with behind_proxy(redis_url, tmp_path, Fault(latency_ms=30)) as (running, proxy, _):
        path = tmp_path / "doctor.toml"
        path.write_text(f"{(tmp_path / 'semel.toml').read_text()}\n[server]\nport = {running.port}\n")

        def doctor() -> dict[str, Any]:
            report: dict[str, Any] = semel("doctor", "-c", str(path), "--json").json
            return report

        well = doctor()
        assert float(well["store"]["round trip"].removesuffix(" ms")) >= 60
        assert not [one for one in well["findings"] if one["check"] == "running"]
        with proxy.fault(Fault(refuse=True)):
            proxy.reset()
            running.until(
                lambda: running.post("/events", event("down")).status == 503 and is_open(running), "it stays closed"
            )
            found: list[dict[str, Any]] = []

            def reported() -> bool:
                found[:] = [one for one in doctor()["findings"] if one["check"] == "running"]
                return bool(found)

            running.until(reported, "doctor does not report the breaker")  # a probe of the breaker may be under way
            (finding,) = found
            assert finding["level"] == "warning"
            assert re.search(r"\b20\d\d-", finding["what"]), "since when"
            assert re.search(r"\b(failed|stuck)\b", finding["what"])


def is_open(running: Running) -> bool:
    return bool(running.get("/readyz").json["ledger"]["breaker"] != "closed")
