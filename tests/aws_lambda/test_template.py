"""deploy/aws/template.yaml, held to the code: what it says of the ledger and of times is what the code needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.aws_lambda.invocations import genesys

from semel.adapters.ledgers.dynamodb.schema import ATTRIBUTES, KEYS, LETTERS, TTL
from semel.app import LAMBDA_MARGIN_S, MAX_ATTEMPTS, TIMEOUT_S

PLACE = Path(__file__).parent.parent.parent / "deploy" / "aws"


@pytest.fixture(scope="module")
def resources() -> dict[str, Any]:
    yaml: Any = pytest.importorskip("yaml")

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Reads the short forms of CloudFormation's functions as what stands behind them."""

    def plain(loader: Any, suffix: str, node: Any) -> Any:
        match node:
            case yaml.ScalarNode():
                return loader.construct_scalar(node)
            case yaml.SequenceNode():
                return loader.construct_sequence(node, deep=True)
        return loader.construct_mapping(node, deep=True)

    Loader.add_multi_constructor("!", plain)
    found: dict[str, Any] = yaml.load((PLACE / "template.yaml").read_text("utf-8"), Loader)["Resources"]
    return {name: resource["Properties"] for name, resource in found.items()}


def test_the_table_is_the_one_that_migrate_makes(resources: dict[str, Any]) -> None:
    table = resources["Ledger"]
    assert table["KeySchema"] == KEYS
    assert table["AttributeDefinitions"] == ATTRIBUTES
    assert table["GlobalSecondaryIndexes"] == [LETTERS]
    assert table["TimeToLiveSpecification"] == {"AttributeName": TTL, "Enabled": True}
    assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}


def test_its_times_hang_together(resources: dict[str, Any]) -> None:
    function, queue = resources["Function"], resources["Events"]
    assert TIMEOUT_S + LAMBDA_MARGIN_S < function["Timeout"] < queue["VisibilityTimeout"]
    assert queue["RedrivePolicy"]["maxReceiveCount"] > MAX_ATTEMPTS
    assert function["Events"]["Queue"]["Properties"]["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


def test_its_function_works(resources: dict[str, Any], tmp_path: Path) -> None:
    module, _, name = resources["Function"]["Handler"].partition(".")
    code = (
        f"import json, sys; sys.path.insert(0, {str(PLACE / resources['Function']['CodeUri'])!r});"
        f"import {module}; print({module}.{name}(json.loads({json.dumps(genesys(60).decode())}), None)['body'])"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-B", "-c", code],
        cwd=tmp_path,
        env={"LEDGER": "memory://"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == '{"processed":1,"skipped":0,"errors":0}\n'
