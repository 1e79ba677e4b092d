"""Steps of a start, from vLLM's log lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmwarden.engine.startup import Startup, StartupReader

REAL = Path(__file__).parent.parent / "data" / "vllm_start.log"
"""Of a real vLLM 0.32.0 on a CPU, shortened."""

# What a GPU adds: the formats stand in vLLM 0.32.0's sources (weight_utils, monitor, gpu_worker, gpu_model_runner).
GPU: list[tuple[str, str, float | None]] = [
    ("=== lmwarden: 2025-01-01T00:00:00Z starting e0: vllm serve m", "importing", None),
    (
        "(EngineCore_DP0 pid=5) INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with",
        "starting the engine",
        None,
    ),
    ("(Worker_TP0 pid=6) INFO [gpu_model_runner.py:5040] Starting to load model m...", "loading weights", None),
    ("Loading safetensors checkpoint shards:   0% Completed | 0/4 [00:00<?, ?it/s]", "loading weights", 0.0),
    ("(Worker_TP0 pid=6) Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:03]", "loading weights", 0.0),
    ("Loading safetensors checkpoint shards:  75% Completed | 3/4 [00:05<00:01, 1.6s/it]", "loading weights", 0.5),
    ("(Worker_TP0 pid=6) INFO [default_loader.py:501] Loading weights took 6.12 seconds", "loading weights", 0.5),
    ("(Worker_TP0 pid=6) INFO [gpu_model_runner.py:5150] Model loading took 7.6 GiB memory", "loading weights", 0.5),
    ("(Worker_TP0 pid=6) INFO [monitor.py:40] Starting torch.compile", "compiling", None),
    ("(Worker_TP1 pid=7) INFO [default_loader.py:501] Loading weights took 9.01 seconds", "compiling", None),
    ("(Worker_TP0 pid=6) INFO [backends.py:1167] Dynamo bytecode transform time: 4.12 s", "compiling", None),
    ("(Worker_TP0 pid=6) INFO [monitor.py:60] torch.compile took 20.11 s in total", "compiling", None),
    ("(Worker_TP0 pid=6) INFO [gpu_worker.py:760] Available KV cache memory: 5.1 GiB", "sizing the KV cache", None),
    (
        "(EngineCore_DP0 pid=5) INFO [kv_cache_utils.py:2327] GPU KV cache size: 37,376 tokens",
        "sizing the KV cache",
        None,
    ),
    (
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  20%|##        | 7/35 [00:01<00:04, 6.2it/s]",
        "capturing CUDA graphs",
        0.2,
    ),
    ("Capturing CUDA graphs (decode, FULL): 100%|##########| 19/19 [00:02<00:00]", "capturing CUDA graphs", 1.0),
    (
        "(EngineCore_DP0 pid=5) INFO [core.py:402] init engine (profile, create kv cache, warmup model)",
        "starting the s",
        None,
    ),
    ("INFO:     Application startup complete.", "starting the s", None),
]


def test_the_memory_of_a_token_is_said_by_two_lines_together() -> None:
    reader = StartupReader()
    assert reader.kv_bytes_per_token(1) is None
    reader.feed(["(Worker_TP0 pid=6) INFO [gpu_worker.py:760] Available KV cache memory: 5.15 GiB"])
    reader.feed(["(Worker_TP1 pid=7) INFO [gpu_worker.py:760] Available KV cache memory: 5.14 GiB"])
    assert reader.kv_bytes_per_token(1) is None
    reader.feed(["(EngineCore_DP0 pid=5) INFO [kv_cache_utils.py:2327] GPU KV cache size: 37,376 tokens"])
    # 144 KiB on one GPU; a replica of two GPUs takes as much on each.
    assert reader.kv_bytes_per_token(1) == pytest.approx(147_456, rel=0.01)
    assert reader.kv_bytes_per_token(2) == pytest.approx(294_912, rel=0.01)


@pytest.mark.parametrize(
    "line",
    [
        "INFO [kv_cache_utils.py:2619] Overriding num_gpu_blocks=65536 with num_gpu_blocks_override=160",
        "(EngineCore_DP0 pid=5) INFO [kv_cache_utils.py:2327] GPU KV cache size: 0 tokens",
    ],
)
def test_figures_that_do_not_belong_together_say_nothing(line: str) -> None:
    reader = StartupReader()
    reader.feed(["INFO Available KV cache memory: 5.15 GiB", line])
    if "Overriding" in line:
        reader.feed(["INFO GPU KV cache size: 37,376 tokens"])
    assert reader.kv_bytes_per_token(1) is None


def test_every_line_of_a_gpu_start() -> None:
    reader = StartupReader()
    for line, step, progress in GPU:
        reader.feed([line])
        assert reader.state.step.startswith(step), line
        assert reader.state.progress_ratio == progress, line


def test_a_real_start_passes_its_steps_in_order() -> None:
    reader = StartupReader()
    steps = []
    for line in REAL.read_text(encoding="utf-8").splitlines():
        reader.feed([line])
        if reader.state.step not in steps:
            steps.append(reader.state.step)
    assert steps == [
        "importing", "starting the engine", "loading weights", "sizing the KV cache", "starting the server",
    ]  # fmt: skip


@pytest.mark.parametrize("lines", [[], [""], ["nothing that is known"], ["Loading checkpoint: 200%"]])
def test_unknown_lines_change_nothing(lines: list[str]) -> None:
    reader = StartupReader()
    reader.feed(lines)
    assert reader.state == Startup("importing", None)


def test_a_percentage_is_never_above_one() -> None:
    reader = StartupReader()
    reader.feed(["Loading safetensors checkpoint shards: 200% Completed"])
    assert reader.state == Startup("loading weights", 1.0)


def test_our_own_simulated_engine() -> None:
    reader = StartupReader()
    reader.feed(["listening on http://127.0.0.1:8000"])
    assert reader.state.step == "starting the server"
