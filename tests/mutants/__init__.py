"""Planted bugs: each is a small change of the source, and names the test that must notice it."""
