"""The workers of `semel demo`, and what kills them."""
