"""What a storm came to, for people and for programs."""

from __future__ import annotations

import json
from array import array

import msgspec
from msgspec import Struct
from rich.table import Table
from rich.text import Text

from semel.cli.load.storm_check import Checked
from semel.cli.load.storming import Tally
from semel.cli.operating.words import plain
from semel.values.errors import ConfigError


class Report(Struct, frozen=True):
    """One storm."""

    url: str
    shape: str
    seed: int
    sent: int  # deliveries
    unique: int  # different events
    redeliveries: int
    producer_retries: int
    requests: int
    retries: int
    answers: dict[str, int]  # by status code
    statuses: dict[str, int]  # by `status` in the answers with 2xx
    no_answer: dict[str, int]  # requests, by what went wrong
    refused: int  # deliveries
    gave_up: int  # deliveries
    not_taken: int  # events of which no delivery was answered with 2xx
    trouble: str
    seconds: float
    rate: float  # answers a second
    p50_ms: float
    p99_ms: float
    max_ms: float
    client_cpu_us: float  # for each request, with the making of its event
    check: Checked | None
    check_failed: str = ""  # why the sink could not be asked any more

    @property
    def holds(self) -> bool:
        taken = not (self.refused or self.gave_up or self.not_taken)
        return taken and not self.check_failed and (self.check is None or self.check.holds)


def report(
    url: str, shape: str, seed: int, tally: Tally, seconds: float, cpu_s: float, check: Checked | ConfigError | None
) -> Report:
    waits = array("f", sorted(tally.waits_s))
    return Report(
        url=url,
        shape=shape,
        seed=seed,
        sent=tally.ended,
        unique=len(tally.taken),
        redeliveries=tally.copies["redelivery"],
        producer_retries=tally.copies["producer"],
        requests=tally.requests,
        retries=tally.retries,
        answers={str(code): tally.codes[code] for code in sorted(tally.codes)},
        statuses={plain(word): count for word, count in tally.words.most_common()},
        no_answer=dict(tally.failures.most_common()),
        refused=tally.refused,
        gave_up=tally.gave_up,
        not_taken=tally.taken.count(0),
        trouble=plain(tally.trouble),
        seconds=round(seconds, 3),
        rate=round(len(waits) / seconds, 1) if seconds else 0.0,
        p50_ms=_at(waits, 0.50),
        p99_ms=_at(waits, 0.99),
        max_ms=_at(waits, 1.0),
        client_cpu_us=round(cpu_s / max(tally.requests, 1) * 1e6, 1),
        check=check if isinstance(check, Checked) else None,
        check_failed=str(check) if isinstance(check, ConfigError) else "",
    )


def _at(waits_s: array[float], share: float) -> float:
    """The wait, in ms, that this share of all answers did not exceed."""
    return round(waits_s[min(len(waits_s) - 1, int(len(waits_s) * share))] * 1000, 3) if waits_s else 0.0


def as_json(report: Report) -> str:
    return json.dumps({**msgspec.to_builtins(report), "holds": report.holds}, indent=2)


def as_table(report: Report) -> Table:
    table = Table(title="The storm", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for what, number, note in _rows(report):
        table.add_row(Text(what), number, Text(note))
    return table


def _rows(report: Report) -> list[tuple[str, str, str]]:
    copies = f"{report.redeliveries:,} redeliveries, {report.producer_retries:,} producer's retries"
    rows = [
        ("deliveries sent", f"{report.sent:,}", f"shape {report.shape}, --seed {report.seed}"),
        ("different events", f"{report.unique:,}", ""),
        ("duplicates", f"{report.sent - report.unique:,}", copies),
    ]
    rows += [(f"answered {code}", f"{count:,}", "") for code, count in report.answers.items()]
    rows += [(f"    {word}", f"{count:,}", "") for word, count in report.statuses.items()]
    rows += [(f"no answer: {failure}", f"{count:,}", "") for failure, count in report.no_answer.items()]
    rows += [
        ("retries", f"{report.retries:,}", ""),
        ("refused", f"{report.refused:,}", report.trouble if report.refused else ""),
        ("given up", f"{report.gave_up:,}", report.trouble if report.gave_up and not report.refused else ""),
        ("answers a second", f"{report.rate:,.0f}", f"{report.seconds:.1f} s"),
        ("p50", f"{report.p50_ms:,.1f} ms", ""),
        ("p99", f"{report.p99_ms:,.1f} ms", f"the longest {report.max_ms:,.1f} ms"),
    ]
    if report.check is not None:
        rows += _checked(report.check)
    return rows


def _checked(check: Checked) -> list[tuple[str, str, str]]:
    rows = [
        (
            "effects at the sink",
            f"{check.effects:,}",
            f"of {check.distinct:,} events of this storm, after {check.waited_s:.1f} s more",
        ),
        ("    repeats", f"{check.repeats:,}", "of a key, answered without a second effect"),
        ("    lost", f"{check.lost:,}", "taken by the service, never arrived"),
        ("    doubled", f"{check.doubled:,}", "more than one effect"),
    ]
    if check.unexpected:
        held = f"; the sink knew {check.before:,} events before" if check.before else ""
        rows.append(("    of others", f"{check.unexpected:,}", f"events that this storm did not send{held}"))
    if check.conflicts:
        rows.append(("    conflicts", f"{check.conflicts:,}", "a key came with another event"))
    return rows


def conclusion(report: Report) -> str:
    """The last lines: what is wrong, and which events."""
    problems = []
    if report.not_taken:
        problems.append(f"{report.not_taken:,} events were never taken")
    if report.refused or report.gave_up:
        problems.append(f"{report.refused:,} deliveries refused, {report.gave_up:,} given up")
    check = report.check
    if check is not None and (check.lost or check.doubled):
        problems.append(f"{check.lost:,} effects lost, {check.doubled:,} doubled")
    if check is not None and check.conflicts:
        problems.append(f"{check.conflicts:,} times a key came with another event")
    if report.check_failed:
        problems.append(f"not checked: {report.check_failed}")
    if problems:
        return "\n".join([f"NOT once: {'; '.join(problems)}.", *(_which(check) if check else [])])
    if check is None:
        return f"{report.unique:,} events, every delivery was taken. What came of them was not checked (--check)."
    return f"{report.unique:,} events, {report.sent:,} deliveries: each had its effect once."


def _which(check: Checked) -> list[str]:
    if check.lost and not check.distinct:
        return [
            "Nothing of this storm reached the sink: see that a route forwards to it, and that the service can reach it"
            " (semel doctor)."
        ]
    return [*_named("lost", check.lost_ids), *_named("doubled", check.doubled_ids)]


def _named(what: str, ids: list[str]) -> list[str]:
    return [f"  {what}: {name}" for name in ids]
