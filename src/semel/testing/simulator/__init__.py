"""Providers of messages on a real socket, which can be told to lie.

    with SimulatorProcess() as simulator:                # a process of its own: it outlives relays that are killed
        simulator.lie("accept then drop", "twilio", times=3)
        …
        simulator.phone()                                # what customers have got
        simulator.callbacks("twilio", "twice", url)      # once, twice, late, out of order, never

Each provider's paths, credentials, answers and errors are one file in `dialects`; how they sign their callbacks is in
`signing`. What a request did is decided in one place, `lies`, for all of them: whether the message goes to the phone,
and what the sender hears. `mailing` is a mail server with the same lies.
"""

from semel.testing.simulator.calling import MODES, Called
from semel.testing.simulator.lies import LIES
from semel.testing.simulator.process import SimulatorProcess
from semel.testing.simulator.state import Asked, Got

__all__ = ["LIES", "MODES", "Asked", "Called", "Got", "SimulatorProcess"]
