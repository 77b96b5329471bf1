"""HTTP, as everything that calls others does it: one request, tried once, and what is known afterwards.

Destinations and providers share it: what may be called, and what an answer that did not come means, is one question.
"""
