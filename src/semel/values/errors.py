"""Everything Semel raises.

SemelError
├── ConfigError        the app is put together wrongly; says what to change
│   └── WrongNotification  a message that can never be sent as it is: another attempt would say the same
├── MalformedEvent     a body that is no event we can act on; says what is wrong and where
│   └── NoKey          an event without the identity its handler asks for
├── LedgerUnavailable  the store could not be read or written: nothing was decided, nothing was run
│   └── NotRecorded    the handler ran, and what it came to could not be written in time
├── LeaseLost          ctx.check(): the lease of this run has ended, and its effect must not happen any more
├── TransactionOver    a handler used ctx.tx after its transaction ended
└── VerifierUnavailable  nobody can tell now whether a delivery is genuine: have it sent again
"""

from __future__ import annotations


class SemelError(Exception):
    """The root of all errors that Semel raises on purpose."""


class ConfigError(SemelError):
    """The app is put together wrongly."""


class WrongNotification(ConfigError):
    """A message that can never be sent as it is. An event whose handler fails by it is not tried again."""


class MalformedEvent(SemelError, ValueError):
    """A body that is no event we can act on. Nothing was claimed for it."""


class NoKey(MalformedEvent):
    """An event that lacks the identity its handler asks for. A missing key is never an empty key."""


class LedgerUnavailable(SemelError):
    """The store could not be read or written, so nothing may be done: deliver again later."""


class NotRecorded(LedgerUnavailable):
    """The handler ran, and what it came to could not be written in time: deliver again later, it is decided then."""


class LeaseLost(SemelError):
    """The lease of a run has ended, so that another process may run the event now. Raised before an effect.

    A handler lets it pass: its run is then neither done nor failed, and counts as lost."""


class TransactionOver(SemelError):
    """`ctx.tx` was used after its transaction ended (timeout, lost lease, or the handler returned)."""


class VerifierUnavailable(SemelError):
    """Nobody can tell now whether a delivery is genuine, and its sender is not to blame: have it sent again.

    A refusal would be wrong here: SNS, for one, counts every 4xx as delivered and never sends the message again."""
