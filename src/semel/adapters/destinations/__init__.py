"""Where routes without code send their events: `Destination` is a place, `Forward` the handler of one route to it.

`resolving` decides which addresses may be called, `answers` what an answer means for the event, `reaching` looks from
outside whether a destination can be reached.
"""

from semel.adapters.destinations.destination import Destination
from semel.adapters.destinations.forwarding import Forward
from semel.adapters.destinations.reaching import reach

__all__ = ["Destination", "Forward", "reach"]
