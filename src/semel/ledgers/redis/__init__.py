"""The ledger in Redis or Valkey: one server, the master of a Sentinel, or a Cluster. Lua scripts decide claims."""

from typing import TYPE_CHECKING, Any

from semel.ledgers.redis.traits import profiles
from semel.values.errors import ConfigError

if TYPE_CHECKING:
    from semel.ledgers.redis.ledger import RedisLedger

__all__ = ["RedisLedger", "profiles"]


def __getattr__(name: str) -> Any:
    """Import the driver only to open a ledger: its guarantees can be listed without it."""
    if name != "RedisLedger":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from semel.ledgers.redis.ledger import RedisLedger
    except ModuleNotFoundError as missing:
        raise ConfigError(f"a Redis ledger needs {missing.name}: pip install 'semel[redis]'") from missing
    return RedisLedger
