"""What the commands for notifications share: finding an outbox and what is in it, adding, deciding, showing."""
