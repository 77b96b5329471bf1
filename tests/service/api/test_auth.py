"""Nothing is open by default, and a refusal tells nobody how close they came."""

from __future__ import annotations

import hmac
import http.client
from collections.abc import Iterator
from hashlib import sha256
from itertools import product
from pathlib import Path

import pytest
from tests.service.api.live import ACME, GLOBEX, READER, TOKENS, WATCHER, Client, api_on, token
from tests.service.running import service

from semel.service.api import Keyring
from semel.values.errors import ConfigError

ASKED = (
    ("POST", "/v1/claims"),
    ("POST", "/v1/claims/settle"),
    ("POST", "/v1/claims/renew"),
    ("GET", f"/v1/keys/{'0' * 32}"),
    ("GET", "/v1/claims"),
    ("GET", "/v1/no/such/path"),
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with api_on(tmp_path_factory.mktemp("auth")) as client:
        yield client


def test_without_configured_tokens_every_request_is_refused_with_the_reason(tmp_path: Path) -> None:
    with api_on(tmp_path, tokens=[]) as client:
        for who, (method, path) in product((client, Client(client.port, None)), ASKED):
            reply = who.ask(method, path)
            assert (reply.status, reply.headers["www-authenticate"]) == (401, 'Bearer realm="semel"')
            assert "[[tokens]]" in reply.json()["detail"]


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {ACME}",
        ACME,
        f"Bearer {ACME}x",
        f"Bearer {ACME[:-1]}",
        f"Bearer {ACME} {ACME}",
        f"Bearer {ACME}, Bearer {ACME}",
        f"Bearer sha256:{sha256(ACME.encode()).hexdigest()}",
        f"Bearer {sha256(ACME.encode()).hexdigest()}",
        f"Bearer {'x' * 600}",
        "Bearer \xff\xfe",
    ],
)
def test_a_request_without_a_token_is_refused_with_a_constant_body(client: Client, header: str) -> None:
    nobody = Client(client.port, None)
    constant = nobody.ask("POST", "/v1/claims", {"items": []})
    refused = nobody.ask("POST", "/v1/claims", {"items": []}, Authorization=header)
    assert (refused.status, refused.body) == (401, constant.body)
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["www-authenticate"] == 'Bearer realm="semel"'
    for secret in (ACME, GLOBEX, *(one.digest for one in TOKENS)):
        assert secret.encode() not in refused.body


@pytest.mark.parametrize("header", [f"Bearer {ACME}", f"bearer {ACME}", f"BEARER   {ACME}"])
def test_a_request_with_a_token_is_admitted(client: Client, header: str) -> None:
    body = {"items": [{"handler": "h", "key": "k"}]}
    assert Client(client.port, None).ask("POST", "/v1/claims", body, Authorization=header).status == 200


def test_two_authorizations_are_none(client: Client) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=10)
    connection.putrequest("GET", f"/v1/keys/{'0' * 32}")
    for secret in (ACME, GLOBEX):
        connection.putheader("Authorization", f"Bearer {secret}")
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


@pytest.mark.parametrize(
    ("secret", "method", "path", "missing"),
    [
        (READER, "POST", "/v1/claims", "claims"),
        (READER, "POST", "/v1/claims/settle", "claims"),
        (READER, "POST", "/v1/claims/renew", "claims"),
        (WATCHER, "GET", f"/v1/keys/{'0' * 32}", "keys"),
    ],
)
def test_the_error_of_a_token_without_the_scope_names_the_scope(
    client: Client, secret: str, method: str, path: str, missing: str
) -> None:
    reply = Client(client.port, secret).ask(method, path, b"not even JSON" if method == "POST" else None)
    assert reply.status == 403
    assert f"'{missing}'" in reply.json()["detail"]
    assert f'scope="{missing}"' in reply.headers["www-authenticate"]


def test_the_description_is_open(client: Client) -> None:
    reply = Client(client.port, None).ask("GET", "/openapi.json")
    assert (reply.status, reply.json()["openapi"]) == (200, "3.1.0")


def test_a_credential_has_the_name_and_the_tenant_of_its_token() -> None:
    keyring = Keyring(TOKENS)
    credential = keyring.authenticate(f"Bearer {WATCHER}".encode())
    assert credential is not None
    assert (credential.name, credential.tenant, credential.scopes) == ("watcher", "acme", frozenset({"metrics"}))
    assert keyring.authenticate(None) is keyring.authenticate(b"Bearer nobody") is None


def test_every_digest_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    honest = hmac.compare_digest

    def watched(left: bytes, right: bytes) -> bool:
        compared.append(left)
        return honest(left, right)

    keyring = Keyring(TOKENS)
    monkeypatch.setattr(hmac, "compare_digest", watched)
    for secret in (ACME, WATCHER, "nobody"):
        compared.clear()
        keyring.authenticate(f"Bearer {secret}".encode())
        assert len(compared) == len(TOKENS)


@pytest.mark.parametrize("twin", [token("other", "acme", "", "keys"), token(ACME, "twin", "other", "keys")])
def test_tokens_with_the_same_name_or_digest_are_refused(twin: object) -> None:
    with pytest.raises(ConfigError, match="'acme'"):
        Keyring([*TOKENS, twin])  # type: ignore[list-item]


def test_the_numbers_say_whether_a_token_or_its_scope_is_missing(tmp_path: Path) -> None:
    known = [f'[[tokens]]\nname = "{one.name}"\ndigest = "{one.digest}"\nscopes = {one.scopes}\n' for one in TOKENS]
    with service(tmp_path, "endpoints = []\n" + "".join(known)) as running:
        refused = running.get("/metrics")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, 'Bearer realm="semel"')
        for who, status in (("nobody", 401), (ACME, 403), (READER, 403), (WATCHER, 200)):
            reply = running.get("/metrics", {"Authorization": f"Bearer {who}"})
            assert reply.status == status, who
        assert running.post("/events", {"id": "1", "type": "a"}).status == 404  # none was wanted
