"""``/v1/responses`` of the simulated engine: numbered events, and the whole answer again at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lmwarden.simulation.protocol import AnswerContext, FinishReason, TokenUsage


class ResponsesAnswer:
    """One answer of ``/v1/responses``. vLLM ignores ``X-data-parallel-rank`` there."""

    def __init__(self, context: AnswerContext, max_output_tokens: int) -> None:
        self._context = context
        self._max_output_tokens = max_output_tokens
        self._id = f"resp_{context.base_id}"
        self._item_id = f"msg_{context.base_id}"
        self._sequence = 0

    def begin(self) -> bytes:
        """``created``, ``in_progress``, the item and its part."""
        opened = self._response("in_progress", [], None)
        item = {"id": self._item_id, "content": [], "role": "assistant", "status": "in_progress", "type": "message"}
        return (
            self._event("response.created", {"response": opened})
            + self._event("response.in_progress", {"response": opened})
            + self._event("response.output_item.added", {"item": item, "output_index": 0})
            + self._event("response.content_part.added", {**self._place(), "part": self._part("")})
        )

    def tokens(self, words: Sequence[str], already: int, finish: FinishReason | None) -> bytes:
        """One ``output_text.delta`` per token."""
        return b"".join(
            self._event("response.output_text.delta", {**self._place(), "delta": word, "logprobs": []})
            for word in words
        )

    def end(self, usage: TokenUsage, words: Sequence[str], finish: FinishReason) -> bytes:
        """The ends of text, part and item, then ``completed`` with the usage."""
        text = "".join(words)
        closed = self._response("completed", [self._item(text)], usage)
        if finish == "length":
            closed = self._incomplete(closed)
        return (
            self._event("response.output_text.done", {**self._place(), "text": text, "logprobs": []})
            + self._event("response.content_part.done", {**self._place(), "part": self._part(text)})
            + self._event("response.output_item.done", {"item": self._item(text), "output_index": 0})
            + self._event("response.completed", {"response": closed})
        )

    def whole(self, usage: TokenUsage, words: Sequence[str], finish: FinishReason) -> bytes:
        """A ``response`` object."""
        closed = self._response("completed", [self._item("".join(words))], usage)
        return _json(self._incomplete(closed) if finish == "length" else closed)

    def _response(self, status: str, output: list[object], usage: TokenUsage | None) -> dict[str, object]:
        return {
            "id": self._id,
            "created_at": self._context.created,
            "incomplete_details": None,
            "instructions": None,
            "metadata": None,
            "model": self._context.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self._max_output_tokens,
            "previous_response_id": None,
            "service_tier": "auto",
            "status": status,
            "truncation": "disabled",
            "usage": None if usage is None else self._usage(usage),
        }

    def _usage(self, usage: TokenUsage) -> dict[str, object]:
        cached = usage.cached_tokens if self._context.cache_details else 0
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    @staticmethod
    def _incomplete(response: dict[str, object]) -> dict[str, object]:
        return {**response, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}

    def _item(self, text: str) -> dict[str, object]:
        return {
            "id": self._item_id,
            "content": [self._part(text)],
            "role": "assistant",
            "status": "completed",
            "type": "message",
        }

    @staticmethod
    def _part(text: str) -> dict[str, object]:
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}

    def _place(self) -> dict[str, object]:
        return {"content_index": 0, "item_id": self._item_id, "output_index": 0}

    def _event(self, name: str, fields: dict[str, object]) -> bytes:
        data = {**fields, "sequence_number": self._sequence, "type": name}
        self._sequence += 1
        return b"event: " + name.encode() + b"\ndata: " + _json(data) + b"\n\n"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
