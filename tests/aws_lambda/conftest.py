"""The servers are those of other tests: an empty store of each kind, and queues of the emulator."""

from tests.sources.conftest import aws, new_queue, queue, server
from tests.stores.conftest import database, dynamodb, postgres, redis_url, store, valkey

__all__ = ["aws", "database", "dynamodb", "new_queue", "postgres", "queue", "redis_url", "server", "store", "valkey"]
