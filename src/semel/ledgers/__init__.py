"""Ledgers: one package for each store."""
