"""Spellings of a recipient: one customer has one recipient text.

    +49 170 1234567, 0049-170-1234567, tel:+49 (0)170 1234567   ->  +491701234567
    Maria@Example.COM                                           ->  Maria@example.com

A number without a country code could belong to customers of several countries. A text that is neither a number nor an
address may be an id of a platform. Both stay as they are, and only the same spelling matches.

`semel.normal_recipient_1` of the PostgreSQL schema does the same for notifications that SQL adds.
"""

from __future__ import annotations

import re
from string import ascii_lowercase, ascii_uppercase

PHONE_CHANNELS = ("sms", "voice")

_SEPARATORS = re.compile(r"[ ().\-/]")
_INTERNATIONAL = re.compile(r"\+[1-9][0-9]{6,14}", re.ASCII)  # E.164: 15 digits at most; 7 is the shortest in use
_NATIONAL = re.compile(r"[0-9]{3,15}", re.ASCII)
_EMAIL = re.compile(r"([^@ <>]+)@([^@ <>]+)")
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)  # other letters are lowered differently by every database
_TRUNK_ZERO = "(0)"  # +49 (0)170: the zero is dialled inside the country only


def e164(text: str) -> str | None:
    """The number in E.164; None for anything else than an international number."""
    number = text.removeprefix("tel:")
    if number.startswith(("+", "00")):
        number = number.replace(_TRUNK_ZERO, "", 1)
    digits = _SEPARATORS.sub("", number)
    if digits.startswith("00"):
        digits = f"+{digits[2:]}"
    return digits if _INTERNATIONAL.fullmatch(digits) else None


def email(text: str) -> str | None:
    """The address with its domain in lower case, the only part whose case never matters; None if it is no address."""
    found = _EMAIL.fullmatch(text)
    return None if found is None else f"{found[1]}@{found[2].translate(_LOWER)}"


def normal(channel: str, text: str) -> str:
    """The spelling that is stored and sent. Ids of platforms (channels `message` and `event`) stay as they are."""
    if channel in PHONE_CHANNELS:
        return e164(text) or text
    return (email(text) or text) if channel == "email" else text


def spellings(text: str) -> list[str]:
    """The texts under which a recipient may be stored, whatever its channel: as it is, and in its normal form."""
    return list(dict.fromkeys((text, e164(text) or email(text) or text)))


def matching_note(text: str) -> str:
    """Why a look-up by this recipient compares only the same spelling. Empty: other spellings are found too."""
    if e164(text) is not None or email(text) is not None:
        return ""
    if _NATIONAL.fullmatch(_SEPARATORS.sub("", text)):
        return "the number has no country code, so other spellings cannot be matched: use +49…"
    return "neither an international number nor an email address, so only this exact spelling is matched"
