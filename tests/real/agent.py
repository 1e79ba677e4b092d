"""A small agent: a conversation that grows by its own answers, over either API, streamed or not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp

SYSTEM = "You are a coding agent. Use the tools to read, edit and run the project's tests. " * 4
MAX_TOKENS = 12


@dataclass(frozen=True)
class Reply:
    """What came back. Token counts are None where the client was not told."""

    status: int
    decision: str | None
    replica: str | None
    text: str
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    raw: bytes
    waited_ms: int | None = None
    """In the warden, as its head says."""

    @property
    def rank(self) -> int:
        """The rank of ``X-LMWarden-Replica``."""
        assert self.replica is not None, "no replica was named"
        return int(self.replica.rpartition("/")[2])


@dataclass
class Agent:
    """One conversation. ``api`` is ``chat`` or ``messages``."""

    url: str
    model: str
    api: str
    streamed: bool
    session_id: str
    messages: list[dict[str, Any]] = field(default_factory=list)

    async def turn(self, text: str, **headers: str) -> Reply:
        """Say something; the answer becomes part of the conversation."""
        self.messages.append({"role": "user", "content": text})
        reply = await self.ask(self.messages, **headers)
        self.messages.append({"role": "assistant", "content": reply.text or "."})
        return reply

    async def ask(self, messages: list[dict[str, Any]], **headers: str) -> Reply:
        """Send ``messages`` and leave the conversation as it is."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": MAX_TOKENS, "temperature": 0}
        if self.api == "chat":
            path = "/v1/chat/completions"
            body["messages"] = [{"role": "system", "content": SYSTEM}, *messages]
        else:
            path = "/v1/messages"
            body |= {"system": SYSTEM, "messages": messages}
        if self.streamed:
            body["stream"] = True
        sent = {"X-Claude-Code-Session-Id": self.session_id, **headers}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}{path}", json=body, headers=sent) as response,
        ):
            raw = await response.read()
            waited = response.headers.get("X-LMWarden-Wait-Ms")
            text, usage = self._read(raw) if response.status == 200 else ("", {})
            return Reply(
                status=response.status,
                decision=response.headers.get("X-LMWarden-Decision"),
                replica=response.headers.get("X-LMWarden-Replica"),
                text=text,
                raw=raw,
                waited_ms=None if waited is None else int(waited),
                **self._counts(usage),
            )

    def _read(self, raw: bytes) -> tuple[str, dict[str, Any]]:
        events = _events(raw) if self.streamed else [json.loads(raw)]
        if self.api == "chat":
            choices = [choice for event in events for choice in event["choices"]]
            kind = "delta" if self.streamed else "message"
            text = "".join(choice[kind].get("content") or "" for choice in choices)
            return text, next((event["usage"] for event in reversed(events) if event.get("usage")), {})
        if self.streamed:
            deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
            last = next(event for event in events if event["type"] == "message_delta")
            return "".join(delta.get("text", "") for delta in deltas), last["usage"]
        return "".join(block.get("text", "") for block in events[0]["content"]), events[0]["usage"]

    def _counts(self, usage: dict[str, Any]) -> dict[str, int | None]:
        if not usage:
            return {"prompt_tokens": None, "cached_tokens": None, "completion_tokens": None}
        if self.api == "chat":
            return {
                "prompt_tokens": usage["prompt_tokens"],
                "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
                "completion_tokens": usage["completion_tokens"],
            }
        cached = usage["cache_read_input_tokens"]
        return {
            "prompt_tokens": usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached,
            "cached_tokens": cached,
            "completion_tokens": usage["output_tokens"],
        }


def _events(raw: bytes) -> list[dict[str, Any]]:
    """The JSON of each event of a complete stream."""
    lines = raw.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
