"""Where letters go besides the ledger that gave them up. Letterboxes that can also be read are ledgers themselves."""
