"""How far a starting vLLM is, and how much memory its KV cache takes, from the lines that it logs.

A start takes minutes, and what it is at is only in its log. The lines are vLLM's own words and may change with a
version; if none is known any more, the step stays at the first one and nothing else suffers: whether an engine is ready
is asked of the engine itself.

Several ranks and workers log side by side, one a little ahead of the other. The step is the furthest that any of
them has reached, its progress the least that was reported last; they are told apart by the process that a line names.

**Memory of a token.** vLLM logs the memory of the KV cache on each GPU and the tokens that it holds; no endpoint tells
both. A replica whose ranks share its context (tensor parallelism) takes so much on each of its GPUs. Where the number
of blocks was set by hand, the two do not belong together, and nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec


class Startup(msgspec.Struct, frozen=True):
    """Where a start is."""

    step: str
    progress_ratio: float | None = None
    """0..1 of this step; None: not reported."""


_PERCENT = r"\s*(\d{1,3})%"
_STEPS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("importing", re.compile(r"^=== lmwarden: ")),
    ("starting the engine", re.compile(r"Initializing a V1 LLM engine|Starting to load model|vLLM API server version")),
    (
        "loading weights",
        re.compile(
            rf"Loading (?:safetensors|pt|bin)[^:]*:{_PERCENT}|Starting to load model|Loading model from"
            r"|Loading weights took|Model loading took|Filesystem type for checkpoints"
        ),
    ),
    (
        "compiling",
        re.compile(r"Starting torch\.compile|Dynamo bytecode transform|Compiling a graph|torch\.compile t(?:akes|ook)"),
    ),
    ("sizing the KV cache", re.compile(r"Available KV cache memory|KV cache size:|Maximum concurrency for")),
    ("capturing CUDA graphs", re.compile(rf"Capturing CUDA graphs?[^:]*:{_PERCENT}|Graph capturing finished")),
    (
        "starting the server",
        re.compile(
            r"init engine \(profile|Starting vLLM (?:API )?server|Application startup complete|listening on http"
        ),
    ),
)
_GIB = 1 << 30
_MEMORY = re.compile(r"Available KV cache memory: (\d{1,6}(?:\.\d{1,6})?) GiB")
_TOKENS = re.compile(r"GPU KV cache size: (\d{1,3}(?:,\d{3}){0,4}) tokens")
_OVERRIDE = "num_gpu_blocks_override"
_PROCESS = re.compile(r"^\(([^)]*?pid=\d+)\)")


class StartupReader:
    """Reads one start. Feed it with lines in order."""

    def __init__(self) -> None:
        self._reached = 0
        self._progress: dict[str, float] = {}
        self._memory_gib: float | None = None
        """Of the KV cache on the GPU that has least."""
        self._tokens: int | None = None
        self._overridden = False

    @property
    def state(self) -> Startup:
        """Where the start is."""
        return Startup(_STEPS[self._reached][0], min(self._progress.values(), default=None))

    def kv_bytes_per_token(self, gpus: int) -> float | None:
        """Memory that a token of context takes in a replica of so many GPUs; None: it was not said."""
        if self._memory_gib is None or not self._tokens or self._overridden:
            return None
        return self._memory_gib * _GIB * gpus / self._tokens

    def feed(self, lines: Iterable[str]) -> None:
        """Take further lines of the log."""
        for line in lines:
            self._take(line)
            self._read_memory(line)

    def _take(self, line: str) -> None:
        for number in range(len(_STEPS) - 1, self._reached - 1, -1):
            found = _STEPS[number][1].search(line)
            if found is None:
                continue
            if number > self._reached:
                self._reached = number
                self._progress.clear()
            percent = found[1] if found.re.groups and found[1] else None
            if percent is not None:
                process = _PROCESS.match(line)
                self._progress[process[1] if process else ""] = min(100, int(percent)) / 100
            return

    def _read_memory(self, line: str) -> None:
        if (found := _MEMORY.search(line)) is not None:
            gib = float(found[1])
            self._memory_gib = gib if self._memory_gib is None else min(gib, self._memory_gib)
        elif (found := _TOKENS.search(line)) is not None:
            tokens = int(found[1].replace(",", ""))
            self._tokens = tokens if self._tokens is None else min(tokens, self._tokens)
        elif _OVERRIDE in line and "Overriding" in line:
            self._overridden = True
