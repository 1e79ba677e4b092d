"""The traffic of the real Claude Code client, replayed against the gateway with the real router.

One engine with four ranks stands behind it and answers as the scripted server of the capture did. Every scenario
must come out with what the client needs: each request reaches the engine whole and unchanged, with exactly one
rank; a conversation stays at its home whatever the client does between; and at rest nothing is in flight.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import pytest
from tests.claude_code import API_KEY, ShapedRequest, scenarios
from tests.gateway.claude_code_replay import (
    INDEX_HEADER,
    STREAM,
    WHOLE,
    Arrival,
    Received,
    ReplayEngine,
    replay,
)

from lmwarden.gateway.gateway import Gateway
from lmwarden.gateway.settings import ServedModel
from lmwarden.routing.router import Router
from lmwarden.types import (
    Decision,
    EngineEndpoint,
    KeyIdentity,
    Outcome,
    ReplicaCapacity,
    ReplicaId,
    RequestRecord,
    RouterView,
    RoutingSettings,
)

MODEL = "qwen3-coder"
RANKS = 4
THRESHOLD = 8
SILENCES = {
    "silent_after_headers_330s_2.1.332": "after head",
    "silent_after_message_start_330s_2.1.332": "after event",
}
# Of one connection or one hop; the credential is the client's own and must not go on.
NOT_PASSED_ON = {"connection", "accept-encoding", "authorization", "x-api-key", "content-length", "host"}


class _Keys:
    required = True

    def check(self, credential: bytes) -> KeyIdentity | None:
        return KeyIdentity("agent", b"digest") if credential == API_KEY.encode() else None

    def still_good(self, key: KeyIdentity) -> KeyIdentity | None:
        return key


class _Rows(list[RequestRecord]):
    record = list.append


@dataclass(frozen=True)
class Played:
    """A scenario after the replay."""

    requests: Sequence[ShapedRequest]
    outcomes: Sequence[Received]
    arrivals: dict[int, list[Arrival]]
    most_open_requests: int
    view: RouterView
    rows: Sequence[RequestRecord]

    def decision(self, index: int) -> str | None:
        """The decision that the client was told."""
        return self.outcomes[index].headers.get("x-lmwarden-decision")

    def replica(self, index: int) -> str:
        """Where the engine saw the request, written as we write a replica."""
        return f"e0/{self.arrivals[index][-1].all('x-data-parallel-rank')[0]}"

    def generations(self) -> list[int]:
        """Indexes of the requests that asked the model to write something."""
        return [index for index, request in enumerate(self.requests) if request.is_generation]


async def _play(name: str) -> Played:
    return await _play_requests(scenarios()[name], SILENCES.get(name, "before head"))


async def _play_requests(requests: Sequence[ShapedRequest], silence: str = "before head") -> Played:
    async with _engine(requests, silence) as (engine, engine_port):
        router = Router(RoutingSettings(), engines={"e0": RANKS})
        for rank in range(RANKS):
            router.replica_up(ReplicaId("e0", rank), ReplicaCapacity(max_num_seqs=32), "boot", 0.0)
        endpoint = EngineEndpoint(
            engine="e0", host="127.0.0.1", port=engine_port, ranks=RANKS, model=MODEL, api_key="key-of-the-engine"
        )
        rows = _Rows()
        served = ServedModel(
            name=MODEL, router=router, engines={"e0": endpoint}, identity_secret=b"secret", aliases=("claude-*",)
        )
        gateway = Gateway([served], _Keys(), rows)
        await gateway.start("127.0.0.1", 0)
        try:
            outcomes = await replay(requests, engine, gateway.port)
        finally:
            await gateway.stop(drain_s=0)
        view = router.view(gateway.clock())
        return Played(requests, outcomes, engine.arrivals, engine.most_open_requests, view, rows)


@contextlib.asynccontextmanager
async def _engine(requests: Sequence[ShapedRequest], silence: str) -> AsyncIterator[tuple[ReplayEngine, int]]:
    engine = ReplayEngine(requests, silence)
    port = await engine.start()
    try:
        yield engine, port
    finally:
        await engine.stop()


# -- what holds for every scenario ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(scenarios()))
async def test_every_request_arrives_whole_and_the_answer_goes_back_whole(name: str) -> None:
    played = await _play(name)

    for index, request in enumerate(played.requests):
        outcome = played.outcomes[index]
        if request.method != "POST":
            assert index not in played.arrivals, "answered by the gateway itself"
            assert outcome.status == 200
            continue
        for arrival in played.arrivals[index]:
            _assert_passed_on(request, arrival)
        _assert_relayed(request, outcome)

    assert played.view.in_flight == 0
    assert all(replica.in_flight == 0 for replica in played.view.replicas)
    posts = [request for request in played.requests if request.method == "POST"]
    assert sum(played.view.decisions.values()) == len(posts) == len(played.rows)
    assert played.view.refused == 0


def _assert_passed_on(request: ShapedRequest, arrival: Arrival) -> None:
    assert arrival.request_line == f"POST {request.path} HTTP/1.1"
    # An alias becomes the engine's name for the model; nothing else of the body changes.
    renamed = re.sub(rb'"model":"claude-[^"]*"', b'"model":"qwen3-coder"', request.body, count=1)
    assert arrival.body == renamed
    for header, value in request.headers:
        if header.lower() not in NOT_PASSED_ON:
            assert arrival.all(header) == [value]
    assert arrival.all("x-api-key") == []
    assert arrival.all("authorization") == ["Bearer key-of-the-engine"]
    assert arrival.all("content-length") == [str(len(arrival.body))]
    assert len(arrival.all("x-data-parallel-rank")) == (1 if request.is_generation else 0)


def _assert_relayed(request: ShapedRequest, outcome: Received) -> None:
    reply = request.reply
    if reply.startswith(("cut rst", "EXC")):
        assert not outcome.complete, "a break must not look like an end"
        return
    assert outcome.complete
    if reply[:3].isdigit():
        assert outcome.status == int(reply[:3])
        assert b'"type": "error"' in outcome.body
        assert outcome.headers.get("retry-after") == ("3" if reply == "429" else None)
        return
    assert outcome.status == 200
    if not request.members.get("stream"):
        assert outcome.body == WHOLE.encode()
    elif "errev" in reply:
        assert outcome.body.startswith("".join(STREAM[:3]).encode() + b"event: error\n")
    else:
        assert outcome.body == "".join(STREAM).encode()


@pytest.mark.parametrize("name", sorted(scenarios()))
async def test_a_conversation_never_leaves_its_home(name: str) -> None:
    """A conversation is (session, agent). Title calls belong to none and settle nothing."""
    played = await _play(name)
    homes: dict[tuple[str | None, str | None], str] = {}

    for index in played.generations():
        request = played.requests[index]
        if request.is_title:
            assert played.decision(index) == Decision.BALANCED
            continue
        conversation = (request.session, request.agent)
        expected = Decision.STICKY if conversation in homes else Decision.PLACED
        assert played.replica(index) == homes.setdefault(conversation, played.replica(index))
        # A client that left, or was cut off before the head, was told nothing.
        assert played.decision(index) in (expected, None)
    assert played.view.decisions[Decision.PLACED] == len(homes)
    assert played.view.decisions[Decision.SPILLED] == played.view.decisions[Decision.REHOMED] == 0


# -- what single scenarios are there for ------------------------------------------------------------------------


async def test_fourteen_subagents_at_once_start_close_together_but_not_all_on_one_replica() -> None:
    played = await _play("fanout_14_subagents_2.1.332")
    agents = [index for index in played.generations() if played.requests[index].agent]

    assert len(agents) == 14
    assert played.most_open_requests == 14
    assert {played.decision(index) for index in agents} == {Decision.PLACED}
    per_replica = Counter(played.replica(index) for index in agents)
    assert max(per_replica.values()) <= THRESHOLD + 1
    assert len(per_replica) == 2, "siblings share three quarters of their prompt: no more caches than needed"
    # The main conversation goes on where it was, whatever its subagents did.
    first, last = (index for index in played.generations() if not played.requests[index].agent)
    assert played.decision(last) == Decision.STICKY
    assert played.replica(last) == played.replica(first)


async def test_two_subagents_and_the_main_turn_run_at_the_same_time() -> None:
    played = await _play("subagents_parallel_2.1.332_hints")

    assert played.most_open_requests == 3
    assert played.view.decisions[Decision.PLACED] == 3
    assert played.view.decisions[Decision.STICKY] == len(played.requests) - 3


async def test_a_nested_subagent_is_a_conversation_of_its_own() -> None:
    played = await _play("nested_subagent_2.1.332")

    nested = [i for i, r in enumerate(played.requests) if r.header("x-claude-code-parent-agent-id")]
    assert [played.decision(index) for index in nested] == [Decision.PLACED]
    assert played.view.conversations == 3


async def test_title_calls_beside_the_main_turn_bind_nothing() -> None:
    """The old client sends the title first, on a new session: it must not become the conversation's first turn."""
    for name in ("interactive_2.1.197", "interactive_2.1.332_hints_on_with_compact"):
        played = await _play(name)
        titles = [request for request in played.requests if request.is_title]
        assert len(titles) == 2
        assert played.view.decisions[Decision.BALANCED] == 2
        assert played.view.conversations == 1


