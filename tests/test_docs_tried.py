"""What docs/outbox.md tells a newcomer to try is tried as it stands: the settings, the commands, what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from semel.cli.describe import ANSWERS, MEANING
from semel.testing.simulator import SimulatorProcess

PAGE = Path(__file__).parent.parent / "docs" / "outbox.md"
TRIED = re.compile(r"<!-- tried -->\n```(?:toml|sh)\n(.*?)```", re.DOTALL)
OUTPUT = [  # of doctor, of the two `notify status`, and of `notify show` after the look-up
    "1 warning",
    f"sent: {ANSWERS['sent']}",
    f"unknown: {ANSWERS['unknown']}",
    f"accepted: {MEANING['accepted']}",
]


def test_the_first_messages_of_a_newcomer_go_as_the_page_says(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    assert [line for line in OUTPUT[1:3] if f"# {line}" not in PAGE.read_text("utf-8")] == []
    with SimulatorProcess() as simulator:
        text = PAGE.read_text("utf-8").replace("127.0.0.1:9100", f"127.0.0.1:{simulator.port}")
        settings, first, lie = TRIED.findall(text.replace("settle = 5", "settle = 1").replace("sleep 6", "sleep 2"))
        (tmp_path / "semel.toml").write_text(settings, "utf-8")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        attempt_log = subprocess.run(
            ["sh", "-ec", first + lie],
            cwd=tmp_path,
            env={"HOME": str(tmp_path), "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert attempt_log.returncode == 0, attempt_log.stderr
        assert re.search(".*".join(map(re.escape, OUTPUT)), attempt_log.stdout, re.DOTALL), attempt_log.stdout
        assert [(got.to, got.text) for got in simulator.phone()] == [
            ("+491701234567", "On its way."),
            ("+491701234568", "On its way."),
        ]
        assert simulator.told()["told"] == {"twilio: accept then drop": 1}
