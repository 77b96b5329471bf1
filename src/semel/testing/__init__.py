"""Shipped with Semel, for adapters of your own: contract suites, a model to compare a ledger with, races.

semel.testing.ledger_laws   LedgerLaws and TransactionLaws: a ledger binds them in a few lines
semel.testing.inbox_laws    InboxLaws: the same for an inbox and its dead letters
semel.testing.machine       ledger_machine: random histories, compared with the model step by step
semel.testing.inbox_machine inbox_machine: the same for an inbox
semel.testing.harness       the harness of a ledger under test, and callers for laws
semel.testing.fault_laws    StoreFaultLaws: a store over a network, killed and cut off under load
semel.testing.proxy         FaultProxy: a network that fails
semel.testing.source_laws   SourceLaws: the same for a source
semel.testing.child_processes start_child: processes that end with the test run, also when it is killed

Races between processes, storms and kill runs carry the mark `long`. Register it (`markers = ["long: takes minutes"]`),
and leave them out with `-m "not long"` where a quick run is wanted.
"""