async def test_compaction_stays_at_home_and_so_does_the_turn_after_it() -> None:
    manual = await _play("interactive_2.1.332_hints_on_with_compact")
    reactive = await _play("reactive_compaction_vllm_error_2.1.332")

    for played in (manual, reactive):
        compactions = [
            index
            for index, request in enumerate(played.requests)
            if request.header("x-claude-code-request-class") == "compaction"
        ]
        assert compactions
        assert {played.decision(index) for index in compactions} == {Decision.STICKY}
    # What made the client compact was vLLM's own sentence, untouched.
    assert b"maximum context length is 4096 tokens" in reactive.outcomes[3].body
    assert reactive.requests[5].header("x-claude-code-context-compacted") == "reactive"
    assert reactive.decision(5) == Decision.STICKY


async def test_a_503_is_sent_again_once_and_then_the_clients_own_retries_find_home() -> None:
    """The client says Retry-Count 0 on every retry: nothing may depend on that header."""
    played = await _play("retry_503_2.1.332")

    assert [request.header("x-stainless-retry-count") for request in played.requests] == ["0"] * 4
    assert [len(played.arrivals[index]) for index in range(4)] == [2, 2, 2, 1]
    assert [outcome.status for outcome in played.outcomes] == [503, 503, 503, 200]
    assert [row.retried for row in played.rows] == [True, True, True, False]


