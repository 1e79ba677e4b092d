"""The bytes on the wire, against answers recorded from vLLM 0.26.0 (texts and ids replaced)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from lmwarden.simulation.protocol import (
    Answer,
    AnswerContext,
    ChatAnswer,
    CompletionAnswer,
    FinishReason,
    MessagesAnswer,
    TokenUsage,
    error_body,
)

CONTEXT = AnswerContext(
    base_id="1",
    created=5,
    model="tiny",
    fingerprint="vllm-0.26.0-dp4-x",
    prompt_tokens=398,
    include_usage=False,
    continuous_usage=False,
    cache_details=True,
    legacy=True,
)
USAGE = TokenUsage(prompt_tokens=398, completion_tokens=2, cached_tokens=384, created_cache_tokens=0)
COLD = TokenUsage(prompt_tokens=398, completion_tokens=2, cached_tokens=0, created_cache_tokens=384)
WORDS = ["kab ", "dob."]


def context(**changes: Any) -> AnswerContext:
    return msgspec.structs.replace(CONTEXT, **changes)


def streamed(answer: Answer, usage: TokenUsage = USAGE, finish: FinishReason = "length") -> str:
    first = answer.begin() + answer.tokens(WORDS[:1], 0, None)
    return (first + answer.tokens(WORDS[1:], 1, finish) + answer.end(usage, WORDS, finish)).decode()


def data(stream: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_a_chat_stream_without_usage() -> None:
    assert streamed(ChatAnswer(CONTEXT)) == (
        'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":5,"model":"tiny","choices":[{"index":0,'
        '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,'
        '"prompt_text":null}\n\n'
        'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":5,"model":"tiny","choices":[{"index":0,'
        '"delta":{"content":"kab "},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":5,"model":"tiny","choices":[{"index":0,'
        '"delta":{"content":"dob."},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}],'
        '"system_fingerprint":"vllm-0.26.0-dp4-x"}\n\n'
        "data: [DONE]\n\n"
    )


def test_a_chat_stream_with_usage_ends_in_a_chunk_without_choices() -> None:
    stream = streamed(ChatAnswer(context(include_usage=True)))
    assert stream.endswith(
        'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":5,"model":"tiny","choices":[],"usage":'
        '{"prompt_tokens":398,"total_tokens":400,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":384,'
        '"created_cache_tokens":0}},"system_fingerprint":"vllm-0.26.0-dp4-x"}\n\n'
        "data: [DONE]\n\n"
    )
    assert sum("usage" in chunk for chunk in data(stream)) == 1
    assert sum("system_fingerprint" in chunk for chunk in data(stream)) == 1


def test_continuous_usage_says_nothing_of_the_cache_before_the_end() -> None:
    for answer in (ChatAnswer, CompletionAnswer):
        *chunks, last = data(streamed(answer(context(include_usage=True, continuous_usage=True))))
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks][-2:] == [1, 2]
        assert all(chunk["usage"]["prompt_tokens"] == 398 for chunk in chunks)
        assert not any("prompt_tokens_details" in chunk["usage"] for chunk in chunks)
        assert last["choices"] == []
        assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 384


def test_a_messages_stream() -> None:
    assert streamed(MessagesAnswer(CONTEXT)) == (
        "event: message_start\n"
        'data: {"type":"message_start","message":{"id":"chatcmpl-1","type":"message","role":"assistant","content":[],'
        '"model":"tiny","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":398,"output_tokens":0}}}\n\n'
        "event: content_block_start\n"
        'data: {"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}\n\n'
        "event: content_block_delta\n"
        'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"kab "},"index":0}\n\n'
        "event: content_block_delta\n"
        'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"dob."},"index":0}\n\n'
        "event: content_block_stop\n"
        'data: {"type":"content_block_stop","index":0}\n\n'
        "event: message_delta\n"
        'data: {"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"input_tokens":14,'
        '"output_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":384}}\n\n'
        "event: message_stop\n"
        'data: {"type":"message_stop"}\n\n'
    )


@pytest.mark.parametrize("usage", [USAGE, COLD])
def test_anthropic_usage_adds_up_to_the_prompt(usage: TokenUsage) -> None:
    counts = json.loads(MessagesAnswer(CONTEXT).whole(usage, WORDS, "stop"))["usage"]
    parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert sum(counts[part] for part in parts) == 398


def test_newer_messages_name_the_stop_sequence() -> None:
    assert '"delta":{"stop_reason":"max_tokens","stop_sequence":null}' in streamed(
        MessagesAnswer(context(legacy=False))
    )


def test_without_the_option_nothing_is_said_of_the_cache() -> None:
    silent = context(cache_details=False, include_usage=True)
    for answer in (ChatAnswer(silent), CompletionAnswer(silent), MessagesAnswer(silent)):
        assert "cache" not in streamed(answer)
    counts = json.loads(MessagesAnswer(silent).whole(USAGE, WORDS, "length"))["usage"]
    assert counts == {"input_tokens": 398, "output_tokens": 2}
    assert json.loads(ChatAnswer(silent).whole(USAGE, WORDS, "length"))["usage"]["prompt_tokens_details"] is None


def test_whole_answers() -> None:
    chat = json.loads(ChatAnswer(CONTEXT).whole(USAGE, WORDS, "stop"))
    assert chat["object"] == "chat.completion"
    assert chat["choices"][0]["message"]["content"] == "kab dob."
    assert chat["choices"][0]["finish_reason"] == "stop"
    assert chat["usage"]["prompt_tokens_details"] == {"cached_tokens": 384, "created_cache_tokens": 0}
    completion = json.loads(CompletionAnswer(CONTEXT).whole(USAGE, WORDS, "length"))
    assert completion["object"] == "text_completion"
    assert completion["choices"][0]["text"] == "kab dob."
    assert completion["usage"]["prompt_tokens_details"] == {"cached_tokens": 384, "created_cache_tokens": None}
    message = json.loads(MessagesAnswer(CONTEXT).whole(USAGE, WORDS, "stop"))
    assert message["content"] == [{"type": "text", "text": "kab dob."}]
    assert message["stop_reason"] == "end_turn"


def test_a_chat_stream_that_ends_in_a_tool_call() -> None:
    answer = ChatAnswer(context(tool="look", include_usage=True))
    events = data(streamed(answer, finish="tool_calls"))
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]
    calls = [call for event in events for choice in event["choices"] for call in choice["delta"].get("tool_calls", [])]
    assert [(call["index"], call["function"]) for call in calls] == [(0, {"name": "look", "arguments": "{}"})]
    assert events[-1]["usage"]["completion_tokens"] == USAGE.completion_tokens


def test_a_messages_stream_that_ends_in_a_tool_call() -> None:
    events = data(streamed(MessagesAnswer(context(tool="look")), finish="tool_calls"))
    assert [event["type"] for event in events][-7:] == [
        "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[-5]["content_block"]["name"] == "look"
    assert events[-5]["index"] == 1
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_whole_answers_that_end_in_a_tool_call() -> None:
    chat = json.loads(ChatAnswer(context(tool="look")).whole(USAGE, WORDS, "tool_calls"))["choices"][0]
    assert (chat["finish_reason"], chat["message"]["tool_calls"][0]["function"]["name"]) == ("tool_calls", "look")
    message = json.loads(MessagesAnswer(context(tool="look")).whole(USAGE, WORDS, "tool_calls"))
    assert message["stop_reason"] == "tool_use"
    assert [block["type"] for block in message["content"]] == ["text", "tool_use"]


def test_completions_stream_one_chunk_per_token() -> None:
    chunks = data(streamed(CompletionAnswer(CONTEXT)))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == WORDS
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "length"]


def test_several_tokens_at_once_are_still_one_event_each() -> None:
    for kind in (ChatAnswer, CompletionAnswer, MessagesAnswer):
        answer = kind(context(include_usage=True, continuous_usage=True))
        single = answer.tokens(WORDS[:1], 0, None) + answer.tokens(WORDS[1:], 1, "length")
        assert answer.tokens(WORDS, 0, "length") == single


def test_errors_have_the_form_of_their_api() -> None:
    assert json.loads(error_body("chat", 400, "no")) == {
        "error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}
    }
    assert json.loads(error_body("messages", 404, "no")) == {
        "type": "error",
        "error": {"type": "NotFoundError", "message": "no"},
    }
    assert json.loads(error_body("messages", 500, "no", kind="internal_error"))["error"]["type"] == "internal_error"
    assert json.loads(error_body("responses", 503, "no"))["error"]["type"] == "InternalServerError"
