"""deploy/aws/template.yaml, held to the code: what it says of the ledger and of times is what the code needs."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.aws_lambda.invocations import genesys

from semel.app import LAMBDA_MARGIN_S, MAX_ATTEMPTS, TIMEOUT_S
from semel.ledgers.dynamodb import DynamoLedger
from semel.ledgers.dynamodb.schema import ATTRIBUTES, DEAD_LETTERS_INDEX, KEYS, TTL

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
    assert table["GlobalSecondaryIndexes"] == [DEAD_LETTERS_INDEX]
    assert table["TimeToLiveSpecification"] == {"AttributeName": TTL, "Enabled": True}
    assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}


def test_cloudformation_accepts_it() -> None:
    """Every rule counts, also those that only inform; nothing is ignored, and nobody is asked on the network."""
    lint: Any = import_module("cfnlint.api")
    asked = import_module("cfnlint.config").ManualArgs(include_checks=["I"], regions=["eu-central-1"])
    found = lint.lint((PLACE / "template.yaml").read_text("utf-8"), config=asked)
    assert [f"{one.rule.id} line {one.linenumber}: {one.message}" for one in found] == []
    broken = (PLACE / "template.yaml").read_text("utf-8").replace("VisibilityTimeout: 90", "VisibilityTimeout: ninety")
    assert lint.lint(broken, config=asked), "inconclusive: it accepts everything"
    assert "cfn-lint" not in (PLACE / "template.yaml").read_text("utf-8"), "no rule is switched off in there"


def test_the_road_leads_from_the_bus_to_the_queue_to_the_function(resources: dict[str, Any]) -> None:
    (target,) = resources["Rule"]["Targets"]
    assert target["Arn"] == "Events.Arn"
    assert target["DeadLetterConfig"] == {"Arn": "DeadLetters.Arn"}
    assert resources["Rule"]["EventBusName"] == "EventBusName"
    assert resources["Events"]["RedrivePolicy"]["deadLetterTargetArn"] == "DeadLetters.Arn"
    assert resources["Function"]["Events"]["Queue"]["Properties"]["Queue"] == "Events.Arn"
    (told,) = resources["QueuePolicy"]["PolicyDocument"]["Statement"]
    assert told["Action"] == "sqs:SendMessage"
    assert told["Principal"] == {"Service": "events.amazonaws.com"}
    assert told["Condition"] == {"ArnEquals": {"aws:SourceArn": "Rule.Arn"}}, "no other rule, and nobody else"


def test_the_function_may_do_what_it_needs_and_nothing_else(resources: dict[str, Any]) -> None:
    """The actions of claims and settles are told in the ledger's own words."""
    role = resources["Role"]
    assert resources["Function"]["Role"] == "Role.Arn"
    assert "Policies" not in resources["Function"], "SAM would make another role"
    always, (condition, on_dynamodb, _) = role["Policies"]
    rights = {
        one["Resource"]: set(one["Action"])
        for policy in (always, on_dynamodb)
        for one in policy["PolicyDocument"]["Statement"]
    }
    assert condition == "OnDynamoDB"
    assert rights == {
        "Events.Arn": {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"},
        "Logs.Arn": {"logs:CreateLogStream", "logs:PutLogEvents"},
        "Ledger.Arn": {f"dynamodb:{name}" for name in ("BatchGetItem", "PutItem", "UpdateItem", "DeleteItem")},
    }
    documented = DynamoLedger.__doc__ or ""
    assert all(action.partition(":")[2] in documented for action in rights["Ledger.Arn"])
    assert role["ManagedPolicyArns"][0] == "OnRedis"


def test_the_template_has_alarms_for_dead_letters_late_events_and_errors(resources: dict[str, Any]) -> None:
    watched = {
        (one["Namespace"], one["MetricName"], one["Dimensions"][0]["Value"]): one
        for name, one in resources.items()
        if name.endswith("Alarm")
    }
    assert set(watched) == {
        ("AWS/SQS", "ApproximateNumberOfMessagesVisible", "DeadLetters.QueueName"),
        ("AWS/SQS", "ApproximateAgeOfOldestMessage", "Events.QueueName"),
        ("AWS/Lambda", "Errors", "Function"),
    }
    assert all("AlarmTopicArn" in str(one["AlarmActions"]) for one in watched.values())


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