async def test_a_429_is_not_sent_again() -> None:
    played = await _play("retry_429_ra3_2.1.332")

    assert [len(played.arrivals[index]) for index in range(3)] == [1, 1, 1]


async def test_after_an_error_event_the_call_that_is_not_streamed_goes_home() -> None:
    played = await _play("sse_error_then_nonstream_2.1.332")

    assert [request.members["stream"] for request in played.requests] == [True, False]
    assert [played.decision(index) for index in range(2)] == [Decision.PLACED, Decision.STICKY]
    assert [row.outcome for row in played.rows] == ["failed", "ok"]


@pytest.mark.parametrize("name", ["cut_in_tool_use_2.1.332", "cut_mid_text_2.1.197"])
async def test_a_cut_stream_is_cut_for_the_client_too_and_never_sent_again_by_us(name: str) -> None:
    played = await _play(name)
    cut, again = played.generations()

    assert len(played.arrivals[cut]) == 1
    assert played.outcomes[cut].body.startswith("".join(STREAM[:3]).encode())
    assert played.decision(again) == Decision.STICKY
    assert [row.outcome for row in played.rows] == ["failed", "ok"]


@pytest.mark.parametrize(
    "name",
    [
        "silent_after_headers_330s_2.1.332",
        "silent_after_message_start_330s_2.1.332",
        "no_headers_retry_at_361s_2.1.332",
        "no_headers_retry_at_297s_2.1.197",
        "nonstream_300s_timeout_2.1.332",
    ],
)
async def test_a_client_that_gives_up_on_silence_frees_the_engine(name: str) -> None:
    """The replay waits until the engine's connection is closed; what is left to see is how it was counted."""
    played = await _play(name)

    left = [i for i, r in enumerate(played.requests) if r.reply.startswith("EXC")]
    assert len(left) == 1
    assert len(played.arrivals[left[0]]) == 1
    outcomes = Counter(row.outcome for row in played.rows)
    assert outcomes[Outcome.CANCELLED] == 1
    assert outcomes[Outcome.OK] == 1


