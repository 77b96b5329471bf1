"""The server of the ledger's own tests."""

from tests.ledgers.postgres.conftest import postgres, url

__all__ = ["postgres", "url"]
