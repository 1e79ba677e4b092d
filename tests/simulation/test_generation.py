"""What a request asks for: lengths, streams, and refusals in vLLM's words."""

from __future__ import annotations

import pytest

from lmwarden.simulation.generation import Generation, RequestError, parse_generation
from lmwarden.simulation.options import SimulatedEngineOptions
from lmwarden.simulation.prompts import BadRequestError
from lmwarden.simulation.protocol import Api

OPTIONS = SimulatedEngineOptions(model="m", max_answer_tokens=100)


def parse(api: Api, max_model_len: int = 1000, /, **fields: object) -> Generation:
    prompts: dict[Api, dict[str, object]] = {
        "chat": {"messages": [{"role": "user", "content": "hi"}]},
        "messages": {"messages": [{"role": "user", "content": "hi"}]},
        "completions": {"prompt": "hi"},
        "responses": {"input": "hi"},
    }
    return parse_generation(api, {"model": "m", **prompts[api], **fields}, OPTIONS, max_model_len)


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
def test_bad_values_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(BadRequestError):
        parse("chat", **fields)
