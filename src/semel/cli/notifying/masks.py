"""What is shown of customers: nothing, unless it is asked for."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, to_builtins

from semel.cli.operating.words import plain
from semel.values.masking import hidden, masked_content, masked_recipient, without
from semel.values.notification import Notification


class Mask(Struct, frozen=True):
    """How one notification is shown."""

    notification: Notification
    reveal: bool = False

    @property
    def whom(self) -> str:
        """The recipient."""
        text = self.notification.recipient
        return text if self.reveal else masked_recipient(text)

    @property
    def recipient(self) -> str:
        return plain(self.whom)

    @property
    def content(self) -> str:
        """What sort of content it is; what it says stands elsewhere."""
        return plain(masked_content(self.notification))

    def name(self, text: str) -> str:
        """What a caller has named, a key, say: it may name whom the message is for."""
        return text if self.reveal else without(text, self.notification.recipient)

    def text(self, text: str) -> str:
        """Said of it, for a terminal."""
        return plain(self.hidden(text))

    def hidden(self, text: str) -> str:
        """Said of it: evidence and reasons may name whom it is for, and repeat what it says."""
        return text if self.reveal else hidden(text, self.notification)

    def members(self) -> dict[str, Any]:
        """What is said, for programs."""
        said = self.notification
        if not self.reveal:
            return {"content": masked_content(said)}
        names = ("body", "subject", "sender", "template", "data")
        return {"content": masked_content(said), **{name: to_builtins(getattr(said, name)) for name in names}}
