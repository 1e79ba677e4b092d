"""The agent's side of HTTP: one turn at a time.

``AgentClient`` sends what a ``Dialogue`` makes and reads the answer. Times are taken from the clock that it is given
(monotonic; modelled at ``--speed``). Its pool has no limit: 300 sessions hold 300 connections.

A client that leaves in the middle of an answer closes the connection, as the Escape key does in Claude Code; there is
no message for it.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

import aiohttp
import msgspec

from lmwarden.bench.conversation import Api, Dialogue
from lmwarden.bench.errors import BenchError, plain_reason
from lmwarden.bench.measure import TurnRecord
from lmwarden.bench.stream import StreamReader, reader_for
from lmwarden.types import Clock

_CONNECT_TIMEOUT_S = 30.0
_ERROR_BODY_BYTES = 65_536


class AgentClient:
    """Sends turns to one endpoint; an async context manager.

    Args:
        url: the endpoint.
        api: which API to speak.
        key: the endpoint's API key.
        clock: where times are read.
        speed: how many times as fast as the wall clock that runs.
        network_s: (modelled) delay between a turn's send and the request on the wire: a client that is far away.
    """

    def __init__(
        self, url: str, *, api: Api, key: str | None, clock: Clock, speed: float = 1.0, network_s: float = 0.0
    ) -> None:
        self._url = url.rstrip("/") + api.path
        self._api = api
        self._clock = clock
        self._speed = speed
        self._network_s = network_s
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> AgentClient:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
            headers=self._headers,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def play(self, dialogue: Dialogue, record: TurnRecord) -> bool:
        """Send one turn and read its answer to the end, or to where its client leaves.

        ``record`` is filled in as things happen, so that a turn that is cancelled keeps what was seen.
        A failure is recorded, never raised. Returns whether the conversation can go on.
        """
        if self._http is None:
            raise RuntimeError("the client is used outside its context")
        body = dialogue.body(record.turn)
        reader = reader_for(self._api.value)
        record.sent_s = self._clock()
        try:
            if self._network_s:
                await asyncio.sleep(self._network_s / self._speed)
            async with (
                asyncio.timeout(None) as stay,
                self._http.post(self._url, data=body, headers=dialogue.headers()) as response,
            ):
                _note_head(response, record)
                if response.status != 200:
                    await response.content.read(_ERROR_BODY_BYTES)
                    return self._failed(record, f"status {response.status}")
                await self._read(response, reader, record, stay, dialogue.turns[record.turn].leaves_after_s)
        except TimeoutError as error:
            if stay.expired():
                return self._left(dialogue, record)
            return self._failed(record, f"connection: {plain_reason(error)}")
        except (aiohttp.ClientError, OSError) as error:
            return self._failed(record, f"connection: {plain_reason(error)}")
        except msgspec.DecodeError:
            return self._failed(record, "an event that is not JSON of this API")
        return self._ended(dialogue, record, reader)

    async def _read(
        self,
        response: aiohttp.ClientResponse,
        reader: StreamReader,
        record: TurnRecord,
        stay: asyncio.Timeout,
        leaves_after_s: float | None,
    ) -> None:
        async for data in response.content.iter_any():
            waiting = record.first_token_s is None
            reader.feed(data, self._clock())
            record.first_token_s = reader.first_token_s
            record.first_content_s = reader.first_content_s
            if waiting and leaves_after_s is not None and record.first_token_s is not None:
                stay.reschedule(asyncio.get_running_loop().time() + leaves_after_s / self._speed)

    def _ended(self, dialogue: Dialogue, record: TurnRecord, reader: StreamReader) -> bool:
        usage = reader.usage()
        if reader.error is not None:
            return self._failed(record, f"error in the stream: {reader.error}")
        if not reader.complete:
            return self._failed(record, "the stream ended without its end mark")
        if usage.finish_reason == "abort":
            return self._failed(record, "the engine aborted the request")
        if reader.first_token_s is None:
            return self._failed(record, "an answer without a token")
        record.prompt_tokens = usage.prompt_tokens
        record.cached_tokens = usage.cached_tokens
        record.output_tokens = usage.completion_tokens
        record.ended_s = self._clock()
        dialogue.answered(reader.text())
        return True

    def _left(self, dialogue: Dialogue, record: TurnRecord) -> bool:
        record.left = True
        record.ended_s = self._clock()
        dialogue.left()
        return True

    def _failed(self, record: TurnRecord, error: str) -> bool:
        record.failed = True
        record.error = error
        record.ended_s = self._clock()
        return False


async def listed_models(url: str, key: str | None) -> list[str]:
    """Return the model names that an endpoint lists.

    Raises:
        BenchError: it cannot be reached, or does not answer as an OpenAI-compatible server.
    """
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    timeout = aiohttp.ClientTimeout(total=_CONNECT_TIMEOUT_S)
    where = f"--url {url}: GET /v1/models"
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as http,
            http.get(url.rstrip("/") + "/v1/models") as response,
        ):
            if response.status == 401:
                raise BenchError(f"{where} answered 401: give an API key that is known there (--key, LMWARDEN_KEY)")
            if response.status != 200:
                raise BenchError(f"{where} answered {response.status}, expected 200")
            listed = msgspec.json.decode(await response.read(), type=_Models)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise BenchError(f"{where} failed: {plain_reason(error)}") from error
    return [model.id for model in listed.data]


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _note_head(response: aiohttp.ClientResponse, record: TurnRecord) -> None:
    headers = response.headers
    record.decision = headers.get("X-LMWarden-Decision")
    record.replica = headers.get("X-LMWarden-Replica")
    waited_ms = headers.get("X-LMWarden-Wait-Ms")
    if waited_ms is not None and waited_ms.isascii() and waited_ms.isdigit():
        record.waited_s = int(waited_ms) / 1000
