"""The timings that ``calibrate`` needs, taken through any OpenAI-compatible endpoint.

Every prompt is new text, so no cache helps, and nothing else should use the host meanwhile. Answers at once must share
one replica: where the endpoint has ranks they are sent to rank 0, and where it refuses that header they are sent
without (then several replicas would look like one that is faster, which is said).
"""

from __future__ import annotations

import asyncio
import re
import statistics
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol

import aiohttp
import msgspec

from lmwarden.bench.calibrate import PromptTime, StepTime
from lmwarden.bench.client import listed_models
from lmwarden.bench.errors import BenchError, PlanError, plain_reason
from lmwarden.bench.plans import words
from lmwarden.types import Clock

PROMPT_TOKENS = (64, 192, 512, 1024, 2000, 4000, 8000, 16000)
ANSWERS = ((1, 64), (1, 3000), (1, 10_000), (2, 1500), (4, 1500), (8, 1500), (16, 500))
"""(answers at once, tokens of each prompt)."""
ANSWER_TOKENS = 96
_REPEATS = 3
_ROOM_TOKENS = 256
"""Kept free of the model's context for the answer and the chat template."""
_CACHE_SHARE = 0.8
"""Answers at once take at most so much of the cache: what does not fit is not generated at once."""
_ERROR_BYTES = 2000
_LABEL = re.compile(r'([a-z_]+)="([^"]*)"')
_RANK_HEADER = {"X-data-parallel-rank": "0"}


class NotAtOnceError(BenchError):
    """Answers that were asked for together were generated one after the other."""


class Probe(Protocol):
    """Times single requests and groups of them."""

    async def prompt(self, prompt_tokens: int) -> PromptTime:
        """Time the first token of a prompt of about that size."""
        ...

    async def answers(self, count: int, prompt_tokens: int, answer_tokens: int) -> StepTime:
        """Time answers that are generated at once.

        Raises:
            NotAtOnceError: they were not.
        """
        ...


async def measure(
    probe: Probe, max_model_len: int | None, kv_cache_tokens: int | None, progress: Callable[[str], None]
) -> tuple[list[PromptTime], list[StepTime]]:
    """Take all timings that fit into the model's context and the cache, one after the other.

    Args:
        probe: takes them.
        max_model_len: of the model; None: unknown.
        kv_cache_tokens: of one replica; None: unknown.
        progress: is told what comes next.

    Raises:
        BenchError: the endpoint failed.
    """
    most = max(PROMPT_TOKENS)
    for limit in (max_model_len, kv_cache_tokens):
        if limit is not None:
            most = min(most, limit - _ROOM_TOKENS)
    prompts: list[PromptTime] = []
    sizes = [tokens for tokens in PROMPT_TOKENS if tokens <= most]
    await probe.prompt(PROMPT_TOKENS[0])  # The first request of a server is slower than all others.
    for tokens in sizes:
        progress(f"first token of a prompt of {tokens} tokens")
        timings = [await probe.prompt(tokens) for _ in range(_REPEATS)]
        prompts.append(sorted(timings, key=lambda timing: timing.seconds)[_REPEATS // 2])
    steps: list[StepTime] = []
    for count, wanted in ANSWERS:
        tokens = wanted
        if kv_cache_tokens is not None:
            tokens = min(tokens, int(_CACHE_SHARE * kv_cache_tokens / count) - ANSWER_TOKENS)
        if not PROMPT_TOKENS[0] <= tokens <= most - ANSWER_TOKENS:
            continue
        progress(f"{count} answer{'s' if count > 1 else ''} at once, {tokens} tokens of context each")
        try:
            steps.append(await probe.answers(count, tokens, ANSWER_TOKENS))
        except NotAtOnceError:
            progress("  they were not generated at once: left out")
    return prompts, steps


class CacheFacts(NamedTuple):
    """What an engine's metrics say of its cache. None: nothing."""

    kv_cache_tokens: int | None = None
    """Of one replica."""
    block_size: int | None = None


async def cache_facts(url: str) -> CacheFacts:
    """Read the capacity of one replica from an engine's ``/metrics``; a warden has none of an engine's there."""
    timeout = aiohttp.ClientTimeout(total=30)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.get(url.rstrip("/") + "/metrics") as response,
        ):
            page = await response.text() if response.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError):
        return CacheFacts()
    return parse_cache_facts(page)


def parse_cache_facts(page: str) -> CacheFacts:
    """Find vLLM's ``cache_config_info`` in a metrics page. Older versions know blocks only, of all ranks together."""
    lines = [dict(_LABEL.findall(line)) for line in page.splitlines() if line.startswith("vllm:cache_config_info{")]
    if not lines:
        return CacheFacts()
    labels = lines[0]
    block_size = _number(labels.get("block_size"))
    tokens = _number(labels.get("kv_cache_size_tokens"))
    blocks = _number(labels.get("num_gpu_blocks"))
    if tokens is None and blocks is not None and block_size is not None:
        tokens = blocks // len(lines) * block_size
    return CacheFacts(tokens, block_size)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and int(text) else None


