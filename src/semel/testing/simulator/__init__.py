"""Providers of messages on a real socket, which can be told to lie.

    with SimulatorProcess(tmp_path) as simulator:        # a process of its own: it outlives relays that are killed
        simulator.lie("accept then drop", "twilio", times=3)
        …
        simulator.phone()                                # what customers have got

Each provider's paths, credentials, answers and errors are one file in `dialects`. What a request did is decided in one
place, `lies`, for all of them: whether the message goes to the phone, and what the sender hears.
"""

from semel.testing.simulator.lies import LIES
from semel.testing.simulator.process import SimulatorProcess
from semel.testing.simulator.state import Got

__all__ = ["LIES", "Got", "SimulatorProcess"]
