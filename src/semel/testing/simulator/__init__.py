"""Message providers on a real socket, which answer wrongly on request.

    with SimulatorProcess() as simulator:                # a process of its own: it outlives relays that are killed
        simulator.lie("accept then drop", "twilio", times=3)
        …
        simulator.phone()                                # the messages that customers got
        simulator.callbacks("twilio", "twice", url)      # once, twice, late, out of order, never

Each provider has one file with its paths, credentials, answers and errors: its dialect. `callbacks` signs and sends
status callbacks. `state` chooses for all providers whether a message reaches the phone and which answer the sender
gets. `smtp` is a mail server with the same lies.
"""

from semel.testing.simulator.callbacks import MODES, SentCallback
from semel.testing.simulator.process import SimulatorProcess
from semel.testing.simulator.state import LIES, ReceivedMessage, SendRequest

__all__ = ["LIES", "MODES", "ReceivedMessage", "SendRequest", "SentCallback", "SimulatorProcess"]
