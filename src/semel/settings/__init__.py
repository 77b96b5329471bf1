"""`semel.toml`: its schema, its loading and validation, and the checks of `semel doctor`."""
