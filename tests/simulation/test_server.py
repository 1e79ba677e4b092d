"""The simulated vLLM over HTTP, as a client sees it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.waiting import until

import lmwarden
from lmwarden.simulation.options import SimulatedEngineOptions
from lmwarden.simulation.server import serving

SYSTEM = "You are careful. " * 40
CHAT = {"model": "m", "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "hi"}]}
MESSAGES = {"model": "m", "system": SYSTEM, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**CHAT, "max_tokens": 3},
    "/v1/completions": {"model": "m", "prompt": list(range(100)), "max_tokens": 3},
    "/v1/messages": MESSAGES,
    "/v1/responses": {"model": "m", "input": "hi " * 50, "max_output_tokens": 3},
}
COUNTING: dict[str, dict[str, Any]] = {"/v1/messages/count_tokens": MESSAGES, "/tokenize": CHAT}


class Client:
    """A client of one simulated engine."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(self.url + path, json=body, headers=sent) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.text()

    async def metric(self, name: str) -> list[float]:
        """One value per rank."""
        _status, page = await self.get("/metrics")
        return [
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name
        ]

    async def until(self, name: str, values: list[float]) -> None:
        """Ask again until the metric has these values."""

        async def has() -> bool:
            return await self.metric(name) == values

        await until(has)


@contextlib.asynccontextmanager
async def simulated(**changes: Any) -> AsyncIterator[Client]:
    options = {"hardware": "tiny-cpu", "block_size": 16, "speed": 50.0, "model": "m", "replicas": 2, "api_servers": 1}
    async with serving(SimulatedEngineOptions(**{**options, **changes})) as url, aiohttp.ClientSession() as session:
        yield Client(session, url)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with simulated() as it:
        yield it


# -- the rank header ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
async def test_a_rank_is_honoured(client: Client, path: str) -> None:
    for _ in range(3):
        status, _body = await client.post(path, BODIES[path], X_data_parallel_rank="1")
        assert status == 200
    tokens = await client.metric("vllm:prompt_tokens_total")
    assert tokens[0] == 0
    assert tokens[1] > 0


@pytest.mark.parametrize("rank", ["abc", "2.0", ""])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
async def test_what_is_no_integer_is_ignored(client: Client, path: str, rank: str) -> None:
    for _ in range(2):
        status, _body = await client.post(path, BODIES[path], X_data_parallel_rank=rank)
        assert status == 200
    assert all(await client.metric("vllm:prompt_tokens_total"))


@pytest.mark.parametrize("rank", ["2", "-1"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_rank_out_of_range_is_a_bad_request(client: Client, path: str, rank: str) -> None:
    status, body = await client.post(path, BODIES[path], X_data_parallel_rank=rank)
    assert (status, body["error"]["code"]) == (400, 400)
    assert body["error"]["message"] == f"data_parallel_rank {rank} is out of range [0, 2)."


@pytest.mark.parametrize(
    ("balancer", "expected"), [("0.26", (500, "internal_error")), ("0.27", (400, "BadRequestError"))]
)
async def test_messages_call_it_a_server_error_in_the_old_version(balancer: str, expected: tuple[int, str]) -> None:
    async with simulated(balancer=balancer) as client:
        status, body = await client.post("/v1/messages", MESSAGES, X_data_parallel_rank="9")
        assert (status, body["error"]["type"]) == expected


@pytest.mark.parametrize("rank", ["1", "9", "abc"])
async def test_responses_ignore_the_rank(client: Client, rank: str) -> None:
    for _ in range(2):
        status, _body = await client.post("/v1/responses", BODIES["/v1/responses"], X_data_parallel_rank=rank)
        assert status == 200
    assert all(await client.metric("vllm:prompt_tokens_total"))


@pytest.mark.parametrize("path", COUNTING)
async def test_counting_ignores_the_rank_and_asks_no_engine(client: Client, path: str) -> None:
    status, _body = await client.post(path, COUNTING[path], X_data_parallel_rank="9")
    assert status == 200
    assert await client.metric("vllm:prompt_tokens_total") == [0, 0]


# -- answers and usage -------------------------------------------------------------------------------------


async def test_a_conversation_hits_everything_it_sent_and_was_answered(client: Client) -> None:
    turns: list[dict[str, Any]] = [{"role": "user", "content": "first " * 30}]
    known = 0
    for turn in range(3):
        body = {"model": "m", "system": SYSTEM, "messages": turns, "max_tokens": 40}
        _status, answer = await client.post("/v1/messages", body, X_data_parallel_rank="0")
        usage = answer["usage"]
        prompt = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
        if turn:
            assert usage["cache_read_input_tokens"] == (known - 1) // 16 * 16
        known = prompt + usage["output_tokens"]
        assert usage["output_tokens"] == 40
        turns += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "next " * 30}]


