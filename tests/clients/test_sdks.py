"""The OpenAI and Anthropic SDKs: answers, usage and errors arrive as if they talked to the engine itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.clients.answers import Failure, Reply
from tests.clients.conftest import HouseMaker
from tests.clients.house import MODEL, House
from tests.clients.programs import Clients
from tests.clients.scripted_engine import Seen
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.clients

OPENAI, ANTHROPIC = "sdk_openai", "sdk_anthropic"
NAMES_CHAT = ("prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens")
NAMES_RESPONSES = ("input_tokens", "output_tokens", "input_tokens_details", "cached_tokens")


async def call(clients: Clients, house: House, sdk: str, name: str, **other: str) -> dict[str, Any]:
    """Make one call by an SDK."""
    key, model = other.get("key", "unused"), other.get("model", MODEL)
    done = await clients.python_script(f"{sdk}.py", name, house.warden.client_url, key, model)
    assert done.status == 0, done.errors
    return done.json


def openai_counts(usage: dict[str, Any], names: tuple[str, ...]) -> tuple[int, int, int]:
    """(prompt, cached, completion) tokens."""
    prompt, completion, details, cached = names
    return usage[prompt], usage[details][cached], usage[completion]


def anthropic_counts(usage: dict[str, Any]) -> tuple[int, int, int]:
    """(prompt, cached, completion) tokens."""
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached + usage["cache_creation_input_tokens"], cached, usage["output_tokens"]


async def test_openai_chat_streamed_or_not_with_or_without_usage(make_house: HouseMaker, clients: Clients) -> None:
    house = await make_house(ranks=4)

    whole = await call(clients, house, OPENAI, "chat")
    quiet = await call(clients, house, OPENAI, "chat_stream")
    told = await call(clients, house, OPENAI, "chat_stream_with_usage")

    assert [answer["text"] for answer in (whole, quiet, told)] == ["Hello."] * 3
    assert (quiet["usages"], quiet["chunks_without_choice"]) == ([], 0), "it did not ask for usage"
    assert told["chunks_without_choice"] == 1
    seen = house.engines[0].seen
    assert len({request.replica for request in seen}) == 1
    rows = await house.rows(3)
    assert [row["decision"] for row in rows] == ["placed", "sticky", "sticky"]
    counted = [(row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) for row in rows]
    assert counted[0] == openai_counts(whole["usage"], NAMES_CHAT)
    assert counted[2] == openai_counts(told["usages"][0], NAMES_CHAT)
    assert [row[:2] for row in counted] == [(request.prompt_tokens, request.cached_tokens) for request in seen]
    assert counted[1][1] > 0


async def test_openai_responses_stay_on_an_engine_of_one_rank(make_house: HouseMaker, clients: Clients) -> None:
    house = await make_house(engines=3)

    whole = await call(clients, house, OPENAI, "responses")
    streamed = await call(clients, house, OPENAI, "responses_stream")

    assert (whole["text"], streamed["text"]) == ("Hello.", "Hello.")
    assert len({request.replica for request in house.seen}) == 1
    rows = await house.rows(2)
    assert [row["decision"] for row in rows] == ["placed", "sticky"]
    counts = [openai_counts(answer["usage"], NAMES_RESPONSES) for answer in (whole, streamed)]
    assert [(row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) for row in rows] == counts
    assert counts[1][1] > 0


async def test_anthropic_messages_streamed_or_not(make_house: HouseMaker, clients: Clients) -> None:
    house = await make_house(ranks=4)

    whole = await call(clients, house, ANTHROPIC, "messages")
    streamed = await call(clients, house, ANTHROPIC, "messages_stream")
    counted = await call(clients, house, ANTHROPIC, "count_tokens")

    assert (whole["text"], streamed["text"]) == ("Hello.", "Hello.")
    assert streamed["stop_reason"] == "end_turn"
    assert counted["input_tokens"] == house.seen[0].prompt_tokens
    assert len({request.replica for request in house.seen}) == 1
    rows = await house.rows(2)
    assert [row["decision"] for row in rows] == ["placed", "sticky"]
    counts = [anthropic_counts(answer["usage"]) for answer in (whole, streamed)]
    assert [(row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) for row in rows] == counts
    assert counts[1][1] > 0


@pytest.mark.parametrize(("sdk", "name"), [(OPENAI, "chat"), (OPENAI, "responses_stream"), (ANTHROPIC, "messages")])
async def test_our_refusals_are_the_sdks_own_exceptions(
    make_house: HouseMaker, clients: Clients, sdk: str, name: str
) -> None:
    house = await make_house(require_key=True)
    assert house.key is not None

    no_model = await call(clients, house, sdk, name, key=house.key, model="nonesuch")
    no_key = await call(clients, house, sdk, name, key="lmw_wrong")
    right = await call(clients, house, sdk, name, key=house.key)

    assert (no_model["error"], no_model["status"]) == ("NotFoundError", 404)
    assert "is not served here" in str(no_model["body"])
    assert (no_key["error"], no_key["status"]) == ("AuthenticationError", 401)
    assert right["text"] == "Hello."
    assert len(house.seen) == 1, "what we refuse never reaches an engine"


@pytest.mark.parametrize(("sdk", "name"), [(OPENAI, "chat"), (ANTHROPIC, "messages_stream")])
@pytest.mark.parametrize("status", [503, 529])
async def test_overload_is_asked_again_by_the_sdk(
    make_house: HouseMaker, clients: Clients, sdk: str, name: str, status: int
) -> None:
    house = await make_house()

    async def overloaded_twice(seen: Seen) -> Reply | Failure:
        # A 503 of an engine is sent again by the warden before the client hears of it.
        busy = len(house.seen) <= (4 if status == 503 else 2)
        return Failure(status, "Overloaded", {"Retry-After": "1"}) if busy else Reply("At last.")

    house.think(overloaded_twice)

    answer = await call(clients, house, sdk, name)

    assert answer["text"] == "At last."


@pytest.mark.parametrize(("sdk", "name"), [(OPENAI, "chat_stream_cancelled"), (ANTHROPIC, "messages_stream_cancelled")])
async def test_a_stream_that_is_left_ends_in_the_engine(
    make_house: HouseMaker, clients: Clients, sdk: str, name: str
) -> None:
    house = await make_house()

    async def begin_and_stall(seen: Seen) -> Reply | Failure:
        return Reply("It is a long story.", stalls_after=3)

    house.think(begin_and_stall)

    left = await call(clients, house, sdk, name)

    assert left["text"] == "It "
    await asyncio.wait_for(house.seen[0].over.wait(), PATIENCE_S)
    assert house.seen[0].outcome == "left"
    await until(lambda: house.warden.routing()["in_flight"] == 0, house.warden.routing)
    assert [row["outcome"] for row in await house.rows(1)] == ["cancelled"]


async def test_what_connect_prints_for_the_openai_sdk_runs_as_it_is(make_house: HouseMaker, clients: Clients) -> None:
    house = await make_house(ranks=2)
    printed = await clients.connect("openai", house.warden.client_url)

    done = await clients.python_text(f"{printed}\nprint(answer.choices[0].message.content)")
    again = await clients.python_text(printed)

    assert (done.status, done.output, again.status) == (0, "Hello.\n", 0)
    assert [row["decision"] for row in await house.rows(2)] == ["placed", "sticky"]
    listed = await call(clients, house, OPENAI, "models")
    assert listed["models"] == [MODEL, house.engines[0].model]
