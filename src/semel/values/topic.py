"""Topic patterns: `*` is one segment, `**` is the rest, `{id}` in a pattern is `*`."""

from __future__ import annotations

import re

from semel.values.errors import ConfigError

_PLACEHOLDER = re.compile(r"\{[^{}.]*\}")


class Pattern:
    """One compiled pattern. Concrete topic, topic template and type are all matchable."""

    __slots__ = ("_regex", "_segments", "text")

    def __init__(self, text: str) -> None:
        if not text or text != text.strip() or ".." in f".{text}.":
            raise ConfigError(f"topic pattern {text!r}: expected segments with dots between them, `*` or `**`")
        self.text = text
        self._segments = ["*" if _PLACEHOLDER.fullmatch(part) else part for part in text.split(".")]
        for segment in self._segments:
            if "*" in segment and segment not in ("*", "**"):
                raise ConfigError(f"topic pattern {text!r}: `*` stands for a whole segment, not a part of one")
        if "**" in self._segments[:-1]:
            raise ConfigError(f"topic pattern {text!r}: `**` stands for the rest, so it comes last")
        self._regex = re.compile(
            r"\.".join({"*": r"[^.]+", "**": r".+"}.get(part) or re.escape(part) for part in self._segments)
        )

    def matches(self, topic: str) -> bool:
        return self._regex.fullmatch(topic) is not None

    def could_match_some(self, template: str) -> bool:
        """True when some concrete topic of this template matches, though the template itself may not."""
        parts = template.split(".")
        for at, segment in enumerate(self._segments):
            if segment == "**":
                return len(parts) > at
            if at >= len(parts):
                return False
            if segment not in ("*", parts[at]) and not _PLACEHOLDER.fullmatch(parts[at]):
                return False
        return len(parts) == len(self._segments)
