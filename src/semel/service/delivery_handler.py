"""Processes verified deliveries: through the engine, into the inbox, or without a ledger that is unavailable."""

from __future__ import annotations

from collections.abc import Callable

from semel.app import IncomingMessage, Semel
from semel.core.inbox_flow import Acceptor
from semel.core.ledger_breaker import LedgerBreaker
from semel.ports import Inbox
from semel.service.served_ledger import ServedInbox, ServedLedger, StoreHealth
from semel.values.errors import ConfigError, NotRecorded, SemelError
from semel.values.log import IncidentLog, log
from semel.values.outcome import Outcome

NOT_RECORDED_S = 5.0  # by then its lease has expired, or the ledger is back


class DeliveryHandler:
    """Processes the deliveries of one event loop. Its ledger calls pass the breaker, if there is one."""

    def __init__(
        self,
        app: Semel,
        *,
        breaker: LedgerBreaker | None = None,
        health: StoreHealth | None = None,
        accepted: Callable[[], None] = lambda: None,
        trace: Callable[[], str] = lambda: "",
        failed_open: Callable[[str], None] = lambda handler: None,
    ) -> None:
        ledger, telemetry = app.ledger, app.telemetry
        self._app, self._trace, self._failed_open = app, trace, failed_open
        self._health = health = health or StoreHealth(IncidentLog("deliveries_refused", "deliveries_resumed"))
        self._engine = app.new_engine(ServedLedger(ledger, telemetry, health, breaker))
        self._acceptor: Acceptor | None = None
        if isinstance(ledger, Inbox):
            inbox = ServedInbox(ledger, telemetry, health, breaker)
            self._acceptor = Acceptor(inbox, app.planner, accepted, telemetry)

    async def process(self, message: IncomingMessage) -> Outcome:
        """Run the handlers. Raises LedgerUnavailable."""
        try:
            (outcome,) = await self._engine.process([message])
        except NotRecorded as error:  # the handler ran: a route that fails open must not run it again
            return Outcome("busy", reason=str(error), after=NOT_RECORDED_S)
        except SemelError as error:  # a transaction was refused; a handler's exceptions end inside the engine
            self._health.raise_unavailable(error)
            raise
        return outcome

    async def accept(self, message: IncomingMessage) -> Outcome:
        """Store the event in the inbox. Raises LedgerUnavailable."""
        if self._acceptor is None:
            raise ConfigError(
                f"{self._app.ledger.traits.name} has no inbox: set mode = 'inline', or use another ledger"
            )
        return await self._acceptor.accept(message, self._trace())

    async def without_ledger(self, message: IncomingMessage) -> Outcome | None:
        """Run the handlers without the ledger. None: not every route of the event fails open."""
        plan = self._app.planner.plan(message)
        if isinstance(plan, Outcome) or not plan.fails_open:
            return None
        for handler in plan.handlers:
            self._failed_open(handler.name)
            log.warning("fail_open_run", handler=handler.name)
        return await self._engine.run_without_ledger(plan)
