"""What an answer means for the event. Pure: `came_to` is the table of outcomes, one arm for each.

    answer                            ordinarily              where nothing may be repeated (effect="park")
    2xx                               done                    done
    429                               not now                 not now
    nothing was sent                  retry                   retry
    401, 425                          retry                   retry
    408, 409, 5xx, no answer          retry                   unknown
    3xx, other 4xx                    dead                    dead

A 503 is not "not now", also when it says Retry-After: gateways send it for requests that went through. So it counts as
an attempt, and the time of an Idempotency-Key goes on. 401 is a wrong credential, which says nothing about the event:
the breaker opens, and the events wait for a person instead of filling the dead letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from semel.adapters.wire.answers import Answer, Answered, Unanswered, Unsent
from semel.values.errors import MalformedEvent
from semel.values.outcome import NotNow, Reject, Retry
from semel.values.strict_json import parse

RESULT_BODY_MAX_BYTES = 4 * 1024  # a stored result is for answering duplicates: the id that was made, not a document
PIECE_MAX_CHARS = 200  # of an error's body: enough for its sentence
SECRET_MIN_CHARS = 4  # shorter ones stand in every text by chance
WORD_MIN_CHARS = 8  # and so do the shorter words of a longer one


class OutcomeUnknown(Exception):
    """The destination may have acted, and may not be asked again."""

    reason_class = ""
    http_status: int | None = None


E = TypeVar("E", bound=Retry | Reject | NotNow | OutcomeUnknown)


def alive(answer: Answer) -> bool:
    """Whether the destination is at work, as far as its breaker is concerned."""
    return isinstance(answer, Answered) and answer.status < 500 and answer.status != 401


def failure_class(answer: Answer) -> str:
    """For operators: without what the destination wrote."""
    match answer:
        case Unsent():
            return "not sent"
        case Answered(status=status):
            return f"HTTP {status}"
    return "no answer"


def came_to(answer: Answer, who: str, park: bool, secrets: Sequence[str]) -> dict[str, Any]:
    """The result of a forward, or what it came to instead, raised. `who` is the destination for people; none of the
    `secrets` is in what is kept, should the destination repeat them."""
    match answer:
        case Unsent(why=why):
            raise _logged_as(Retry(None, f"{who}: {why}"), "not_sent")
        case Unanswered(why=why):
            raise _logged_as(_in_doubt(f"{who}: {why}", None, park), "no_answer")
        case Answered(status=status) if 200 <= status < 300:
            return _result(answer, secrets)
        case Answered(status=429):
            raise _http(answer, NotNow(answer.after_s or 0.0, f"{who}: 429, it asks for fewer requests"))
        case Answered(status=status) if 300 <= status < 400:
            raise _http(answer, Reject(f"{who}: {status}, redirects are not followed{_to_host(answer.location)}"))
    reason = f"{who}: {answer.status}{_piece(answer.body, secrets)}"
    if answer.status in (401, 425):
        raise _http(answer, Retry(answer.after_s, reason))
    if answer.status in (408, 409) or not 400 <= answer.status < 500:
        raise _http(answer, _in_doubt(reason, answer.after_s, park))
    raise _http(answer, Reject(reason))


def _http(answer: Answered, error: E) -> E:
    return _logged_as(error, "http_status", answer.status)


def _logged_as(error: E, reason_class: str, http_status: int | None = None) -> E:
    """The class of the reason, for the log: the reason itself may quote the destination's answer."""
    error.reason_class, error.http_status = reason_class, http_status
    return error


def _in_doubt(reason: str, after_s: float | None, park: bool) -> Retry | OutcomeUnknown:
    return OutcomeUnknown(reason) if park else Retry(after_s, reason)


def _result(answer: Answered, secrets: Sequence[str]) -> dict[str, Any]:
    body = answer.body
    if not body or len(body) > RESULT_BODY_MAX_BYTES or _tells(body.decode("utf-8", "replace"), secrets):
        return {"status": answer.status}
    try:
        return {"status": answer.status, "body": parse(body)}
    except MalformedEvent:
        return {"status": answer.status}


def _piece(body: bytes | None, secrets: Sequence[str]) -> str:
    """The beginning of an error's body, as one clean line."""
    text = (body or b"").decode("utf-8", "replace")
    if _tells(text, secrets):
        return ""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    if len(line) > PIECE_MAX_CHARS:
        line = line[: PIECE_MAX_CHARS - 1] + "…"
    return f": {line}" if line else ""


def _tells(text: str, secrets: Sequence[str]) -> bool:
    """Whether a destination repeats a header that we sent, or a word of it: the token behind "Bearer", say."""
    return any(
        secret in text or any(word in text for word in secret.split() if len(word) >= WORD_MIN_CHARS)
        for secret in secrets
        if len(secret) >= SECRET_MIN_CHARS
    )


def _to_host(location: str) -> str:
    """Only the host: the rest of a URL may carry a token."""
    try:
        host = urlsplit(location).hostname or ""
    except ValueError:
        return ""
    return f" (to {ascii(host)[1:-1][:PIECE_MAX_CHARS]})" if host else ""
