"""Shipped with Semel, for adapters of your own: contract suites, a model to compare a ledger with, races.

semel.testing.ledger_laws   LedgerLaws and TransactionLaws: a ledger binds them in a few lines
semel.testing.machine       ledger_machine: random histories, compared with the model step by step
semel.testing.harness       what a ledger under test brings along
"""
