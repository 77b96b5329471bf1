"""The service: what `semel run` serves over HTTP, and what keeps it alive."""
