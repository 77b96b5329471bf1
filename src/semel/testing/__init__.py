"""Tools for testing your own adapters: contract suites, a reference model of a ledger, and races.

semel.testing.ledger_laws   LedgerLaws and TransactionLaws: the contract of a ledger
semel.testing.inbox_laws    InboxLaws: the contract of an inbox and its dead letters
semel.testing.machine       ledger_machine: random histories, compared with the model step by step
semel.testing.inbox_machine inbox_machine: random histories of an inbox
semel.testing.harness       the harness of a ledger under test, and callers for laws
semel.testing.fault_laws    StoreFaultLaws: a networked store that is killed and disconnected under load
semel.testing.proxy         FaultProxy: a TCP proxy that injects network faults
semel.testing.source_laws   SourceLaws: the contract of a source
semel.testing.child_processes start_child: processes that end with the test run, even if it is killed

Races between processes, storms and kill runs carry the mark `long`. Register it (`markers = ["long: takes minutes"]`),
and deselect them with `-m "not long"` for a quick run.
"""
