"""What happens to a verified delivery: through the flow, into the inbox, or around a ledger that is out of reach."""

from __future__ import annotations

from collections.abc import Callable

from semel.app import Message, Semel
from semel.core import unguarded
from semel.core.accepting import Acceptor
from semel.core.gate import Gate
from semel.ports import Inbox
from semel.service.store import served_inbox, served_ledger
from semel.service.trouble import StoreHealth, Trouble
from semel.values.errors import ConfigError, NotRecorded
from semel.values.log import log
from semel.values.outcome import Outcome

NOT_RECORDED_S = 5.0  # its lease is over by then, or the ledger is back


class Front:
    """One for an event loop. Its round trips to the store pass the gate, if there is one."""

    def __init__(
        self,
        app: Semel,
        *,
        gate: Gate | None = None,
        health: StoreHealth | None = None,
        accepted: Callable[[], None] = lambda: None,
        trace: Callable[[], str] = lambda: "",
        failed_open: Callable[[str], None] = lambda handler: None,
    ) -> None:
        ledger, telemetry = app.ledger, app.telemetry
        self._app, self._trace, self._failed_open = app, trace, failed_open
        self._health = health = health or StoreHealth(Trouble("deliveries_refused", "deliveries_resumed"))
        self._engine = app.new_engine(served_ledger(ledger, telemetry, health, gate))
        self._acceptor: Acceptor | None = None
        if isinstance(ledger, Inbox):
            inbox = served_inbox(ledger, telemetry, health, gate)
            self._acceptor = Acceptor(inbox, app.planner, accepted, telemetry)

    async def process(self, message: Message) -> Outcome:
        try:
            with self._health.as_unavailable():  # also of a transaction: what a handler raises does not come as far
                (outcome,) = await self._engine.process([message])
        except NotRecorded as error:  # it ran: a route that fails open must not run it once more
            return Outcome("busy", reason=str(error), after=NOT_RECORDED_S)
        return outcome

    async def accept(self, message: Message) -> Outcome:
        if self._acceptor is None:
            raise ConfigError(f"{self._app.ledger.traits.name} keeps no inbox: use mode 'inline', or another ledger")
        return await self._acceptor.accept(message, self._trace())

    async def without_ledger(self, message: Message) -> Outcome | None:
        plan = self._app.planner.plan(message)
        if isinstance(plan, Outcome) or not unguarded.may_run(plan):
            return None
        for handler in plan.handlers:
            self._failed_open(handler.name)
            log.warning("fail_open_run", handler=handler.name)
        return await unguarded.run(plan)
