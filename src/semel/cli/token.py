"""`semel token`: makes a bearer token. The settings hold only its digest; the token itself is shown once."""

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

PREFIX = "semel_"  # so that scanners for leaked secrets, and people, know what they have found
TOKEN_BYTES = 32


class Scope(StrEnum):
    """What a token may do."""

    claims = "claims"
    keys = "keys"
    metrics = "metrics"
    notify = "notify"
    notifications = "notifications"
    operate = "operate"


def make_token() -> tuple[str, str]:
    """A new token, and the digest that is kept of it."""
    token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    return token, digest_of(token)


def digest_of(token: str) -> str:
    """Unsalted and quick on purpose: 256 random bits cannot be guessed, and every request is checked against it."""
    return f"sha256:{sha256(token.encode()).hexdigest()}"


def block(name: str, digest: str, scopes: Sequence[str], tenant: str) -> str:
    """What is pasted into semel.toml."""
    lines = ["[[tokens]]", f"name = {_text(name)}", f"digest = {_text(digest)}"]
    lines.append(f"scopes = [{', '.join(map(_text, scopes))}]")
    if tenant:
        lines.append(f"tenant = {_text(tenant)}")
    return "\n".join(lines)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # a JSON text without control characters is a TOML text


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def token(
        name: Annotated[str, typer.Argument(help="Who will use it: it stands in logs and in the settings.")],
        scope: Annotated[
            list[Scope],
            typer.Option(
                help="What it may do; say it again for more: claim and settle, look at keys, read metrics; put "
                "messages into the outbox (notify), look at them (notifications), decide about them (operate)."
            ),
        ],
        tenant: Annotated[
            str, typer.Option(help="The tenant whose keys it can reach; by default the unnamed one.")
        ] = "",
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")] = False,
    ) -> None:
        """Create a token for the HTTP API and print its lines for semel.toml.

        Only the digest is written down. The token is shown once, here: hand it to whoever will send it as
        "Authorization: Bearer …".
        """
        scopes = list(dict.fromkeys(one.value for one in scope))
        made, digest = make_token()
        fields = {"name": name, "digest": digest, "scopes": scopes, "tenant": tenant}
        if wrong := fault_in(Token, fields):
            raise ConfigError(wrong)
        if as_json:
            typer.echo(json.dumps({"token": made, **fields}))
            return
        typer.echo(block(name, digest, scopes, tenant))
        typer.echo(f"\nThe token, shown this once:\n{made}", err=True)
