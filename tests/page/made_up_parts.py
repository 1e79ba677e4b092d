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
    waited = 7.5 if number == 6 else 0.0
    whole = number == 5 and row["client"] == "curl"
    left = number == 11 and row["client"] == "claude-code"
    first_byte += waited
    turn = {
        "finished_at": world_began - row["age_s"] - (row["turns"] - number) * 21.0,
        "replica": away if spilled else home,
        "decision": "placed" if number == 0 else "spilled" if spilled else "sticky",
        "why": "least_loaded" if number == 0 else "above" if spilled else "not_above",
        "home": None if number == 0 else home,
        "home_in_flight": None if number == 0 else 11 if spilled else rng.randrange(0, 6),
        "spill_threshold": 8,
        "candidates": candidates if number == 0 else None,
        "waited_s": waited,
        "first_byte_s": first_byte + decode if whole else first_byte,
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
        "streamed": not whole,
    }
    # A client that went away in the middle of an answer: what it had got is not counted by anybody.
    gone = {
        "outcome": "cancelled",
        "status": 200,
        "cached_tokens": None,
        "computed_tokens": None,
        "completion_tokens": 0,
    }
    return turn | gone if left else turn


ROOM_ENGAGED: Json = {
    "engaged": True,
    "waiting": 6,
    "longest_wait_s": 12.4,
    "room_for": 0,
    "residents": 22,
    "reserved_tokens": 894_000,
    "demand_ratio": 1.42,
    "wait_expired": 3,
    "why": "Engaged: the conversations in use need 1.42 times what the replicas hold.",
    "why_code": "engaged",
    "gap_s": 0.3,
    "tier_advice": {"needed_tokens_per_replica": 477_000, "needed_gib_per_replica": 65.5},
}


def admission_of(settings: Json, demand: float, room: Json) -> Json:
    """``admission`` of ``/api/models/{name}/routing``."""
    on = settings["admission"] == "auto" and settings["affinity"]
    open_room = {
        "engaged": False,
        "waiting": 0,
        "longest_wait_s": None,
        "room_for": 12,
        "residents": None,
        "reserved_tokens": None,
        "demand_ratio": demand,
        "wait_expired": 0,
        "why": "Open.",
        "why_code": "open",
        "gap_s": 0.4,
        "tier_tokens": None,
        "tier_advice": None,
    }
    state = open_room | (room if on else {"why_code": "off", "demand_ratio": None})
    return {"mode": settings["admission"], "prefer": settings["prefer"], "max_wait_s": settings["max_wait_s"], **state}


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
