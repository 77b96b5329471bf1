"""Signature Version 4 of AWS, by the driver's own hand; credentials from where AWS programs have them.

Only the signature is the driver's: the request goes the way of all others, tried once, so that what is known afterwards
is as certain as with any provider. Its own retries never come into play.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from semel.adapters.providers.auth import Asked, Hidden, NoAccess, without
from semel.values.errors import ConfigError

SIGN_IN_SHARE = 1 / 3  # of a send's time: an instance asks its metadata service for credentials


class Signature:
    """For one service in one region. Without a key of its own: what the environment, a profile or a role gives."""

    def __init__(
        self, service: str, region: str, *, timeout_s: float, key_id: str = "", secret: Hidden | None = None
    ) -> None:
        try:
            import aiobotocore.session  # noqa: F401  # at the start, not at the first message
        except ImportError as error:
            raise ConfigError("SES needs aiobotocore: install semel[aws]") from error
        if bool(key_id) != (secret is not None):
            raise ConfigError("access_key_id and secret_access_key belong together: give both, or neither")
        self.takes_s = timeout_s * SIGN_IN_SHARE if secret is None else 0.0
        self._service = service
        self._region = region
        self._key_id = key_id
        self._secret = secret
        self._found: Any = None  # the driver's credentials, which renew themselves
        self._finding = asyncio.Lock()

    async def headers(self, asked: Asked) -> Mapping[str, str]:
        credentials = await self._credentials()
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        request = AWSRequest(asked.method, asked.url, {"Content-Type": asked.content_type}, asked.body)
        SigV4Auth(credentials, self._service, self._region).add_auth(request)
        return {name: request.headers[name] for name in _PROOF if name in request.headers}

    def refused(self, headers: Mapping[str, str]) -> None:
        """The next request looks for credentials again."""
        self._found = None

    def hide(self, text: str) -> str:
        return text if self._secret is None else without(text, self._secret.reveal())

    async def close(self) -> None:
        """There is nothing to let go of."""

    async def _credentials(self) -> Any:
        """Raises NoAccess."""
        from botocore.credentials import ReadOnlyCredentials

        if self._secret is not None:
            return ReadOnlyCredentials(self._key_id, self._secret.reveal(), None)
        try:
            async with asyncio.timeout(self.takes_s):
                return await self._look()
        except TimeoutError:
            raise NoAccess(f"no AWS credentials within {self.takes_s:g} s") from None
        except NoAccess:
            raise
        except Exception as error:  # whatever a profile, a role or a metadata service may come up with
            raise NoAccess(f"no AWS credentials: {type(error).__name__}") from None

    async def _look(self) -> Any:
        async with self._finding:
            if self._found is None:
                from aiobotocore.session import AioSession

                self._found = await AioSession().get_credentials()
            if self._found is None:
                why = "no AWS credentials: set a profile or a role, or access_key_id and secret_access_key"
                raise NoAccess(why, configuration=True)
            return await self._found.get_frozen_credentials()


_PROOF = ("Authorization", "X-Amz-Date", "X-Amz-Security-Token")
