"""A mail as bytes, the same for the same mail in every version of Python: seven bits, short lines, nothing made up.

Only what a retry would have to repeat is in it. Its Message-ID is ours, made of our id: whoever gets a mail twice can
tell that it is one.
"""

from __future__ import annotations

import base64
from email.utils import formatdate

from semel.adapters.providers.saying import Address, Mail

WORD_BYTES = 36  # of UTF-8 in an encoded word: its line, with the name of the header, has at most 76 characters
FOLD = "\r\n "  # a header goes on in the next line
PLAIN_MAX = 70  # characters of a header that is written as it is
_SPECIAL = set('()<>[]:;@\\,."=?_')


def mail_bytes(mail: Mail, message_id: str, boundary: str, date_ms: int) -> str:
    """As ASCII text, lines ended by CRLF."""
    head = [
        f"From: {mailbox(mail.sender, FOLD)}",
        f"To: <{mail.to}>",
        f"Subject: {_header(mail.subject)}",
        f"Message-ID: <{message_id}>",
        f"Date: {formatdate(date_ms / 1000, usegmt=False)}",
        "MIME-Version: 1.0",
    ]
    parts = [(kind, value) for kind, value in (("plain", mail.text), ("html", mail.html)) if value]
    if len(parts) == 1:
        return "\r\n".join([*head, *_part(*parts[0])])
    lines = [*head, f'Content-Type: multipart/alternative; boundary="{boundary}"', ""]
    for kind, value in parts:
        lines += [f"--{boundary}", *_part(kind, value)]
    return "\r\n".join([*lines, f"--{boundary}--", ""])


def _part(kind: str, value: str) -> list[str]:
    encoded = base64.encodebytes(value.encode()).decode().splitlines()
    return [f"Content-Type: text/{kind}; charset=utf-8", "Content-Transfer-Encoding: base64", "", *encoded, ""]


def mailbox(address: Address, between: str = " ") -> str:
    """A name and its address in seven bits. `between`: encoded words of a long name."""
    name = address.name
    if not name:
        return f"<{address.email}>"
    return f"{_words(name, between) if not name.isascii() or _SPECIAL & set(name) else name} <{address.email}>"


def _header(text: str) -> str:
    plain = text.isascii() and text.isprintable() and "=?" not in text and len(text) <= PLAIN_MAX
    return text if plain and text == text.strip() else _words(text, FOLD)


def _words(text: str, between: str) -> str:
    """Encoded words, cut between characters."""
    words, word = [], b""
    for char in text:
        raw = char.encode()
        if len(word) + len(raw) > WORD_BYTES:
            words.append(word)
            word = b""
        word += raw
    words.append(word)
    return between.join(f"=?utf-8?b?{base64.b64encode(word).decode()}?=" for word in words)
