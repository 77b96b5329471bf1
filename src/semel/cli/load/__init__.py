"""The storm and its sink: traffic over HTTP, and the count of what came of it."""
