"""Frozen values: what flows through Semel. They carry no machinery and import nothing of ours above them."""
