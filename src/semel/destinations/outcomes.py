"""Maps the response of a destination to the outcome of the event. `outcome_of` is pure, with one arm per line:

    answer                            by default              with effect="park" (no repetition)
    2xx                               done                    done
    429                               not now                 not now
    nothing was sent                  retry                   retry
    401, 425                          retry                   retry
    408, 409, 5xx, no answer          retry                   unknown
    3xx, other 4xx                    dead                    dead

A 503 is not "not now", also with Retry-After: gateways send it for requests that went through. So it counts as an
attempt, and the lifetime of an Idempotency-Key runs. A 401 is a wrong credential and no property of the event: the
breaker opens, and the events wait for an operator instead of filling the dead letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from semel.http_client.client import Answer, Answered, Unanswered, Unsent
from semel.values.errors import MalformedEvent
from semel.values.outcome import NotNow, Reject, Retry
from semel.values.strict_json import parse

RESULT_BODY_MAX_BYTES = 4 * 1024  # a stored result answers duplicates: an id, not a document
EXCERPT_MAX_CHARS = 200  # of an error's body: enough for one sentence
SECRET_MIN_CHARS = 4  # shorter ones occur in any text by chance
WORD_MIN_CHARS = 8  # so do the shorter words of a longer secret


class OutcomeUnknown(Exception):
    """The destination may have processed the event, and the request must not be repeated."""

    reason_class = ""
    http_status: int | None = None


E = TypeVar("E", bound=Retry | Reject | NotNow | OutcomeUnknown)


def alive(answer: Answer) -> bool:
    """True if the response counts as a success for the breaker."""
    return isinstance(answer, Answered) and answer.status < 500 and answer.status != 401


def failure_class(answer: Answer) -> str:
    """Class of a failure for operators, without text from the destination."""
    match answer:
        case Unsent():
            return "not sent"
        case Answered(status=status):
            return f"HTTP {status}"
    return "no answer"


def outcome_of(answer: Answer, who: str, park: bool, secrets: Sequence[str]) -> dict[str, Any]:
    """Return the result of a forward, or raise Retry, Reject, NotNow or OutcomeUnknown.

    `who` is the shown name of the destination. If the response repeats one of the `secrets`, its text is left out.
    """
    match answer:
        case Unsent(why=why):
            raise _with_class(Retry(None, f"{who}: {why}"), "not_sent")
        case Unanswered(why=why):
            raise _with_class(_unknown_or_retry(f"{who}: {why}", None, park), "no_answer")
        case Answered(status=status) if 200 <= status < 300:
            return _result(answer, secrets)
        case Answered(status=429):
            raise _with_status(answer, NotNow(answer.after_s or 0.0, f"{who}: 429, it asks for fewer requests"))
        case Answered(status=status) if 300 <= status < 400:
            raise _with_status(
                answer, Reject(f"{who}: {status}, redirects are not followed{_to_host(answer.location)}")
            )
    reason = f"{who}: {answer.status}{_excerpt(answer.body, secrets)}"
    if answer.status in (401, 425):
        raise _with_status(answer, Retry(answer.after_s, reason))
    if answer.status in (408, 409) or not 400 <= answer.status < 500:
        raise _with_status(answer, _unknown_or_retry(reason, answer.after_s, park))
    raise _with_status(answer, Reject(reason))


def _with_status(answer: Answered, error: E) -> E:
    return _with_class(error, "http_status", answer.status)


def _with_class(error: E, reason_class: str, http_status: int | None = None) -> E:
    """Attach the class of the reason for the log: the reason itself can quote the response."""
    error.reason_class, error.http_status = reason_class, http_status
    return error


def _unknown_or_retry(reason: str, after_s: float | None, park: bool) -> Retry | OutcomeUnknown:
    return OutcomeUnknown(reason) if park else Retry(after_s, reason)


def _result(answer: Answered, secrets: Sequence[str]) -> dict[str, Any]:
    body = answer.body
    if not body or len(body) > RESULT_BODY_MAX_BYTES or _repeats_secret(body.decode("utf-8", "replace"), secrets):
        return {"status": answer.status}
    try:
        return {"status": answer.status, "body": parse(body)}
    except MalformedEvent:
        return {"status": answer.status}


def _excerpt(body: bytes | None, secrets: Sequence[str]) -> str:
    """Start of an error's body, as one printable line."""
    text = (body or b"").decode("utf-8", "replace")
    if _repeats_secret(text, secrets):
        return ""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    if len(line) > EXCERPT_MAX_CHARS:
        line = line[: EXCERPT_MAX_CHARS - 1] + "…"
    return f": {line}" if line else ""


def _repeats_secret(text: str, secrets: Sequence[str]) -> bool:
    """True if a response repeats a sent header or a word of it, for example the token after "Bearer"."""
    return any(
        secret in text or any(word in text for word in secret.split() if len(word) >= WORD_MIN_CHARS)
        for secret in secrets
        if len(secret) >= SECRET_MIN_CHARS
    )


def _to_host(location: str) -> str:
    """Host of a redirect; the rest of the URL can hold a token."""
    try:
        host = urlsplit(location).hostname or ""
    except ValueError:
        return ""
    return f" (to {ascii(host)[1:-1][:EXCERPT_MAX_CHARS]})" if host else ""
