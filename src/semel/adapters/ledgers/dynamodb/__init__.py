"""The ledger in DynamoDB: one table, for any number of machines of one region."""

from semel.adapters.ledgers.dynamodb.ledger import DynamoLedger
from semel.adapters.ledgers.dynamodb.promises import profiles
from semel.adapters.ledgers.dynamodb.transaction import ConditionFailed, WritesRefused

__all__ = ["ConditionFailed", "DynamoLedger", "WritesRefused", "profiles"]
