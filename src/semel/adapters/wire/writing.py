"""A request in bytes. The URL and the headers are the caller's; how the body is framed is decided here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from yarl import URL

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def written(method: str, url: URL, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """Head and body, to be sent at once. Each name is there once, in any spelling: the last one. Raises ValueError for
    control characters: they could be read as more lines than were written."""
    fields = {"host": f"Host: {url.host_port_subcomponent}"}
    for name, value in headers.items():
        fields[name.lower()] = f"{name}: {value}"
    fields.pop("transfer-encoding", None)
    if body or method != "GET":
        fields["content-length"] = f"Content-Length: {len(body or b'')}"
    lines = [f"{method} {url.raw_path_qs} HTTP/1.1", *fields.values()]
    if any(_CONTROL.search(line) for line in lines):
        raise ValueError("a control character in a header")
    return "\r\n".join([*lines, "\r\n"]).encode() + (body or b"")
