"""A streaming agent that knows how each of its requests ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import aiohttp


class End(StrEnum):
    """How a request ended for its client."""

    COMPLETE = "complete"
    BROKEN = "broken"
    """The connection broke in the middle of an answer."""
    REFUSED = "refused"
    """A status of 5xx."""
    UNREACHED = "unreached"
    """No connection, or it broke before the head of an answer."""


@dataclass
class Asked:
    """One request."""

    end: End = End.UNREACHED
    status: int | None = None
    decision: str | None = None
    replica: str | None = None
    conversation: str | None = None
    text: bytes = b""

    @property
    def flows(self) -> bool:
        """Bytes of an answer came, and more are to come."""
        return bool(self.text) and b"event: message_stop" not in self.text


async def ask(
    http: aiohttp.ClientSession,
    url: str,
    model: str,
    session_id: str,
    text: str,
    max_tokens: int = 16,
    asked: Asked | None = None,
) -> Asked:
    """One streamed turn on ``/v1/messages``; never raises for what an engine or a warden does.

    ``asked``: is filled as it goes on, for whoever wants to look meanwhile.
    """
    body = {
        "model": model,
        "max_tokens": max_tokens,
        "stream": True,
        "system": "You are a coding agent.",
        "messages": [{"role": "user", "content": text}],
    }
    asked = asked or Asked()
    try:
        async with http.post(
            f"{url}/v1/messages", json=body, headers={"X-Claude-Code-Session-Id": session_id}
        ) as response:
            asked.status = response.status
            asked.decision = response.headers.get("X-LMWarden-Decision")
            asked.replica = response.headers.get("X-LMWarden-Replica")
            asked.conversation = response.headers.get("X-LMWarden-Conversation")
            asked.end = End.BROKEN if response.status == 200 else End.REFUSED
            async for chunk in response.content.iter_any():
                asked.text += chunk
    except aiohttp.ClientError:
        return asked
    if asked.status == 200:
        # A clean end without the last event is the one thing that must never be.
        assert b"event: message_stop" in asked.text, asked.text[-500:]
        asked.end = End.COMPLETE
    return asked
