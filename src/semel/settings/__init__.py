"""`semel.toml`: what may stand in it, how it is read, and what doctor thinks of it."""
