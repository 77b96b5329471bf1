"""docs/providers.md lists every kind and every option, and no others."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.outbox.providers.kits import KITS

from semel.http_client.client import Answered
from semel.providers.http import HttpProvider
from semel.providers.options import HttpOptions, options_of
from semel.providers.registry import KINDS, provider
from semel.testing.provider_laws import Opening
from semel.testing.simulator import SimulatorProcess
from semel.values.delivery_state import Answer, Refused
from semel.values.secret import Secret

PAGE = (Path(__file__).parents[3] / "docs" / "providers.md").read_text("utf-8")
COMMON = options_of(HttpOptions)
SECTIONS = {
    found[1]: section
    for section in PAGE.split("\n## ")
    if (found := re.search(r'^`kind = "([a-z-]+)"`', section, re.MULTILINE)) is not None
}


def options(section: str) -> list[tuple[str, bool]]:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", section, re.MULTILINE)
    return [(name, "(**needed**)" in says) for name, says in rows]


def test_the_table_of_kinds_names_all_of_them() -> None:
    assert re.findall(r"^\| \[`([a-z-]+)`\]", PAGE, re.MULTILINE) == list(KINDS) == list(SECTIONS)


def test_common_options_are_listed_once() -> None:
    _, _, rest = PAGE.partition("\n## Common options")
    assert [name for name, _ in options(rest.partition("\n## ")[0])] == list(COMMON)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_lists_its_own_options(kind: str) -> None:
    own = [(name, option.required) for name, option in options_of(KINDS[kind].OPTIONS).items() if name not in COMMON]
    assert options(SECTIONS[kind]) == own


@pytest.mark.parametrize("kind", KINDS)
def test_each_option_has_the_type_and_the_help_of_the_code(kind: str) -> None:
    own = {name: option for name, option in options_of(KINDS[kind].OPTIONS).items() if name not in COMMON}
    rows = [f"| `{name}` | {option.description} | {option.help}" for name, option in own.items()]
    assert [row for row in rows if f"\n{row}" not in SECTIONS[kind]] == []


@pytest.mark.parametrize("kind", KINDS)
def test_channels_are_those_of_the_contract(kind: str) -> None:
    row = re.search(rf"^\| \[`{kind}`\]\([^)]*\) \| ([^|]*) \|", PAGE, re.MULTILINE)
    assert row is not None
    assert tuple(row[1].split(", ")) == KINDS[kind].CONTRACT.channels


# ------------------------------------------------------------------------------------------------------- what is proven


def listed(option: str) -> set[int]:
    row = re.search(rf"^\| `{option}` \| a list of HTTP statuses \| (.*) \|$", PAGE, re.MULTILINE)
    assert row is not None
    return {int(status) for status in re.findall(r"\b[45]\d\d\b", row[1])}


def judged(simulator: SimulatorProcess, name: str, *statuses: int) -> list[Answer]:
    """What a bare answer with each status says to this one, without anything being sent."""

    async def story() -> list[Answer]:
        kit = KITS[name](simulator)
        opened = kit.open(Opening(simulator.url(kit.dialect)))
        assert isinstance(opened, HttpProvider)
        try:
            return [opened.classify(Answered(status, b"{}")) for status in statuses]
        finally:
            await opened.close()

    return asyncio.run(story())


SPEAK_HTTP = [name for name in KITS if name != "smtp"]


@pytest.mark.parametrize("name", SPEAK_HTTP)
def test_the_statuses_that_the_page_calls_final_are_final_and_no_others(simulator: SimulatorProcess, name: str) -> None:
    (sentence,) = re.findall(r"^403 is treated like 401: always for (.*?),", PAGE, re.MULTILINE)
    excepted = {403} if name in re.findall(r"`([a-z]+)`", sentence) else set()
    every = range(400, 600)
    final = {
        status
        for status, answer in zip(every, judged(simulator, name, *every), strict=True)
        if isinstance(answer, Refused) and answer.final
    }
    assert final == listed("refusals") - excepted


@pytest.mark.parametrize("name", SPEAK_HTTP)
def test_every_provider_is_paused_by_a_401_and_delayed_by_a_429(simulator: SimulatorProcess, name: str) -> None:
    unknown, limited = judged(simulator, name, 401, 429)
    assert isinstance(unknown, Refused)
    assert (unknown.final, unknown.limited, unknown.configuration) == (False, False, True)
    assert isinstance(limited, Refused)
    assert (limited.final, limited.limited) == (False, True)
    assert listed("retriable") == {429}
    assert re.search(r"\b401\b.*pause", PAGE)


def test_no_list_makes_a_401_final() -> None:
    options = {"account": "AC", "token": Secret("t"), "sender": "+490", "refusals": [400, 401]}
    assert provider("twilio", "mine", options).classify(Answered(401, b"")) == Refused("401", configuration=True)  # type: ignore[attr-defined]
