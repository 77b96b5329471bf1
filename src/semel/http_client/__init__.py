"""The HTTP client of destinations and providers: one request, sent once, with a precise result.

Both share it, because the rules are the same: which addresses can be called, and what a missing response means.
"""
