"""Limits in the headers of an answer: how many requests are left, and when the count begins anew."""

from __future__ import annotations

from collections.abc import Mapping

REST_MAX_S = 300.0  # the most that a header can make us wait


def rest_s(headers: Mapping[str, str], left: str, reset: str, *, now_s: float = 0.0) -> float:
    """For how long nothing more will be taken; 0: something will. `left` and `reset` are names of headers. A reset is
    in seconds from now; where it is a moment instead, `now_s` is the present one."""
    try:
        remaining, after_s = int(headers[left]), float(headers[reset]) - now_s
    except (KeyError, ValueError):
        return 0.0
    return min(after_s, REST_MAX_S) if remaining <= 0 and after_s > 0 else 0.0
