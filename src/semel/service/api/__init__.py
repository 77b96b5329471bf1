"""The HTTP API for other languages: claim, handle, settle, over JSON."""

from semel.service.api.requests import Credential, Keyring
from semel.service.api.routes import api

__all__ = ["Credential", "Keyring", "api"]