async def max_model_len(url: str, model: str, key: str | None) -> int | None:
    """Ask the endpoint for the model's context length; None where it does not say.

    Raises:
        BenchError: it cannot be reached.
        PlanError: it does not serve the model.
    """
    names = await listed_models(url, key)
    if model not in names:
        raise PlanError(f"--model {model}: {url} serves {', '.join(names) or 'nothing'}")
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=30)) as http,
            http.get(url.rstrip("/") + "/v1/models") as response,
        ):
            listed = msgspec.json.decode(await response.read(), type=_Cards)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
        return None
    return next((card.max_model_len for card in listed.data if card.id == model), None)


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    @property
    def generated(self) -> bool:
        return bool(self.content or self.reasoning or self.reasoning_content)


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


@dataclass(slots=True)
class _Answer:
    """One streamed answer: when each of its tokens came."""

    sent_s: float
    token_s: list[float] = field(default_factory=list)
    usage: _Usage | None = None

    def prompt_tokens(self) -> int:
        if self.usage is None or not self.token_s:
            raise BenchError("--url: an answer without tokens or without usage cannot be timed")
        return self.usage.prompt_tokens


class HttpProbe:
    """A probe of ``/v1/chat/completions``; an async context manager.

    Args:
        url: the endpoint.
        model: the model's name there.
        key: API key.
        clock: modelled seconds, where the endpoint is simulated.
    """

    def __init__(self, url: str, model: str, *, key: str | None, clock: Clock) -> None:
        self._url = url.rstrip("/") + "/v1/chat/completions"
        self._model = model
        self._key = key
        self._clock = clock
        self._http: aiohttp.ClientSession | None = None
        self.pins_rank = True
        """The endpoint took the header that names rank 0."""
        self._exact_length = True
        self._words_per_token = 1.0
        """Of the endpoint's tokenizer, as its last answer showed."""

    async def __aenter__(self) -> HttpProbe:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key is not None else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=300)
        self._http = aiohttp.ClientSession(headers=headers, timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def prompt(self, prompt_tokens: int) -> PromptTime:
        """See ``Probe.prompt``."""
        answer = await self._ask(prompt_tokens, 1)
        return PromptTime(answer.prompt_tokens(), answer.token_s[0] - answer.sent_s)

    async def answers(self, count: int, prompt_tokens: int, answer_tokens: int) -> StepTime:
        """See ``Probe.answers``."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask(prompt_tokens, answer_tokens)) for _ in range(count)]
        return together([task.result() for task in tasks])

    async def _ask(self, prompt_tokens: int, answer_tokens: int) -> _Answer:
        """Send one prompt of new text; what an endpoint does not know (rank, exact length) is left out from then on."""
        count = max(1, round(prompt_tokens * self._words_per_token))
        text = words(uuid.uuid4().bytes, count)
        while True:
            status, answer = await self._post(text, answer_tokens)
            if isinstance(answer, _Answer):
                self._words_per_token = count / answer.prompt_tokens()
                return answer
            if status == 400 and self.pins_rank:
                self.pins_rank = False
            elif status in (400, 422) and self._exact_length:
                self._exact_length = False
            else:
                raise BenchError(f"--url: {self._url} answered {status}: {answer}")

    async def _post(self, text: str, answer_tokens: int) -> tuple[int, _Answer | str]:
        assert self._http is not None
        body: dict[str, object] = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": answer_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._exact_length:
            body |= {"ignore_eos": True, "min_tokens": answer_tokens}
        data, headers = msgspec.json.encode(body), {"Content-Type": "application/json"}
        if self.pins_rank:
            headers |= _RANK_HEADER
        answer = _Answer(self._clock())
        try:
            async with self._http.post(self._url, data=data, headers=headers) as response:
                if response.status != 200:
                    return response.status, " ".join((await response.text())[:_ERROR_BYTES].split())
                await self._read(response, answer)
        except (aiohttp.ClientError, OSError, msgspec.DecodeError) as error:
            raise BenchError(f"--url: {self._url}: {plain_reason(error)}") from error
        return 200, answer

    async def _read(self, response: aiohttp.ClientResponse, answer: _Answer) -> None:
        async for line in response.content:
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or data == b"[DONE]":
                continue
            chunk = msgspec.json.decode(data, type=_Chunk)
            if any(choice.delta.generated for choice in chunk.choices):
                answer.token_s.append(self._clock())
            answer.usage = chunk.usage or answer.usage


def together(answers: Sequence[_Answer]) -> StepTime:
    """Time per token while all answers were being generated.

    Raises:
        NotAtOnceError: they were never generated at once.
    """
    prompts = [answer.prompt_tokens() for answer in answers]
    begin_s = max(answer.token_s[0] for answer in answers)
    end_s = min(answer.token_s[-1] for answer in answers)
    step_s, context_tokens = [], []
    for answer, prompt_tokens in zip(answers, prompts, strict=True):
        inside = [number for number, moment_s in enumerate(answer.token_s) if begin_s <= moment_s <= end_s]
        if len(inside) < 8:
            raise NotAtOnceError(f"--url: {len(answers)} answers were not generated at once; is the host busy?")
        first, last = inside[0], inside[-1]
        step_s.append((answer.token_s[last] - answer.token_s[first]) / (last - first))
        context_tokens.append(prompt_tokens + (first + last) / 2)
    return StepTime(len(answers), statistics.mean(context_tokens), statistics.median(step_s))
