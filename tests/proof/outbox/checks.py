"""What has to be true at the end of a storm, each as a function that fails with what it has found."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from tests.proof.outbox.account import Account, Life, was_poison
from tests.proof.outbox.parts import CONCURRENCY
from tests.proof.outbox.rates import keeps_its_rate

from semel.values.delivery_state import LIVE, PRESUMED_SENT, RESENT_UNKNOWN

IDEMPOTENT = ("telnyx",)  # its key outlives the storm
DECIDED = ("twilio", "telnyx", "sendgrid", "hook")  # parts in which every doubt has an exit
KILLS_MIN = 3  # that interrupted a crossing; with fewer a run has shown nothing


def check(account: Account) -> None:
    """First what is wrong, then whether enough was tried."""
    for one in (
        nobody_got_it_twice,
        a_key_that_is_honoured_is_one_message,
        every_doubt_has_a_cause,
        every_cause_is_a_doubt,
        what_is_called_sent_was_sent,
        what_is_called_failed_was_not,
        nothing_waits_for_ever,
        only_what_nobody_can_tell_is_held,
        chains_are_in_order,
        a_guard_lets_one_through,
        keeps_its_rate,
        providers_are_not_crowded,
        enough_was_tried,
    ):
        one(account)


def none(lives: Iterable[Life], what: str, account: Account) -> None:
    found = list(lives)
    assert not found, f"{len(found)} {what}: {[told(life) for life in found[:4]]}; {summary(account)}"


def told(life: Life) -> str:
    rows = [(row.token, row.outcome, row.evidence[:60]) for row in life.rows]
    deeds = [(line.who[-4:], line.deed, line.token, line.word, round(line.at % 1000, 2)) for line in life.lines]
    asked = [(one.provider, one.lie, round(one.at % 1000, 2)) for one in life.asked]
    return (
        f"\n{life.said.key} is {life.state} ({life.reason}), got {len(life.got)}, asked {asked}, rows {rows}, {deeds}"
    )


def nobody_got_it_twice(account: Account) -> None:
    """Unless somebody chose that; then it is counted."""
    none((one for one in account.lives if len(one.got) > 1 + one.possible), "arrived twice", account)
    none((one for one in account.lives if one.possible and one.part.policy != "resend"), "may be doubled", account)


def a_key_that_is_honoured_is_one_message(account: Account) -> None:
    for life in account.of(*IDEMPOTENT):
        if life.state in ("failed", "suppressed"):
            continue  # refused for good, or by its guard: `what_is_called_failed_was_not`
        assert len(life.got) == 1, f"not exactly one: {told(life)}"
        assert life.is_sent or life.is_poison, f"it arrived, and is not called so: {told(life)}"


def every_doubt_has_a_cause(account: Account) -> None:
    none((one for one in account.lives if one.heard > one.lied + one.slow), "doubts without a cause", account)
    none((one for one in account.lives if one.vanished > len(one.open)), "relays vanished that did not", account)


def every_cause_is_a_doubt(account: Account) -> None:
    none((one for one in account.lives if one.lied > one.heard + len(one.open)), "lies that nobody doubted", account)
    silent = (one for one in account.lives if len(one.certainly_open) > one.vanished and not one.was_witnessed)
    none(silent, "with crossings of relays that left, that nobody doubted", account)


def what_is_called_sent_was_sent(account: Account) -> None:
    sent = (one for one in account.lives if one.is_sent and one.reason != PRESUMED_SENT)
    none((one for one in sent if not one.got), "called sent, and nobody got them", account)


def what_is_called_failed_was_not(account: Account) -> None:
    over = ("failed", "suppressed", "expired", "cancelled")
    none(
        (one for one in account.lives if one.state in over and one.got), "called unsent, and somebody got them", account
    )
    failed = (one for one in account.lives if one.state == "failed" and not _was_refused(one))
    none(failed, "failed without a refusal", account)


def _was_refused(life: Life) -> bool:
    if life.is_poison:
        return was_poison(life)
    return any(one.lie == "400" for one in life.asked)


def nothing_waits_for_ever(account: Account) -> None:
    none((one for one in account.lives if one.state in ("pending", "sending")), "still waiting", account)
    assert account.left == 0, f"{account.left} would be taken again; {summary(account)}"


def only_what_nobody_can_tell_is_held(account: Account) -> None:
    """Exactly those: what a look-up, a key, a callback or a policy could have decided is decided."""
    for life in account.lives:
        if life.state not in LIVE or (life.is_poison and was_poison(life)):
            continue
        assert life.was_uncertain, f"held without a doubt: {told(life)}"
        if life.possible and (life.last_crossing == "refused" or life.reason.startswith(RESENT_UNKNOWN)):
            continue  # sent again by policy, once: what is refused or unknown then is for a person
        assert life.part.name not in DECIDED, f"there was a way to know: {told(life)}"
        if life.part.calls != "never":
            assert not life.got, f"a callback has told: {told(life)}"
    none((one for one in account.of("smtp") if one.was_uncertain and one.state != "uncertain"), "decided", account)


def chains_are_in_order(account: Account) -> None:
    chains: defaultdict[tuple[str, str], list[Life]] = defaultdict(list)
    for life in account.lives:
        if life.said.order:
            chains[(life.said.tenant, life.said.order)].append(life)
    assert chains
    for lives in chains.values():
        arrived = [life.got[0].at for life in lives if life.got]
        assert arrived == sorted(arrived), f"out of order: {[told(life) for life in lives]}"


def a_guard_lets_one_through(account: Account) -> None:
    groups: defaultdict[bytes, list[Life]] = defaultdict(list)
    for life in account.lives:
        if life.said.guarded_by is not None:
            groups[life.said.guarded_by].append(life)
    assert groups
    for lives in groups.values():
        assert sum(len(life.got) for life in lives) <= 1, f"a guard let two through: {[told(life) for life in lives]}"
        passed = [life for life in lives if life.state != "suppressed"]
        assert passed, f"all are suppressed, by nobody: {[told(life) for life in lives]}"
        may_be_sent = [life for life in passed if life.state != "failed"]
        assert len(may_be_sent) <= 1, f"a guard let two through: {[told(life) for life in lives]}"


def providers_are_not_crowded(account: Account) -> None:
    assert max(account.busiest.values()) <= CONCURRENCY, f"requests at once: {account.busiest}"


def enough_was_tried(account: Account) -> None:
    missing = {name: f"{account.told.get(name, 0)}/{times}" for name, times in account.planned.items()}
    missing = {name: told for name, told in missing.items() if len(set(told.split("/"))) > 1}
    assert not missing, f"inconclusive: lies that were not told: {missing}; {summary(account)}"
    assert landed(account) >= KILLS_MIN, f"inconclusive: too few kills interrupted a crossing; {summary(account)}"
    unheard = [one for one in account.called if one.status != 200]
    assert not unheard, f"{len(unheard)} callbacks were not answered: {unheard[:3]}"
    seen = exits(account)
    wanted = {"look-up found it", "look-up proved it absent", "the same key again", "callback", "presumed", "held"}
    assert wanted | {"sent again by policy"} <= set(seen), (
        f"inconclusive: of the exits only {seen} were taken; {summary(account)}"
    )
    assert any(
        row.provider == "resend" and row.outcome == "accepted" for one in account.of("brevo") for row in one.rows
    )


def landed(account: Account) -> int:
    """Kills after which a crossing was left open."""
    return len({line.who for one in account.lives for line in one.lines if line.token in one.killed_open})


def exits(account: Account) -> Counter[str]:
    """How doubts ended."""
    return Counter(_exit(life) for life in account.lives if life.was_uncertain)


def _exit(life: Life) -> str:
    outcomes = [row.outcome for row in life.rows]
    exits: list[tuple[str, Callable[[], bool]]] = [
        ("held", lambda: life.state == "uncertain"),
        ("presumed", lambda: life.reason == PRESUMED_SENT),
        ("sent again by policy", lambda: life.possible > 0),
        ("look-up found it", lambda: any(row.evidence == "look-up" and row.outcome == "accepted" for row in life.rows)),
        ("look-up proved it absent", lambda: "absent" in outcomes),
        (
            "callback",
            lambda: life.was_witnessed and not any(row.is_crossing and row.outcome == "accepted" for row in life.rows),
        ),
        ("failed", lambda: life.state == "failed"),
        ("the same key again", lambda: True),
    ]
    return next(name for name, applies in exits if applies())


def summary(account: Account) -> str:
    """The table."""
    states = Counter(life.state for life in account.lives)
    lies: Counter[str] = Counter()
    for name, times in account.told.items():
        lies[name.partition(": ")[2]] += times
    uncertain = sum(life.was_uncertain for life in account.lives)
    heard, vanished = sum(life.heard for life in account.lives), sum(life.vanished for life in account.lives)
    lied, open = sum(life.lied for life in account.lives), sum(len(life.open) for life in account.lives)
    killed = sum(len(life.killed_open) for life in account.lives)
    closed = [life for life in account.lives if not life.open]
    rows = [
        ("sends", f"{len(account.lives):,} in {account.seconds:.1f} s; {_counts(states)}"),
        ("requests", f"{sum(len(life.asked) for life in account.lives):,}"),
        ("lies told", f"{sum(lies.values()):,}: {_counts(lies)}"),
        ("that leave a doubt", f"{lied:,}: {heard:,} heard, the rest by relays that were killed or overtaken"),
        ("kills", f"{len(account.killed)}, {landed(account)} landed"),
        ("open crossings", f"{open:,}: {killed:,} by kills, the rest was told by callbacks first; {vanished:,} found"),
        ("slow answers", f"{sum(life.slow for life in account.lives)}"),
        ("without open ones", f"{sum(map(_causes, closed)):,} causes, {sum(one.heard for one in closed):,} doubts"),
        ("ever uncertain", f"{uncertain:,} notifications, {heard + vanished:,} doubts"),
        ("their exits", _counts(exits(account))),
        (
            "possible duplicates",
            f"{sum(life.possible for life in account.lives)}, "
            f"{sum(max(0, len(life.got) - 1) for life in account.lives)} arrived twice",
        ),
        ("poison", f"{sum(life.is_poison for life in account.lives)}"),
        ("callbacks", f"{len(account.called):,}"),
        ("most at once", _counts(Counter(account.busiest))),
    ]
    return "\n" + "\n".join(f"  {name:20} {text}" for name, text in rows)


def _causes(life: Life) -> int:
    return life.lied + life.slow


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
