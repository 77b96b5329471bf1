"""The stores are those of tests/stores: an empty one of each kind, on a real server."""

from tests.stores.conftest import database, dynamodb, postgres, redis_url, store, valkey

__all__ = ["database", "dynamodb", "postgres", "redis_url", "store", "valkey"]
