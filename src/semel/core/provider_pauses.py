"""Providers that refuse their own settings: a wrong password, a revoked key, an account without rights.

Every message would be refused for the same reason, so none of them fails for it and none is taken from the outbox. One
message at a time probes the provider, at growing intervals. The first answer that shows that the settings are accepted
ends the pause. A process that starts with other settings knows of no pause, and sends at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from semel.values.log import log
from semel.values.outbox import Lane
from semel.values.sending import Accepted, Answer, Refused

PROBE_FIRST_S = 1.0  # a token that was revoked is renewed by the next request
PROBE_MAX_S = 300.0  # a person who corrects the account sees messages leave soon after


class _Pause(Struct):
    probes: int  # refused in a row
    until: float  # by the relay's clock


class ProviderPauses:
    """The pauses of one relay."""

    def __init__(self, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._clock = clock
        self._random = random
        self._pauses: dict[str, _Pause] = {}

    def answered(self, name: str, answer: Answer, reason: str) -> None:
        """Begin, prolong or end a pause. `reason` is the answer's, without customer data."""
        match answer:
            case Refused(configuration=True):
                self._refused(name, reason)
            case Accepted() | Refused(final=True) if self._pauses.pop(name, None) is not None:
                log.info("provider_resumed", provider=name)

    def _refused(self, name: str, reason: str) -> None:
        now = self._clock()
        pause = self._pauses.setdefault(name, _Pause(0, now))
        if now < pause.until:
            return  # it was under way when the pause began
        pause.probes += 1
        bound_s = min(PROBE_MAX_S, PROBE_FIRST_S * 2.0 ** min(pause.probes - 1, 30))
        wait_s = bound_s * (0.5 + 0.5 * self._random())
        pause.until = now + wait_s
        log.error(
            "provider_paused", provider=name, reason=reason, probes_refused=pause.probes, next_probe_s=round(wait_s, 1)
        )

    def routes(self, routes: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
        """The providers of each channel without those that are paused, where another one is left."""
        if not self._pauses:
            return routes
        open_routes = {
            channel: [name for name in names if name not in self._pauses] for channel, names in routes.items()
        }
        return {channel: open_routes[channel] or names for channel, names in routes.items()}

    def lanes(self, lanes: Mapping[str, Lane], in_hand: Callable[[str], int]) -> Mapping[str, Lane]:
        """What may be taken: nothing for a paused provider, or one probe when its pause is over."""
        if not self._pauses:
            return lanes
        allowed: dict[str, Lane] = {}
        for name, lane in lanes.items():
            pause = self._pauses.get(lane.provider)
            if pause is None:
                allowed[name] = lane
            elif self._clock() >= pause.until and not in_hand(lane.provider):
                allowed[name] = replace(lane, room=1)
        return allowed
