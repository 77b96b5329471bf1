"""`semel token`: creates a bearer token. The settings contain only its digest; the token itself is printed once."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Annotated

import typer

from semel.settings.schema import Token
from semel.settings.validation import fault_in
from semel.values.errors import ConfigError

PREFIX = "semel_"  # so that scanners for leaked secrets, and people, recognise it
TOKEN_BYTES = 32


class Scope(StrEnum):
    """The permissions of a token."""

    claims = "claims"
    keys = "keys"
    metrics = "metrics"
    notify = "notify"
    notifications = "notifications"
    operate = "operate"


def make_token() -> tuple[str, str]:
    """Return a new token and its digest."""
    token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    return token, digest_of(token)


def digest_of(token: str) -> str:
    """Unsalted and fast on purpose: 256 random bits cannot be guessed, and every request computes it."""
    return f"sha256:{sha256(token.encode()).hexdigest()}"


def block(name: str, digest: str, scopes: Sequence[str], tenant: str) -> str:
    """The lines for semel.toml."""
    lines = ["[[tokens]]", f"name = {_text(name)}", f"digest = {_text(digest)}"]
    lines.append(f"scopes = [{', '.join(map(_text, scopes))}]")
    if tenant:
        lines.append(f"tenant = {_text(tenant)}")
    return "\n".join(lines)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # a JSON text without control characters is a TOML text


def register(app: typer.Typer) -> None:
    @app.command()
    def token(
        name: Annotated[str, typer.Argument(help="The user of the token; shown in logs and settings.")],
        scope: Annotated[
            list[Scope],
            typer.Option(
                help="A permission; repeat the option for several. claims: claim and settle; keys: read keys; metrics: "
                "read metrics; notify: add notifications; notifications: read them; operate: decide about them."
            ),
        ],
        tenant: Annotated[
            str, typer.Option(help="The tenant whose keys it can access; by default keys without a tenant.")
        ] = "",
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
    ) -> None:
        """Create a token for the HTTP API and print its lines for semel.toml.

        The settings contain only the digest. The token is printed once; its user sends it as "Authorization: Bearer …".
        """
        scopes = list(dict.fromkeys(permission.value for permission in scope))
        secret, digest = make_token()
        fields = {"name": name, "digest": digest, "scopes": scopes, "tenant": tenant}
        if fault := fault_in(Token, fields):
            raise ConfigError(fault)
        if as_json:
            typer.echo(json.dumps({"token": secret, **fields}))
            return
        typer.echo(block(name, digest, scopes, tenant))
        typer.echo(f"\nThe token, printed only once:\n{secret}", err=True)
