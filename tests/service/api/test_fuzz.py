"""Whatever the OpenAPI description allows, and whatever it forbids: every answer is as described, and none is a 5xx."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from requests import Request
from schemathesis import GenerationMode, Response
from schemathesis.core import NotSet
from schemathesis.errors import FailureGroup
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from tests.service.api.live import ACME, Client, api_on

from semel.ports import Ledger
from semel.service.api.errors import TITLES
from semel.service.api.routes import description
from semel.values.claim import Claim, Verdict
from semel.values.errors import MalformedEvent
from semel.values.strict_json import parse

pytestmark = pytest.mark.long  # the whole description, and its collection alone takes seconds

EXAMPLES = 40  # for each operation, besides the cases that schemathesis derives from the description itself

DESCRIBED = description()
schema = schemathesis.openapi.from_dict(DESCRIBED)
Case: TypeAlias = schemathesis.Case[Any]


@dataclass
class Fuzzed:
    """A service under fuzzing, and which answers it gave on which path."""

    client: Client
    seen: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    fresh: count[int] = field(default_factory=count)

    def send(self, case: Case) -> None:
        """Send it, and check the answer against everything that schemathesis knows to check."""
        if case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE:
            self._make_real(case)
        headers = {"Authorization": f"Bearer {ACME}"}
        answer = case.call(base_url=f"http://127.0.0.1:{self.client.port}", headers=headers)
        case.validate_response(answer, excluded_checks=_proving_nothing(case, answer), headers=headers)
        self.seen[case.path].add(answer.status_code)

    def _make_real(self, case: Case) -> None:
        """A description cannot say which leases were granted, and which keys there are. We can."""
        if case.path in ("/v1/claims/settle", "/v1/claims/renew"):
            body: Any = case.body
            for item in body["items"]:
                item["lease"] = self._grant()["lease"]
        if case.path == "/v1/keys/{key}" and next(self.fresh) % 2:
            case.path_parameters["key"] = self._grant()["key"]
        if case.path.startswith("/v1/notifications/{id}") and next(self.fresh) % 4:
            case.path_parameters["id"] = self._notify(over=case.path.endswith("resend"))
        if case.path == "/v1/notifications" and case.method == "POST":
            self._make_whole(case)
        if case.path == "/v1/notifications/status":
            self._make_one_question(case)

    def _make_one_question(self, case: Case) -> None:
        """By key, or by recipient."""
        if "key" in case.query and next(self.fresh) % 2:
            case.query = {"key": case.query["key"]}
        else:
            case.query.pop("key", None)
            case.query.setdefault("recipient", "+4917012345678")

    def _make_whole(self, case: Case) -> None:
        """What stands in two places at once: a key here or there, a body or a template."""
        body: Any = case.body
        case.headers.pop("Idempotency-Key", None)
        if body.get("key") is None:
            body["key"] = f"fuzzed-{next(self.fresh)}"
        if body.get("body") is None and not body.get("template"):
            body["body"] = "said"

    def _notify(self, over: bool) -> str:
        asked = {"key": f"fuzzed-{next(self.fresh)}", "kind": "k", "recipient": "r", "channel": "sms", "body": "b"}
        id = str(self.client.ask("POST", "/v1/notifications", asked).json()["id"])
        if over:
            assert self.client.ask("POST", f"/v1/notifications/{id}/cancel", {"reason": "fuzzed"}).status == 200
        return id

    def _grant(self) -> dict[str, Any]:
        return self.client.grant(f"fuzzed-{next(self.fresh)}", max_attempts=1)


def _is_strict(body: Any) -> bool:
    """A schema of "any JSON" cannot say that we refuse NUL, and integers past 64 bits."""
    if isinstance(body, NotSet):
        return True
    try:
        parse(json.dumps(body).encode())
    except (MalformedEvent, TypeError):
        return False
    return True


def _is_printable(case: Case) -> bool:
    """A pattern cannot say what can be printed, nor what looks like a mistake in a query: a template, an encoding in an
    encoding, a lost character, a bare +, by which this client writes a space."""
    if not case.path.startswith("/v1/notifications"):
        return True
    given = [*case.query.values(), *(case.body.values() if isinstance(case.body, dict) else ())]
    given += [guard.get("key") for guard in given if isinstance(guard, dict)]
    texts = [text for text in given if isinstance(text, str)]
    if any(" " in str(value) for value in case.query.values()):
        return False
    odd = ("${", "\ufffd", "%2b", "%40")
    return all(
        text.isprintable() and text == text.strip() and not any(one in text.lower() for one in odd) for text in texts
    )


def _is_right_on_the_wire(case: Case) -> bool:
    """An empty list is left out of a query: what was to be wrong is not sent."""
    if case.method != "GET" or case.path not in ("/v1/notifications", "/v1/notifications/status"):
        return False
    sent = parse_qsl(str(urlsplit(Request("GET", "http://x", params=case.query).prepare().url).query), True)
    known = {one["name"]: one["schema"] for one in DESCRIBED["paths"][case.path]["get"]["parameters"]}
    return all(name in known and _is_valid(known[name], text) for name, text in sent)


def _is_valid(schema: dict[str, Any], text: str) -> bool:
    number = schema["type"] == "integer" and text.isdecimal()
    return jsonschema_rs.is_valid(schema, int(text) if number else text)


def _is_key_conflict(case: Case, answer: Response) -> bool:
    """Only this refusal of this operation: every other 422 of a valid request is a fault."""
    adds = (case.method, case.path) == ("POST", "/v1/notifications")
    return adds and answer.status_code == 422 and answer.json()["title"] == TITLES[422]


def _proving_nothing(case: Case, answer: Response) -> list[Any]:
    """Checks that would take the client's doing for the service's, such as a key that it used with another content."""
    accepts = _is_strict(case.body) and _is_printable(case) and not _is_key_conflict(case, answer)
    return [
        *([] if accepts else [positive_data_acceptance]),
        *([negative_data_rejection] if _is_right_on_the_wire(case) else []),
    ]


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    with api_on(tmp_path_factory.mktemp("fuzz")) as client:
        fuzzed = Fuzzed(client)
        yield fuzzed
    for path, statuses in fuzzed.seen.items():
        assert statuses & {200, 201}, f"nothing was accepted on {path}: the run proves little"
        assert statuses & {400, 405}, f"nothing was refused on {path}: the run proves little"


@schema.parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_no_request_makes_the_service_fail(fuzzed: Fuzzed, case: Case) -> None:
    fuzzed.send(case)


class BuggyLedger:
    """A ledger that was never told what to do with two claims."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        if len(claims) == 2:
            raise ZeroDivisionError("planted")
        return await self._ledger.claim(claims)


def test_the_fuzzer_notices_a_planted_failure(tmp_path: Path) -> None:
    with api_on(tmp_path, line=BuggyLedger) as client:

        @given(case=schema["/v1/claims"]["POST"].as_strategy())
        @settings(max_examples=300, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        def fuzz(case: Case) -> None:
            Fuzzed(client).send(case)

        with pytest.raises(FailureGroup, match="Server error"):
            fuzz()
