"""Hold docs/http-api.md to the code: its requests are sent, its answers are those that come, its tables whole."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.service.api.live import ACME, PATIENCE_S, api_on

from semel.service.api.claim_shapes import ClaimItem, SettleItem, VerdictItem
from semel.service.api.errors import TITLES
from semel.service.api.notification_shapes import NewNotification
from semel.testing.harness import FakeClock

PAGE = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text("utf-8")
BLOCK = r"```json\n(.*?)```"
DIALOGUE = re.compile(
    rf"^`(POST) (\S+)`\n\n{BLOCK}\n\nanswers\n\n{BLOCK}|^`(GET) (\S+)`\n\n{BLOCK}", re.MULTILINE | re.DOTALL
)


def dialogues() -> list[tuple[str, str, Any, Any]]:
    """(method, path, what is sent, what the page says is answered), in order."""
    found = []
    for post, path, sent, told, get, where, report in DIALOGUE.findall(PAGE):
        found.append(
            (post, path, json.loads(sent), json.loads(told)) if post else (get, where, None, json.loads(report))
        )
    return found


def table(heading: str) -> list[str]:
    """The first column of the table with this heading."""
    rows = PAGE.partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [row.split("|")[1].strip(" `") for row in rows]


def test_every_request_of_the_page_gets_the_documented_response(tmp_path: Path) -> None:
    """Nothing is left to chance: a new ledger, a clock that stands still, one tenant."""
    with api_on(tmp_path, clock=FakeClock()) as client:
        said = dialogues()
        assert len(said) == 11
        for method, path, sent, told in said:
            reply = client.ask(method, path, sent)
            assert reply.status in (200, 201), reply.body
            assert reply.json() == told, path


def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    scripts = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    with api_on(tmp_path) as client:
        environment = {"SEMEL": f"http://127.0.0.1:{client.port}", "TOKEN": ACME, "PATH": "/usr/bin:/bin"}
        answers = [
            subprocess.run(["sh", "-ec", script], env=environment, capture_output=True, timeout=PATIENCE_S, check=True)
            for script in scripts
        ]
    claimed, notified = [json.loads(answer.stdout) for answer in answers]
    assert claimed["items"][0]["verdict"] == "granted"
    assert notified["status"] == "added"


def test_the_refusal_of_the_page_is_the_one_that_comes(tmp_path: Path) -> None:
    (said,) = re.findall(r'^\{"type".*\}$', PAGE, re.MULTILINE)
    with api_on(tmp_path) as client:
        reply = client.ask("POST", "/v1/claims", {"items": [{"handler": "h", "key": "k", "lease": "long"}]})
    assert reply.json() == json.loads(said)


def test_the_page_names_everything_that_there_is() -> None:
    assert table("verdict") == [verdict.__struct_config__.tag for verdict in get_args(VerdictItem)]
    assert table("outcome") == [settlement.__struct_config__.tag for settlement in get_args(SettleItem)]
    assert table("name") == list(ClaimItem.__struct_fields__)
    assert table("field") == list(NewNotification.__struct_fields__)
    assert table("status") == [str(status) for status in TITLES if status != 500]
    for status, title in TITLES.items():
        assert status == 500 or f"| {status} | {title} |" in PAGE


def test_the_defaults_of_the_page_are_those_of_the_code() -> None:
    item = ClaimItem(handler="h", key="k")
    for name in ("lease", "retention"):
        assert f"| `{name}` | {getattr(item, name):,.0f} |" in PAGE
