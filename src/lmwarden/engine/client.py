"""The questions that we ask an engine, over one aiohttp session, each bounded in time and size.

An answer is either the thing itself or one of three errors, because the caller acts differently on each:
:class:`EngineRefusedError` (nobody listens: the process is gone), :class:`EngineSilentError` (no whole
answer in time: it may only be busy) and :class:`EngineUnwellError` (not what a healthy vLLM answers).
"""

from __future__ import annotations

import os

import aiohttp
import msgspec

from lmwarden.engine.metrics import MAX_PAGE_BYTES, EngineMetrics, MetricsError, parse
from lmwarden.types import EngineEndpoint


class EngineError(Exception):
    """An engine did not answer as asked. One line for a person."""


class EngineRefusedError(EngineError):
    """No connection: nobody listens there, or the name does not resolve."""


class EngineSilentError(EngineError):
    """No complete answer within the time allowed, or the connection broke."""


class EngineUnwellError(EngineError):
    """An answer that is not a healthy vLLM's."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``/v1/models``."""

    id: str
    root: str | None = None
    """The weights; served names of one model share it."""
    parent: str | None = None
    """Set for a LoRA adapter."""
    max_model_len: int | None = None
    """Longest context in tokens."""


class _ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]


class _Version(msgspec.Struct, frozen=True):
    version: str


class EngineClient:
    """Asks one engine. Holds no state but the session it was given (which it does not close)."""

    def __init__(self, endpoint: EngineEndpoint, session: aiohttp.ClientSession, timeout_s: float) -> None:
        scheme = "https" if endpoint.tls else "http"
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        self.url = f"{scheme}://{host}:{endpoint.port}{endpoint.base_path}"
        self._session = session
        self._headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def models(self) -> list[ModelCard]:
        """What the engine serves, in its order.

        Raises:
            EngineError: any of the three kinds.
        """
        status, body = await self._get("/v1/models")
        if status == 401:
            raise EngineUnwellError(f"{self.url} wants an API key (api_key_file)")
        if status >= 500:
            raise EngineUnwellError(f"{self.url}/v1/models answers {status}")
        if status != 200:
            raise EngineUnwellError(f"{self.url} answers, but is no vLLM server: /v1/models is {status} there")
        try:
            cards = msgspec.json.decode(body, type=_ModelList).data
        except (msgspec.DecodeError, UnicodeDecodeError):
            sentence = f"{self.url} answers, but is no vLLM server: its /v1/models is no list of models"
            raise EngineUnwellError(sentence) from None
        if not cards:
            raise EngineUnwellError(f"{self.url}/v1/models lists no model")
        return cards

    async def metrics(self) -> EngineMetrics:
        """The engine's figures.

        Raises:
            EngineRefusedError, EngineSilentError: as ever.
            EngineUnwellError: the page is not vLLM's.
        """
        status, body = await self._get("/metrics")
        if status != 200:
            raise EngineUnwellError(f"{self.url}/metrics answers {status}")
        try:
            return parse(body)
        except MetricsError as error:
            raise EngineUnwellError(f"{self.url}: {error}") from None

    async def version(self) -> str | None:
        """vLLM's version; None where it does not say.

        Raises:
            EngineRefusedError, EngineSilentError: as ever.
        """
        status, body = await self._get("/version")
        try:
            return msgspec.json.decode(body, type=_Version).version if status == 200 else None
        except msgspec.DecodeError:
            return None

    async def health(self) -> None:
        """Return if the engine calls itself healthy.

        Raises:
            EngineError: any of the three kinds.
        """
        status, _ = await self._get("/health")
        if status != 200:
            raise EngineUnwellError(f"{self.url}/health answers {status}")

    async def _get(self, path: str) -> tuple[int, bytes]:
        try:
            async with self._session.get(
                self.url + path, headers=self._headers, timeout=self._timeout, allow_redirects=False
            ) as response:
                body = await response.content.read(MAX_PAGE_BYTES)
                while not response.content.at_eof():
                    if len(body) >= MAX_PAGE_BYTES:
                        raise EngineUnwellError(f"{self.url}{path} answers more than {MAX_PAGE_BYTES} bytes")
                    body += await response.content.read(MAX_PAGE_BYTES - len(body))
                return response.status, body
        except aiohttp.ClientSSLError:
            sentence = f"{self.url} fails the TLS handshake (its certificate must be trusted here)"
            raise EngineUnwellError(sentence) from None
        except aiohttp.ClientConnectorError as error:
            number = error.os_error.errno
            reason = os.strerror(number) if number is not None and number > 0 else "no such host"
            raise EngineRefusedError(f"{self.url} does not accept connections ({reason})") from None
        except TimeoutError:
            limit = f"{self._timeout.total:g} s"
            raise EngineSilentError(f"{self.url}{path} did not answer within {limit}") from None
        except aiohttp.ClientError:
            raise EngineSilentError(f"{self.url}{path} broke off its answer") from None
