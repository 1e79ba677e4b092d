"""D13 to D15, D20: what passes by is counted, and its head tells what its body is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.field_cases.house import FEW, PATHS, STREAMS, answer_as_asked, house, in_chunks, run, turn
from tests.gateway.conftest import post
from tests.ledger.counting import counted
from tests.stub_engine import CHAT, MESSAGE, Peer, Seen, head, raw, whole

from lmwarden.ledger.history_sums import WHOLE, Sums, add_up
from lmwarden.types import Outcome, RequestRecord

# -- D13 -----------------------------------------------------------------------------------------------------------

OPTIONS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "include_usage": st.sampled_from([True, False, None]),
        "continuous_usage_stats": st.booleans(),
        "novelty": st.integers(0, 9),
    },
)
USAGE_CHUNK = b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":7}}\n\n'


@FEW
@given(options=OPTIONS, absent=st.booleans(), cut=st.integers(1, 60), path=st.sampled_from(PATHS[1:3]))
def test_d13_usage_is_always_known_and_its_chunk_seen_by_who_asked_for_it(
    options: dict[str, Any] | None, absent: bool, cut: int, path: str
) -> None:
    async def honours(peer: Peer, seen: Seen) -> None:
        events, end = STREAMS[path]
        wanted = json.loads(seen.body).get("stream_options") or {}
        text = b"".join([*events, USAGE_CHUNK if wanted.get("include_usage") else b"", end])
        await in_chunks([text[at : at + cut] for at in range(0, len(text), cut)])(peer, seen)

    async def scenario() -> None:
        async with house({"m": {"e0": 1}}) as made:
            made.engines["e0"].default = honours
            members: dict[str, Any] = {} if absent else {"stream_options": options}
            response = await made.ask(path, turn(stream=True, **members))
            asked = not absent and options is not None and options.get("include_usage") is True
            assert response.complete
            assert (USAGE_CHUNK in response.body) is asked
            events, end = STREAMS[path]
            assert response.body.replace(USAGE_CHUNK, b"") == b"".join([*events, end])
            await made.at_rest()
            row = made.last_row()
            assert (row.prompt_tokens, row.completion_tokens) == (100, 7)
            sent = json.loads(made.engines["e0"].seen[0].body)["stream_options"]
            assert sent.get("novelty") == (None if absent or options is None else options.get("novelty"))
            body = turn(stream=False, **members)
            await made.ask(path, body)
            assert json.loads(made.engines["e0"].seen[1].body) == body

    run(scenario())


# -- D14, D15 --------------------------------------------------------------------------------------------------------

DETAILS = st.sampled_from([None, {}, {"cached_tokens": None}, {"cached_tokens": 0}, {"cached_tokens": 900}])
ODD = st.sampled_from(["900", -1, 10**30, 1.5, True, [], {}])


@FEW
@given(
    prompt=st.just(1000) | ODD,
    details=DETAILS | ODD.map(lambda odd: {"cached_tokens": odd}) | ODD,
    streamed=st.booleans(),
)
def test_d14_whatever_the_usage_says_it_passes_and_unknown_is_not_zero(
    prompt: Any, details: Any, streamed: bool
) -> None:
    usage = {"prompt_tokens": prompt, "completion_tokens": 5, "prompt_tokens_details": details}
    body = json.dumps({"choices": [{"finish_reason": "stop"}], "usage": usage}).encode()
    events = [b"data: %b\n\n" % body, b"data: [DONE]\n\n"]

    async def scenario() -> None:
        async with house({"m": {"e0": 1}}) as made:
            made.engines["e0"].default = in_chunks(events) if streamed else whole(body)
            response = await made.ask(
                "/v1/chat/completions", turn(stream=streamed, stream_options={"include_usage": True})
            )
            assert response.complete
            assert response.body == (b"".join(events) if streamed else body)
            await made.at_rest()
            row = made.last_row()
            if prompt == 1000 and (details is None or isinstance(details, dict)):
                told = (details or {}).get("cached_tokens")
                if told is None or (type(told) is int and 0 <= told <= 1000):
                    assert (row.prompt_tokens, row.cached_tokens) == (1000, told)
            assert row.cached_tokens is None or 0 <= row.cached_tokens <= 1000
            assert row.outcome is Outcome.OK

    run(scenario())


async def test_d15_both_apis_give_one_hit_ratio() -> None:
    async with house({"m": {"e0": 1}}) as made:
        chat = {
            **CHAT,
            "usage": {"prompt_tokens": 1000, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 900}},
        }
        usage = {
            "input_tokens": 100,
            "output_tokens": 1,
            "cache_read_input_tokens": 900,
            "cache_creation_input_tokens": 0,
        }
        made.engines["e0"].script.extend([whole(chat), whole({**MESSAGE, "usage": usage})])
        await made.ask("/v1/chat/completions", turn())
        await made.ask("/v1/messages", turn())
        await made.at_rest()
        for row in made.rows:
            assert (row.prompt_tokens, row.cached_tokens) == (1000, 900)
        assert _sums(made.rows).cached_ratio == 0.9
        assert all(_sums([row]).cached_ratio == 0.9 for row in made.rows)
        assert _sums([]).cached_ratio is None, "n/a, and not 0 %"


def _sums(rows: list[RequestRecord]) -> Sums:
    """As the console adds them up."""
    return add_up(sums for spot, sums in counted(rows).items() if spot.replica == WHOLE)


# -- D20 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("coding", ["", "Content-Encoding: gzip\r\n"])
async def test_d20_an_answer_without_a_body_has_none(status: int, coding: str) -> None:
    async with house({"m": {"e0": 1}}) as made:
        made.engines["e0"].default = raw(head(status) + f"{coding}\r\n".encode())
        client = await made.connect()
        await client.send(post("/v1/chat/completions", turn()))
        response = await client.response()
        assert (response.status, response.body, response.complete) == (status, b"", True)
        made.engines["e0"].default = answer_as_asked
        await client.send(post("/v1/chat/completions", turn()))
        assert (await client.response()).status == 200, "the connection goes on in step"


async def test_d20_an_answer_with_two_framings_is_passed_on_with_one_or_not_at_all() -> None:
    async with house({"m": {"e0": 1}}) as made:
        made.engines["e0"].default = raw(
            head() + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", then="close"
        )
        response = await made.ask("/v1/chat/completions", turn())
        framings = response.values("Content-Length") + response.values("Transfer-Encoding")
        assert len(framings) == 1
        assert response.status == 502 or response.body == b"{}"
