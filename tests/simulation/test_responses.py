"""The events of ``/v1/responses``."""

from __future__ import annotations

import json

from lmwarden.simulation.protocol import AnswerContext, TokenUsage
from lmwarden.simulation.responses import ResponsesAnswer

USAGE = TokenUsage(prompt_tokens=20, completion_tokens=2, cached_tokens=16, created_cache_tokens=0)
WORDS = ["kab ", "dob."]


def answer(*, cache_details: bool = True) -> ResponsesAnswer:
    context = AnswerContext(
        base_id="1",
        created=5,
        model="tiny",
        fingerprint="x",
        prompt_tokens=20,
        include_usage=False,
        continuous_usage=False,
        cache_details=cache_details,
        legacy=False,
    )
    return ResponsesAnswer(context, 2)


def test_a_stream_is_numbered_and_ends_with_the_whole_response() -> None:
    it = answer()
    stream = (it.begin() + it.tokens(WORDS, 0, "stop") + it.end(USAGE, WORDS, "stop")).decode()
    names = [line.removeprefix("event: ") for line in stream.splitlines() if line.startswith("event: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["type"] for event in events] == names
    assert [event["sequence_number"] for event in events] == list(range(10))
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == "kab dob."
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 16
    assert response["usage"]["total_tokens"] == 22


def test_an_answer_cut_by_its_limit_is_incomplete() -> None:
    response = json.loads(answer().whole(USAGE, WORDS, "length"))
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_without_the_option_no_cached_tokens_are_shown() -> None:
    response = json.loads(answer(cache_details=False).whole(USAGE, WORDS, "stop"))
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 0
