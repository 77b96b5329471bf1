"""What the commands for operators share: finding the ledger, looking into it, deciding, showing."""