@pytest.mark.parametrize("path", BODIES)
async def test_streamed_and_whole_answers_are_the_same_text(client: Client, path: str) -> None:
    _status, whole = await client.post(path, BODIES[path])
    _status, stream = await client.post(path, {**BODIES[path], "stream": True})
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: {")]
    pieces = []
    for event in map(json.loads, events):
        if path == "/v1/chat/completions":
            pieces.append(event["choices"][0]["delta"]["content"])
        elif path == "/v1/completions":
            pieces.append(event["choices"][0]["text"])
        elif event["type"] in ("content_block_delta", "response.output_text.delta"):
            pieces.append(event["delta"] if isinstance(event["delta"], str) else event["delta"]["text"])
    text = {
        "/v1/chat/completions": lambda: whole["choices"][0]["message"]["content"],
        "/v1/completions": lambda: whole["choices"][0]["text"],
        "/v1/messages": lambda: whole["content"][0]["text"],
        "/v1/responses": lambda: whole["output"][0]["content"][0]["text"],
    }[path]()
    assert "".join(pieces) == text
    assert len(text) == 12


TOOL = {"name": "look", "input_schema": {}, "type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_an_answer_may_end_in_a_tool_call_that_costs_no_token(path: str, stream: bool) -> None:
    async with simulated(tool_calls=True) as client:
        usage = {"stream_options": {"include_usage": True}} if path.endswith("completions") else {}
        body = {**BODIES[path], "tools": [TOOL], "stream": stream, **(usage if stream else {})}
        _status, answer = await client.post(path, body)
        text = json.dumps(answer) if not stream else answer
        assert text.count('"look"') == 1
        assert ("tool_calls" if path.endswith("completions") else "tool_use") in text
        assert await client.metric("vllm:generation_tokens_total") == [3.0, 0.0]
        assert sum(await client.metric("vllm:request_success_total")) == 1


async def test_cached_tokens_agree_with_the_metrics() -> None:
    async with simulated(replicas=1) as client:
        cached = 0
        for path in ("/v1/chat/completions", "/v1/chat/completions", "/v1/completions", "/v1/completions"):
            _status, body = await client.post(path, BODIES[path])
            cached += body["usage"]["prompt_tokens_details"]["cached_tokens"]
        _status, body = await client.post("/v1/messages", MESSAGES)
        cached += body["usage"]["cache_read_input_tokens"]
        _status, body = await client.post("/v1/responses", BODIES["/v1/responses"])
        cached += body["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached > 0
        assert await client.metric("vllm:prompt_tokens_cached_total") == [cached]


async def test_count_tokens_and_tokenize_agree_with_what_is_charged(client: Client) -> None:
    _status, counted = await client.post("/v1/messages/count_tokens", MESSAGES)
    _status, tokenized = await client.post("/tokenize", CHAT)
    _status, answered = await client.post("/v1/chat/completions", BODIES["/v1/chat/completions"])
    assert counted["input_tokens"] == tokenized["count"] == answered["usage"]["prompt_tokens"]
    assert len(tokenized["tokens"]) == tokenized["count"]
    _status, tokenized = await client.post("/tokenize", {"model": "m", "prompt": "abcde"})
    assert tokenized["count"] == 2


async def test_ids_and_model_are_the_clients(client: Client) -> None:
    path = "/v1/chat/completions"
    _status, body = await client.post(path, BODIES[path], X_Request_Id="abc")
    assert (body["id"], body["model"]) == ("chatcmpl-abc", "m")


async def test_the_engine_balances_what_names_no_rank(client: Client) -> None:
    for _ in range(4):
        await client.post("/v1/completions", BODIES["/v1/completions"])
    assert await client.metric("vllm:prompt_tokens_total") == [200, 200]


# -- disconnects -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", BODIES)
async def test_a_client_that_leaves_frees_its_blocks(path: str, stream: bool) -> None:
    async with simulated(speed=1.0, replicas=1, max_answer_tokens=20_000) as client:
        body = {**BODIES[path], "stream": stream, "max_tokens": 20_000, "max_output_tokens": 20_000}
        async with contextlib.AsyncExitStack() as stack:
            if stream:
                response = await stack.enter_async_context(client.session.post(client.url + path, json=body))
                await response.content.readline()
                left = response.close
            else:
                task = asyncio.create_task(client.post(path, body))
                await client.until("vllm:num_requests_running", [1])
                left = task.cancel  # type: ignore[assignment]
            assert (await client.metric("vllm:kv_cache_usage_perc"))[0] > 0
            left()
            await client.until("vllm:num_requests_running", [0])
        assert await client.metric("vllm:kv_cache_usage_perc") == [0]
        finished = await client.metric("vllm:request_success_total")
        assert finished == [0] * len(finished)
        status, load = await client.get("/load")
        assert (status, json.loads(load)) == (200, {"server_load": 0})


async def test_clients_that_leave_at_any_moment_leave_nothing_behind_and_are_no_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with simulated(speed=100.0, replicas=1) as client:
        port = int(client.url.rpartition(":")[2])
        body = json.dumps({**BODIES["/v1/chat/completions"], "stream": True, "max_tokens": 500}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        raw = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body

        async def leave_after(wanted: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            if wanted % 2:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.write(raw)
            await reader.read(wanted * 20)
            writer.transport.abort()

        await asyncio.gather(*(leave_after(wanted) for wanted in range(200)))
        await client.until("vllm:num_requests_running", [0])
        await client.until("vllm:kv_cache_usage_perc", [0])
    assert caplog.records == []


async def test_a_waiting_request_that_is_given_up_leaves_the_queue() -> None:
    async with simulated(speed=1.0, replicas=1, max_num_seqs=1, max_answer_tokens=20_000) as client:
        body = {**BODIES["/v1/completions"], "max_tokens": 20_000}
        first = asyncio.create_task(client.post("/v1/completions", body))
        await client.until("vllm:num_requests_running", [1])
        second = asyncio.create_task(client.post("/v1/completions", body))
        await client.until("vllm:num_requests_waiting", [1])
        second.cancel()
        await client.until("vllm:num_requests_waiting", [0])
        assert await client.metric("vllm:num_requests_running") == [1]
        first.cancel()


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BODIES)
async def test_an_unknown_model_is_not_found_in_the_form_of_the_api(client: Client, path: str) -> None:
    status, body = await client.post(path, {**BODIES[path], "model": "x"})
    assert status == 404
    assert body["error"]["message"] == "The model `x` does not exist."
    assert body["error"]["type"] == "NotFoundError"
    assert (body.get("type") == "error") is (path == "/v1/messages")


@pytest.mark.parametrize("path", BODIES)
async def test_a_prompt_beyond_the_model_is_refused_in_vllms_words(path: str) -> None:
    async with simulated(max_model_len=20) as client:
        long = {"messages": [{"role": "user", "content": "x" * 400}], "prompt": "x" * 400, "input": "x" * 400}
        status, body = await client.post(path, {**BODIES[path], **long})
        assert status == 400
        assert body["error"]["message"].startswith("This model's maximum context length is 20 tokens. However, ")


async def test_what_is_not_json_is_refused(client: Client) -> None:
    for body, kind in ((b"{", "application/json"), (b"[1]", "application/json"), (b"{}", "text/plain")):
        headers = {"Content-Type": kind}
        async with client.session.post(client.url + "/v1/messages", data=body, headers=headers) as response:
            assert response.status == 400
            assert (await response.json())["type"] == "error"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/tokenize"])
async def test_half_a_character_in_a_prompt_is_read_as_vllm_reads_it(client: Client, path: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "cut \ud83d"}], "max_tokens": 3}
    assert "\\ud83d" in json.dumps(body)
    status, _answer = await client.post(path, body)
    assert status == 200


async def test_half_a_character_in_the_model_s_name_is_an_unknown_model(client: Client) -> None:
    status, answer = await client.post("/v1/chat/completions", {**CHAT, "model": "\ud83d"})
    assert (status, answer["error"]["code"]) == (404, 404)


async def test_unknown_paths_and_methods_answer_json(client: Client) -> None:
    status, body = await client.get("/nothing")
    assert (status, json.loads(body)["error"]["code"]) == (404, 404)
    status, body = await client.get("/v1/messages")
    assert (status, json.loads(body)["error"]["code"]) == (405, 405)


async def test_options_that_contradict_are_refused_before_the_port_is_bound() -> None:
    with pytest.raises(ValueError, match="replicas must be above 0"):
        async with simulated(replicas=0):
            pass


# -- the rest ----------------------------------------------------------------------------------------------


async def test_health_version_models_and_load(client: Client) -> None:
    assert await client.get("/health") == (200, "")
    assert await client.get("/ping") == (200, "")
    _status, version = await client.get("/version")
    assert json.loads(version) == {"version": "0.26.0"}
    _status, models = await client.get("/v1/models")
    (card,) = json.loads(models)["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("m", "model", 32768)


async def test_the_model_is_no_longer_than_the_cache() -> None:
    async with simulated(kv_cache_tokens=1600) as client:
        _status, models = await client.get("/v1/models")
        assert json.loads(models)["data"][0]["max_model_len"] == 99 * 16


async def test_the_prefix_cache_can_be_emptied(client: Client) -> None:
    path = "/v1/completions"
    await client.post(path, BODIES[path], X_data_parallel_rank="0")
    assert await client.post("/reset_prefix_cache", {}) == (200, {"success": True})
    _status, body = await client.post(path, BODIES[path], X_data_parallel_rank="0")
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_the_process_metrics_tell_one_start_from_another(client: Client) -> None:
    _status, page = await client.get("/metrics")
    assert "process_start_time_seconds" in page


async def test_run_server_says_where_it_listens_and_ends_on_sigterm() -> None:
    program = (
        "import asyncio\n"
        "from lmwarden.simulation.options import SimulatedEngineOptions\n"
        "from lmwarden.simulation.server import run_server\n"
        "options = SimulatedEngineOptions(hardware='tiny-cpu')\n"
        "asyncio.run(run_server(options, on_listening=lambda url: print(url, flush=True)))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(lmwarden.__file__).parents[1])}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        async with aiohttp.ClientSession() as session, session.get(url + "/health") as response:
            assert response.status == 200
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
