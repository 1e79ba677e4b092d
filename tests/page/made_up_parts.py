"""Made-up turns and engines."""

from __future__ import annotations

import random
import time
from typing import Any

Json = dict[str, Any]


def turn_of(
    world_began: float,
    replicas: int,
    row: Json,
    rng: random.Random,
    number: int,
    prompt: int,
    cached: int,
    change: str,
    before: int,
) -> Json:
    spilled, home = number == 9, row["home"]
    away = "e1/0" if home != "e1/0" else "e3/0"
    first_byte = 0.11 + (prompt - cached) / 2900 + rng.uniform(0, 0.2)
    decode = rng.uniform(1.5, 6.0)
    names = [f"e{index}/0" for index in range(min(4, replicas))]
    candidates = [
        {
            "replica": [name.split("/")[0], 0],
            "score": round(0.4 + 0.35 * index, 2),
            "in_flight": index,
            "warm": 1.2,
            "conversations": 8 + index,
            "live_share": 1.0,
            "kv_used_ratio": 0.2 + 0.1 * index,
            "held_ratio": 0.5,
            "other": 0.0,
        }
        for index, name in enumerate(sorted(names, key=lambda name: name != home))
    ]
    return {
        "finished_at": world_began - row["age_s"] - (row["turns"] - number) * 21.0,
        "replica": away if spilled else home,
        "decision": "placed" if number == 0 else "spilled" if spilled else "sticky",
        "why": "least_loaded" if number == 0 else "above" if spilled else "not_above",
        "home": None if number == 0 else home,
        "home_in_flight": None if number == 0 else 11 if spilled else rng.randrange(0, 6),
        "spill_threshold": 8,
        "candidates": candidates if number == 0 else None,
        "waited_s": 0.0,
        "first_byte_s": first_byte,
        "duration_s": first_byte + decode,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "computed_tokens": prompt - cached,
        "completion_tokens": rng.randrange(40, 256),
        "outcome": "failed" if number == 12 else "ok",
        "status": 502 if number == 12 else 200,
        "prefix_change": change,
        "prefix_shared_ratio": {"first": None, "tools_changed": 0.31}.get(change, 1.0),
        "recomputed_tokens": max(0, before - cached) if number and change != "extends" else None,
        "endpoint": "/v1/messages" if row["client"] == "claude-code" else "/v1/chat/completions",
        "retried": False,
    }


def engine_of(name: str, model: str, ranks: int, process: Json | None, pins: list[Json]) -> Json:
    state = "up" if process is None or process["phase"] == "running" else "starting"
    return {
        "engine": name,
        "model": model,
        "url": f"http://127.0.0.1:8{name[1:]}00",
        "ranks": ranks,
        "state": state,
        "version": "0.26.0",
        "is_vllm": True,
        "scrape_age_s": 0.6,
        "usage_details": process is not None,
        "pins": pins,
        "launched": process is not None,
        "process": process,
    }


def process_of(index: int, restarting: bool, started_at: float) -> Json:
    model = "Qwen/Qwen3-4B-Instruct-2507 --max-num-seqs 32 --enable-prompt-tokens-details"
    command = f"CUDA_VISIBLE_DEVICES={index} vllm serve {model} --port 8{index}00"
    return {
        "phase": "starting" if restarting else "running",
        "detail": "It is loading." if restarting else "It runs.",
        "step": "loading weights" if restarting else None,
        "progress_ratio": 0.4 if restarting else None,
        "since": time.time() - 3 if restarting else started_at,
        "pid": 4200 + index,
        "restarts": 1 if index == 2 else 0,
        "exit_status": None,
        "last_lines": [],
        "taken_over": index == 3,
        "outdated": False,
        "command": command,
        "log": f"/var/lib/lmwarden/engines/e{index}.log",
    }
