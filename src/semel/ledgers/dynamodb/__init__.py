"""The ledger in DynamoDB: one table, for any number of machines of one region."""

from semel.ledgers.dynamodb.ledger import DynamoLedger, profiles
from semel.ledgers.dynamodb.transaction import ConditionFailed, WritesRefused

__all__ = ["ConditionFailed", "DynamoLedger", "WritesRefused", "profiles"]
