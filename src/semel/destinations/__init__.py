"""Destinations of routes without code: `Destination` is an HTTP endpoint, `Forward` the handler of one route to it.

`outcomes` maps a response to the outcome of the event. `reach` checks for `semel doctor` that a destination is
reachable.
"""

from semel.destinations.destination import Destination, Forward, reach

__all__ = ["Destination", "Forward", "reach"]
