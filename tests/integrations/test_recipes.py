"""The pages of integrations/: their URLs are answered, and what they say of answers holds."""

from __future__ import annotations

import re
from pathlib import Path

from tests.service.api.desk import PHONE, desk_on
from tests.service.api.live import ASKER, Client

from semel.values.notification import TEXT_MAX
from semel.values.outbox import _ANSWERS

ROOT = Path(__file__).parents[2]
CXONE = (ROOT / "integrations" / "cxone" / "README.md").read_text("utf-8")
GENESYS = (ROOT / "integrations" / "genesys" / "README.md").read_text("utf-8")
LOOK_UP = (ROOT / "docs" / "guard-look-up.md").read_text("utf-8")


def test_the_recipe_for_cxone_is_answered_as_it_says(tmp_path: Path) -> None:
    (template,) = re.findall(r"`https://semel\.example\.com(/v1/\S+)`", CXONE)
    (names,) = re.findall(r"\| answer \| JSON, one level deep: (.*) \|", CXONE)
    with desk_on(tmp_path) as desk:
        desk.send()
        client = Client(desk.client.port, ASKER)
        path = template.replace("{digits}", PHONE.removeprefix("+")).replace("{kind}", "shipping")
        answer = client.ask("GET", path)
        assert answer.status == 200
        assert answer.json()["status"] == "pending"
        assert re.findall(r"`(\w+)`", names) == list(answer.json())
        assert client.ask("GET", path.replace("%2B", "+")).status == 400
        assert client.ask("GET", path.replace("%2B", "%252B")).status == 400


def test_the_pages_tell_which_answers_there_are() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| (?:true|false) \|$", LOOK_UP, re.MULTILINE))
    for state, told in _ANSWERS.items():
        assert state in rows[told], (state, told)
    assert set(rows) == set(re.findall(r"^\| `(\w+)` \| (?:true|false) \|", GENESYS, re.MULTILINE))
    assert set(rows) == {*_ANSWERS.values(), "never", "not_sent"}
    assert f" {TEXT_MAX} characters" in LOOK_UP
