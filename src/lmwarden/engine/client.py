"""The questions that we ask an engine, over one aiohttp session, each bounded in time and size.

An answer is either the thing itself or one of four errors, because the caller acts differently on each:
:class:`EngineRefusedError` (nobody listens: the process is gone), :class:`EngineSilentError` (no whole
answer in time: it may only be busy, or the way there is broken), :class:`EngineUnwellError` (not what a healthy server
answers; :class:`EngineLacksError` where it has no such page at all) and :class:`EngineUnaskedError` (this machine
could not ask, which tells nothing of the engine). Only a refusal by the engine's own machine is proof that the
process is gone. A name that does not resolve, or a network that is away, is not: connections that are open outlive it.

Not only vLLM is asked. Other servers that speak OpenAI's API list their models in the same way, but each adds what
it likes and leaves out the rest, so every field but the model's name is read with indulgence. A server without
``/health`` is healthy while it lists its models.
"""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any

import aiohttp
import msgspec

from lmwarden.engine.metrics import LARGE_PAGE_BYTES, MAX_PAGE_BYTES, EngineMetrics, MetricsError, NoFiguresError, parse
from lmwarden.types import OUR_OWN_LACK, EngineEndpoint

RANK_HEADER = "X-data-parallel-rank"
"""Names the rank of a multi-rank vLLM that is to serve a request."""

_NO_SUCH_PAGE = (404, 405, 501)
"""501 is llama.cpp's answer at ``/metrics`` where they are switched off."""


class EngineError(Exception):
    """An engine did not answer as asked. One line for a person."""


class EngineRefusedError(EngineError):
    """Nobody listens there: its machine says so."""


class EngineSilentError(EngineError):
    """No complete answer within the time allowed, the connection broke, or there is no way there."""


class EngineUnaskedError(EngineError):
    """It was not asked: this machine lacks what that takes."""


class EngineUnwellError(EngineError):
    """An answer that is not a healthy engine's."""


class EngineLacksError(EngineUnwellError):
    """The engine has no such page, and will not have it the next time either."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``/v1/models``."""

    id: str
    root: str | None = None
    """The weights; served names of one model share it."""
    parent: str | None = None
    """Set for a LoRA adapter."""
    max_model_len: int | None = None
    """Longest context in tokens."""
    owned_by: str | None = None
    """What kind of server it is: ``vllm``, ``llamacpp``, ``sglang``, ..."""


class _Card(msgspec.Struct, frozen=True):
    """As it stands in the answer; only the name can be relied on."""

    id: str
    root: Any = None
    parent: Any = None
    max_model_len: Any = None
    owned_by: Any = None
    meta: Any = None

    def read(self) -> ModelCard:
        """What is of use in it. llama.cpp says its context in ``meta.n_ctx``, and only in newer versions."""
        meta = self.meta if isinstance(self.meta, dict) else {}
        return ModelCard(
            id=self.id,
            root=_text(self.root),
            parent=_text(self.parent),
            max_model_len=_count(self.max_model_len) or _count(meta.get("n_ctx")),
            owned_by=_text(self.owned_by),
        )


class _ModelList(msgspec.Struct, frozen=True):
    data: list[_Card]


class _Version(msgspec.Struct, frozen=True):
    version: str


