"""The circuit breaker, against a model and in single steps."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.service.destinations.servers import Clock

from semel.core.breaker import JITTER, Breaker

OPEN_S, OPEN_MAX_S, PROBE_S = 10.0, 60.0, 30.0


def breaker(clock: Clock, failures: int = 3, jitter: float = 0.0) -> Breaker:
    return Breaker(failures, OPEN_S, clock=clock, random=lambda: jitter, open_max_s=OPEN_MAX_S, probe_s=PROBE_S)


def fail(one: Breaker, times: int) -> None:
    for _ in range(times):
        one.failed()


def test_it_opens_after_so_many_failures_in_a_row_and_not_before() -> None:
    one = breaker(Clock())
    fail(one, 2)
    one.succeeded()
    fail(one, 2)
    assert (one.state, one.admit(), one.ready_in_s()) == ("closed", True, 0)
    one.failed()
    assert (one.state, one.admit(), one.ready_in_s()) == ("open", False, OPEN_S)


def test_half_open_lets_exactly_one_probe_through() -> None:
    clock = Clock()
    one = breaker(clock)
    fail(one, 3)
    clock.now += OPEN_S
    assert (one.state, one.ready_in_s()) == ("half-open", 0)
    assert [one.admit() for _ in range(5)] == [True, False, False, False, False]
    assert 0 < one.ready_in_s() <= 1  # soon: a probe may be quick
    one.succeeded()
    assert (one.state, [one.admit() for _ in range(5)]) == ("closed", [True] * 5)


def test_each_failed_probe_doubles_the_time_up_to_the_maximum_and_success_forgets_it() -> None:
    clock = Clock()
    one = breaker(clock)
    fail(one, 3)
    times = []
    for _ in range(6):
        times.append(one.ready_in_s())
        clock.now += one.ready_in_s()
        assert one.admit()
        one.failed()
    assert times == [10, 20, 40, 60, 60, 60]
    clock.now += one.ready_in_s()
    assert one.admit()
    one.succeeded()
    fail(one, 3)
    assert one.ready_in_s() == OPEN_S


def test_jitter_makes_it_longer_and_never_shorter() -> None:
    one = breaker(Clock(), jitter=1.0)
    fail(one, 3)
    assert one.ready_in_s() == OPEN_S * (1 + JITTER)


def test_late_results_from_before_the_opening_change_nothing() -> None:
    clock = Clock()
    one = breaker(clock)
    fail(one, 3)
    clock.now += OPEN_S - 1
    one.failed()
    one.succeeded()
    assert (one.state, one.ready_in_s()) == ("open", 1)
    clock.now += 1
    one.failed()
    one.succeeded()
    assert (one.state, one.admit()) == ("half-open", True)


def test_a_probe_that_vanished_does_not_block_it_for_ever() -> None:
    clock = Clock()
    one = breaker(clock)
    fail(one, 3)
    clock.now += OPEN_S
    assert one.admit()
    clock.now += PROBE_S - 0.1
    assert not one.admit()
    clock.now += PROBE_S
    assert one.ready_in_s() == 0
    assert [one.admit(), one.admit()] == [True, False]
    one.succeeded()
    assert one.state == "closed"


@given(st.integers(1, 10), st.floats(0, 1), st.integers(0, 2_000))
def test_however_often_it_trips_it_is_ready_again_within_its_maximum(failures: int, jitter: float, trips: int) -> None:
    clock = Clock()
    one = breaker(clock, failures, jitter)
    fail(one, failures)
    for _ in range(trips):
        clock.now += OPEN_MAX_S * (1 + JITTER)
        assert one.admit()
        one.failed()
    assert OPEN_S <= one.ready_in_s() <= OPEN_MAX_S * (1 + JITTER)


class Calls(RuleBasedStateMachine):
    """Calls come, succeed, fail and vanish in any order; the model is a list of what was admitted when."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.under_way: list[float] = []
        self.probes: list[float] = []  # admitted while it was half-open, and neither told of nor lapsed
        self.failures_in_a_row = 0

    @initialize(failures=st.integers(1, 4), jitter=st.floats(0, 1))
    def begin(self, failures: int, jitter: float) -> None:
        self.failures = failures
        self.one = breaker(self.clock, failures, jitter)

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, OPEN_S, PROBE_S, OPEN_MAX_S * 2]))
    def time_goes_by(self, seconds: float) -> None:
        self.clock.now += seconds
        self.probes = [at for at in self.probes if at + PROBE_S > self.clock.now]

    @rule()
    def a_call_comes(self) -> None:
        state, ready = self.one.state, self.one.ready_in_s()
        admitted = self.one.admit()
        assert admitted == (ready == 0)
        assert admitted or state != "closed"
        assert not (admitted and state == "open")
        if admitted:
            self.under_way.append(self.clock.now)
        if admitted and state == "half-open":
            self.probes.append(self.clock.now)
        assert len(self.probes) <= 1

    @rule()
    def an_outage_begins(self) -> None:
        for _ in range(self.failures):
            self.a_call_comes()
            if self.under_way:
                self.a_call_fails()

    @rule()
    def a_call_succeeds(self) -> None:
        assume(self.under_way)
        self.under_way.pop()
        probing = bool(self.probes)
        self.one.succeeded()
        if probing or self.one.state == "closed":
            assert self.one.state == "closed"
            self.probes, self.failures_in_a_row = [], 0

    @rule()
    def a_call_fails(self) -> None:
        assume(self.under_way)
        self.under_way.pop()
        before, probing = self.one.state, bool(self.probes)
        self.one.failed()
        if before == "closed":
            self.failures_in_a_row += 1
            assert (self.one.state == "open") == (self.failures_in_a_row >= self.failures)
        elif probing:
            assert self.one.state == "open"
            self.probes = []
        if self.one.state != "closed":
            self.failures_in_a_row = 0

    @rule()
    def a_caller_vanishes(self) -> None:
        assume(self.under_way)
        self.under_way.pop()

    @invariant()
    def it_says_when(self) -> None:
        assert 0 <= self.one.ready_in_s() <= OPEN_MAX_S * (1 + JITTER)

    def teardown(self) -> None:
        """Whatever happened: leave it alone long enough, and a call that succeeds closes it."""
        if hasattr(self, "one"):
            self.clock.now += max(OPEN_MAX_S * (1 + JITTER), PROBE_S)
            assert self.one.admit()
            self.one.succeeded()
            assert self.one.state == "closed"


TestCalls = Calls.TestCase
TestCalls.settings = settings(max_examples=60, stateful_step_count=30)
