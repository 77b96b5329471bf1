"""Everything that touches the outside: ledgers, sources, providers, envelopes. Adapters never import each other."""
