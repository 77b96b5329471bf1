"""The service: everything that `semel run` serves over HTTP, and its background work."""
