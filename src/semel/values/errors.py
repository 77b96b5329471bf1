"""Everything Semel raises.

SemelError
├── ConfigError        the configuration or the code is wrong; the text says what to change
│   └── WrongNotification  a message that can never be sent: another attempt would fail the same way
├── MalformedEvent     a body that is no valid event; the text says what is wrong and where
│   └── NoKey          an event without the identity that its handler needs
├── LedgerUnavailable  the store could not be read or written: nothing was decided, nothing was run
│   └── NotRecorded    the handler ran, and its outcome could not be recorded in time
├── LeaseLost          ctx.check(): the lease of this run has ended, and its effect must not happen any more
├── TransactionOver    a handler used ctx.tx after its transaction ended
└── VerifierUnavailable  verification is temporarily unavailable: the sender must retry
"""

from __future__ import annotations


class SemelError(Exception):
    """The root of all errors that Semel raises on purpose."""


class ConfigError(SemelError):
    """The configuration or the code is wrong."""


class WrongNotification(ConfigError):
    """A message that can never be sent. An event whose handler fails with it is not retried."""


class MalformedEvent(SemelError, ValueError):
    """A body that is no valid event. Nothing was claimed for it."""


class NoKey(MalformedEvent):
    """An event without the identity that its handler needs. A missing key is never an empty key."""


class LedgerUnavailable(SemelError):
    """The store could not be read or written, so nothing was run: deliver again later."""


class NotRecorded(LedgerUnavailable):
    """The handler ran, and its outcome could not be recorded in time. The redelivery decides."""


class LeaseLost(SemelError):
    """The lease of a run has ended, so that another process may run the event now. Raised before an effect.

    A handler lets it pass: its run is then neither done nor failed, and counts as lost."""


class TransactionOver(SemelError):
    """`ctx.tx` was used after its transaction ended (timeout, lost lease, or the handler returned)."""


class VerifierUnavailable(SemelError):
    """Signature verification is temporarily unavailable: the sender must retry.

    A refusal would be wrong: SNS counts every 4xx as delivered, and never sends the message again."""
