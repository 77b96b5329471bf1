"""The laws of a ledger, by topic. `semel.testing.ledger_laws` binds them together."""
