"""Fetches the certificates that sign messages of SNS. The addresses are checked by whoever asks."""

from __future__ import annotations

import aiohttp

CERTIFICATE_MAX_BYTES = 16 * 1024
TIMEOUT_S = 5.0
ABSENT = (403, 404, 410)  # there is no such certificate: an answer, and worth remembering


async def fetch_certificate(url: str) -> bytes:
    """The body of a 200; nothing where there is none. Raises OSError for everything else."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
            async with session.get(url, allow_redirects=False) as answer:
                if answer.status in ABSENT:
                    return b""
                if answer.status != 200:
                    raise OSError(f"{url} answered {answer.status}")
                body = await answer.content.read(CERTIFICATE_MAX_BYTES + 1)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise OSError(f"{url}: {type(error).__name__}") from error
    if len(body) > CERTIFICATE_MAX_BYTES:
        raise OSError(f"{url} is larger than a certificate")
    return body