class EngineClient:
    """Asks one engine over the session it was given (which it does not close).

    Remembers one thing between questions: whether the engine has a ``/health``.
    """

    def __init__(self, endpoint: EngineEndpoint, session: aiohttp.ClientSession, timeout_s: float) -> None:
        scheme = "https" if endpoint.tls else "http"
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        self.url = f"{scheme}://{host}:{endpoint.port}{endpoint.base_path}"
        self._session = session
        self._headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        self._timeout_s = timeout_s
        self._has_health = True

    async def models(self) -> list[ModelCard]:
        """What the engine serves, in its order.

        Raises:
            EngineError: any of the kinds.
        """
        status, body = await self._ask("GET", "/v1/models")
        if status == 401:
            raise EngineUnwellError(f"{self.url} wants an API key (api_key_file)")
        if status >= 500:
            raise EngineUnwellError(f"{self.url}/v1/models answers {status}")
        if status != 200:
            raise EngineUnwellError(f"{self.url} answers, but is no vLLM server: /v1/models is {status} there")
        try:
            cards = msgspec.json.decode(body, type=_ModelList).data
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            sentence = f"{self.url} answers, but is no vLLM server: its /v1/models is no list of models"
            raise EngineUnwellError(sentence) from None
        if not cards:
            raise EngineUnwellError(f"{self.url}/v1/models lists no model")
        return [card.read() for card in cards]

    async def metrics(self) -> EngineMetrics:
        """The engine's figures.

        Raises:
            EngineRefusedError, EngineSilentError, EngineUnaskedError: as ever.
            EngineUnwellError: the page is not vLLM's; ``EngineLacksError`` where there is none.
        """
        status, body = await self._ask("GET", "/metrics")
        if status != 200:
            lacks = status in _NO_SUCH_PAGE or status in (401, 403)
            raise (EngineLacksError if lacks else EngineUnwellError)(f"{self.url}/metrics answers {status}")
        try:
            return parse(body) if len(body) < LARGE_PAGE_BYTES else await asyncio.to_thread(parse, body)
        except NoFiguresError as error:
            raise EngineLacksError(f"{self.url}: {error}") from None
        except MetricsError as error:
            raise EngineUnwellError(f"{self.url}: {error}") from None

    async def version(self) -> str | None:
        """vLLM's version; None where it does not say.

        Raises:
            EngineRefusedError, EngineSilentError, EngineUnaskedError: as ever.
        """
        status, body = await self._ask("GET", "/version")
        try:
            return msgspec.json.decode(body, type=_Version).version if status == 200 else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    async def health(self) -> None:
        """Return if the engine calls itself healthy, or, where it has no ``/health``, lists its models.

        Raises:
            EngineError: any of the kinds.
        """
        if self._has_health:
            status, _ = await self._ask("GET", "/health")
            if status == 200:
                return
            if status not in _NO_SUCH_PAGE:
                raise EngineUnwellError(f"{self.url}/health answers {status}")
        # Asked for again as soon as the models fail too: another server may listen there by then.
        self._has_health = False
        try:
            await self.models()
        except EngineError:
            self._has_health = True
            raise

    async def generate(self, path: str, body: bytes, *, rank: int | None, timeout_s: float) -> tuple[int, bytes]:
        """Send a request of our own.

        Args:
            path: of the endpoint, ``/v1/...``.
            body: JSON.
            rank: that is to serve it; None: the engine chooses.
            timeout_s: for the whole answer.

        Returns:
            Status and body.

        Raises:
            EngineRefusedError, EngineSilentError, EngineUnaskedError: as ever.
        """
        headers = {"Content-Type": "application/json"}
        if rank is not None:
            headers[RANK_HEADER] = str(rank)
        return await self._ask("POST", path, body=body, headers=headers, timeout_s=timeout_s)

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> tuple[int, bytes]:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            async with self._session.request(
                method,
                self.url + path,
                data=body,
                headers={**self._headers, **(headers or {})},
                timeout=aiohttp.ClientTimeout(total=limit_s),
                allow_redirects=False,
            ) as response:
                answer = await response.content.read(MAX_PAGE_BYTES)
                while not response.content.at_eof():
                    if len(answer) >= MAX_PAGE_BYTES:
                        raise EngineUnwellError(f"{self.url}{path} answers more than {MAX_PAGE_BYTES} bytes")
                    answer += await response.content.read(MAX_PAGE_BYTES - len(answer))
                return response.status, answer
        except aiohttp.ClientSSLError:
            sentence = f"{self.url} fails the TLS handshake (its certificate must be trusted here)"
            raise EngineUnwellError(sentence) from None
        except aiohttp.ClientConnectorError as error:
            raise self._not_connected(error) from None
        except TimeoutError:
            raise EngineSilentError(f"{self.url}{path} did not answer within {limit_s:g} s") from None
        except aiohttp.ClientError:
            raise EngineSilentError(f"{self.url}{path} broke off its answer") from None

    def _not_connected(self, error: aiohttp.ClientConnectorError) -> EngineError:
        number, reason = error.os_error.errno, error.os_error.strerror or error.os_error
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return EngineSilentError(f"{self.url} cannot be found: its name does not resolve ({reason})")
        # Of a name with several addresses the errors come as one, without a number: one of them refused.
        if number == errno.ECONNREFUSED or (number is None and f"[Errno {errno.ECONNREFUSED}]" in str(error.os_error)):
            return EngineRefusedError(f"{self.url} does not accept connections (Connection refused)")
        if number in OUR_OWN_LACK:
            return EngineUnaskedError(f"{self.url} could not be asked from here ({os.strerror(number)})")
        return EngineSilentError(f"{self.url} cannot be reached ({reason})")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
