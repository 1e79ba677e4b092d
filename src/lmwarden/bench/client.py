"""The agent's side of HTTP: requests as Claude Code sends them, one turn at a time.

``Conversation`` holds the history and builds each body: the shared system prompt, every message so far and
the new one, whose block carries the moving ``cache_control`` mark, as Claude Code's does. The answer that
really came is appended, so the next turn's prompt extends what the engine has cached. No tools are sent: a
vLLM without a tool parser refuses them, and their text would only be more system prompt.

``AgentClient`` sends and reads. Times are taken from the clock that it is given (monotonic; modelled at
``--speed``). Its pool has no limit: 300 sessions hold 300 connections.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType

import aiohttp
import msgspec

from lmwarden.bench.errors import BenchError, plain_reason
from lmwarden.bench.measure import TurnRecord
from lmwarden.bench.sessions import AgentSession
from lmwarden.bench.stream import ChatReader, MessagesReader, StreamReader
from lmwarden.types import Clock

_CONNECT_TIMEOUT_S = 30.0
_USER_AGENT = "claude-cli/2.1.332 (external, sdk-cli)"
_DEVICE_ID = "0" * 64
_ERROR_BODY_BYTES = 65_536
_NO_TEXT = "(no text)"
"""Stands for an answer without text: the APIs refuse an empty assistant message."""


class Api(StrEnum):
    """Which of the two APIs the sessions speak."""

    MESSAGES = "messages"
    CHAT = "chat"


@dataclass(slots=True)
class Conversation:
    """One session's history, as the client holds it."""

    session: AgentSession
    model: str
    system_text: str
    api: Api
    _messages: list[dict[str, object]] = field(default_factory=list)

    def body(self, turn: int) -> bytes:
        """Append the message of ``turn`` and return the request's JSON."""
        text = self.session.message_text(turn)
        maximum = self.session.turns[turn].max_output_tokens
        body: dict[str, object] = {"model": self.model, "max_tokens": maximum, "stream": True}
        if self.api is Api.CHAT:
            self._messages.append({"role": "user", "content": text})
            system = {"role": "system", "content": self.system_text}
            body |= {"messages": [system, *self._messages], "stream_options": {"include_usage": True}}
        else:
            mark = {"type": "ephemeral"}
            marked = {"type": "text", "text": text, "cache_control": mark}
            body |= {
                "messages": [*self._messages, {"role": "user", "content": [marked]}],
                "system": [{"type": "text", "text": self.system_text, "cache_control": mark}],
                "metadata": {"user_id": self._user_id()},
            }
            self._messages.append({"role": "user", "content": text})
        return msgspec.json.encode(body)

    def headers(self) -> dict[str, str]:
        """Return the headers that name the client and its session."""
        if self.api is Api.CHAT:
            return {"X-Session-Id": self.session.session_id}
        return {
            "User-Agent": _USER_AGENT,
            "X-Claude-Code-Session-Id": self.session.session_id,
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "claude-code-20250219",
            "x-app": "cli",
        }

    def answered(self, text: str) -> None:
        """Append the answer that came."""
        text = text or _NO_TEXT
        content: object = text if self.api is Api.CHAT else [{"type": "text", "text": text}]
        self._messages.append({"role": "assistant", "content": content})

    def _user_id(self) -> str:
        identity = {"device_id": _DEVICE_ID, "account_uuid": "", "session_id": self.session.session_id}
        return msgspec.json.encode(identity).decode()


class AgentClient:
    """Sends turns to one endpoint; an async context manager."""

    def __init__(self, url: str, *, api: Api, key: str | None, clock: Clock) -> None:
        path = "/v1/messages?beta=true" if api is Api.MESSAGES else "/v1/chat/completions"
        self._url = url.rstrip("/") + path
        self._api = api
        self._clock = clock
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

    async def play(self, conversation: Conversation, record: TurnRecord) -> bool:
        """Send one turn and read its answer to the end; return whether it was answered whole.

        ``record`` is filled in as things happen, so that a turn that is cancelled keeps what was seen.
        A failure is recorded, never raised.
        """
        if self._http is None:
            raise RuntimeError("the client is used outside its context")
        body = conversation.body(record.turn)
        reader: StreamReader = MessagesReader() if self._api is Api.MESSAGES else ChatReader()
        record.sent_s = self._clock()
        try:
            async with self._http.post(self._url, data=body, headers=conversation.headers()) as response:
                _note_head(response, record)
                if response.status != 200:
                    await response.content.read(_ERROR_BODY_BYTES)
                    return self._failed(record, f"status {response.status}")
                async for data in response.content.iter_any():
                    reader.feed(data, self._clock())
                    record.first_token_s = reader.first_token_s
                    record.first_content_s = reader.first_content_s
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return self._failed(record, f"connection: {plain_reason(error)}")
        except msgspec.DecodeError:
            return self._failed(record, "an event that is not JSON of this API")
        return self._ended(conversation, record, reader)

    def _ended(self, conversation: Conversation, record: TurnRecord, reader: StreamReader) -> bool:
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
        conversation.answered(reader.text())
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
