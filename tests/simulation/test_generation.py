"""What a request asks for: lengths, streams, and refusals in vLLM's words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lmwarden.simulation.generation import Generation, RequestError, parse_generation
from lmwarden.simulation.options import SimulatedEngineOptions
from lmwarden.simulation.prompts import BadRequestError
from lmwarden.simulation.protocol import Api

OPTIONS = SimulatedEngineOptions(model="m", max_answer_tokens=100)


def parse(
    api: Api, max_model_len: int = 1000, /, *, options: SimulatedEngineOptions = OPTIONS, **fields: object
) -> Generation:
    prompts: dict[Api, dict[str, object]] = {
        "chat": {"messages": [{"role": "user", "content": "hi"}]},
        "messages": {"messages": [{"role": "user", "content": "hi"}]},
        "completions": {"prompt": "hi"},
        "responses": {"input": "hi"},
    }
    return parse_generation(api, {"model": "m", **prompts[api], **fields}, options, max_model_len)


def length(generation: Generation) -> tuple[int, str]:
    return generation.output_tokens, generation.finish


def test_max_tokens_is_exact_up_to_where_the_model_ends_by_itself() -> None:
    assert length(parse("chat", max_tokens=7)) == (7, "length")
    assert length(parse("chat", max_tokens=100)) == (100, "length")
    assert length(parse("chat", max_tokens=500)) == (100, "stop")
    assert length(parse("chat", max_tokens=500, ignore_eos=True)) == (500, "length")
    assert length(parse("chat", max_tokens=500, min_tokens=300)) == (300, "stop")
    assert length(parse("chat", max_tokens=500, min_tokens=900)) == (500, "length")


def test_each_api_has_its_field_and_default() -> None:
    assert length(parse("chat", max_completion_tokens=5, max_tokens=9)) == (5, "length")
    assert length(parse("responses", max_output_tokens=5)) == (5, "length")
    assert length(parse("chat")) == (256, "stop")
    assert length(parse("completions")) == (16, "length")
    with pytest.raises(BadRequestError, match="max_tokens: Field required"):
        parse("messages")


def test_the_context_bounds_the_answer() -> None:
    assert len(parse("chat", max_tokens=1).tokens) == 4
    assert length(parse("chat", 10, max_tokens=50)) == (6, "length")
    with pytest.raises(BadRequestError, match=r"maximum context length is 4 tokens\. However, your prompt contains 4"):
        parse("chat", 4, max_tokens=50)


@pytest.mark.parametrize(
    ("api", "field", "named"),
    [
        ("chat", "max_tokens", "max_tokens"),
        ("chat", "max_completion_tokens", "max_completion_tokens"),
        ("completions", "max_tokens", "max_tokens"),
        ("messages", "max_tokens", "max_completion_tokens"),
        ("responses", "max_output_tokens", "max_output_tokens"),
    ],
)
def test_a_limit_above_the_whole_context_is_refused_by_the_newer_vllm_only(api: Api, field: str, named: str) -> None:
    newer = msgspec.structs.replace(OPTIONS, balancer="0.27")
    above: dict[str, Any] = {field: 51}
    whole: dict[str, Any] = {field: 50}
    with pytest.raises(BadRequestError) as caught:
        parse(api, 50, options=newer, **above)
    assert str(caught.value) == (
        f"{named}=51 cannot be greater than max_model_len=50. Please request fewer output tokens."
        f" (parameter={named}, value=51)"
    )
    assert caught.value.param == named
    assert parse(api, 50, options=newer, **whole).finish == "length"
    assert parse(api, 50, options=OPTIONS, **above).finish == "length"


def test_usage_in_a_stream_must_be_asked_for() -> None:
    def wants(options: object) -> tuple[bool, bool]:
        generation = parse("chat", stream=True, stream_options=options)
        return generation.include_usage, generation.continuous_usage

    assert wants(None) == (False, False)
    assert wants({"include_usage": True}) == (True, False)
    assert wants({"include_usage": True, "continuous_usage_stats": True}) == (True, True)
    assert wants({"continuous_usage_stats": True}) == (False, False)


def test_another_model_is_not_found_and_none_is_the_served_one() -> None:
    with pytest.raises(RequestError, match="The model `x` does not exist") as caught:
        parse("chat", model="x")
    assert caught.value.status == 404
    assert parse("chat", model=None).model is None
    with pytest.raises(BadRequestError, match="model"):
        parse("messages", model=None, max_tokens=1)


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 0}, {"max_tokens": "7"}, {"max_tokens": True}, {"n": 2}, {"model": 7}]
)
def test_bad_values_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        parse("chat", **fields)


# -- tool calls ------------------------------------------------------------------------------------------------------


def chat_tool(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": {}}}


CHAT_TOOLS = [chat_tool("first"), chat_tool("second")]
MESSAGES_TOOLS = [{"name": "first", "input_schema": {}}, {"name": "second", "input_schema": {}}]


@pytest.mark.parametrize(
    ("api", "tools", "choice", "calls", "calls_always"),
    [
        ("chat", CHAT_TOOLS, None, "", "first"),
        ("chat", CHAT_TOOLS, "auto", "", "first"),
        ("chat", CHAT_TOOLS, "none", "", ""),
        ("chat", CHAT_TOOLS, "required", "first", "first"),
        ("chat", CHAT_TOOLS, {"type": "function", "function": {"name": "second"}}, "second", "second"),
        ("chat", [], "required", "", ""),
        ("messages", MESSAGES_TOOLS, None, "", "first"),
        ("messages", MESSAGES_TOOLS, {"type": "auto"}, "", "first"),
        ("messages", MESSAGES_TOOLS, {"type": "none"}, "", ""),
        ("messages", MESSAGES_TOOLS, {"type": "any"}, "first", "first"),
        ("messages", MESSAGES_TOOLS, {"type": "tool", "name": "second"}, "second", "second"),
        ("responses", CHAT_TOOLS, "required", "", ""),
        ("completions", CHAT_TOOLS, "required", "", ""),
    ],
)
def test_who_is_asked_for_a_tool_call_makes_one(
    api: Api, tools: object, choice: object, calls: str, calls_always: str
) -> None:
    fields = {"max_tokens": 7, "tools": tools} | ({} if choice is None else {"tool_choice": choice})
    for options, expected in ((OPTIONS, calls), (msgspec.structs.replace(OPTIONS, tool_calls=True), calls_always)):
        generation = parse(api, options=options, **fields)
        assert generation.tool == expected
        assert (generation.finish == "tool_calls") is bool(expected)
        if api != "responses":
            assert generation.output_tokens == 7