async def test_a_fork_starts_where_the_conversation_is_whose_prompt_it_extends() -> None:
    played = await _play("session_continue_resume_fork_compact_context_2.1.332")
    sessions = [played.requests[index].session for index in played.generations()]
    fork = next(index for index in played.generations() if played.requests[index].session != sessions[0])

    assert played.decision(fork) == Decision.PLACED
    assert played.replica(fork) == played.replica(0)


async def test_twenty_four_count_tokens_calls_move_nothing() -> None:
    played = await _play("session_continue_resume_fork_compact_context_2.1.332")
    counting = [i for i, r in enumerate(played.requests) if "count_tokens" in r.path]

    assert len(counting) == 24
    assert {played.decision(index) for index in counting} == {Decision.UNROUTED}
    assert played.most_open_requests >= 5
    assert played.view.conversations == 2


async def test_tools_that_change_in_the_middle_do_not_move_the_conversation() -> None:
    played = await _play("toolsearch_changes_tools_2.1.332")

    assert [len(request.members["tools"]) for request in played.requests] == [12, 14, 14]
    assert [played.decision(index) for index in range(3)] == ["placed", "sticky", "sticky"]


async def test_system_messages_between_the_others_are_left_where_they_are() -> None:
    played = await _play("midconv_system_rejected_2.1.332")

    roles = [[message["role"] for message in request.members["messages"]] for request in played.requests]
    assert roles == [["user", "system"], ["user"], ["user", "assistant", "user"]]
    # The engine refuses the role, the client lays its messages out anew, and all three are one conversation.
    assert [outcome.status for outcome in played.outcomes] == [400, 200, 200]
    assert [played.decision(index) for index in range(3)] == ["placed", "sticky", "sticky"]


async def test_two_sessions_of_one_user_are_two_conversations_on_two_replicas() -> None:
    first, second = (scenarios()[f"two_sessions_{letter}_2.1.332"] for letter in "AB")
    assert first[0].members["tools"] == second[0].members["tools"]
    together = [*first, *(replace(request, connection=request.connection + 100) for request in second)]

    played = await _play_requests(together)

    homes = {
        session: {played.replica(i) for i, request in enumerate(together) if request.session == session}
        for session in (first[0].session, second[0].session)
    }
    assert [len(replicas) for replicas in homes.values()] == [1, 1]
    assert len(set.union(*homes.values())) == 2


def test_the_shapes_have_the_captured_sizes() -> None:
    for requests in scenarios().values():
        for request in requests:
            assert abs(len(request.body) - request.captured_body_bytes) <= 0.05 * request.captured_body_bytes
            assert not request.header(INDEX_HEADER.lower())
