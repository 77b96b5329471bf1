"""The HTTP API for other languages: claim, handle, settle, over JSON."""

from semel.service.api.application import api
from semel.service.api.auth import Credential, Keyring

__all__ = ["Credential", "Keyring", "api"]
