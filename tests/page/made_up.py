"""Made-up data for the page: a small house of models that serves, in the console's JSON, consistent in itself.

Everything follows from the time and a seed, so that two questions about the same moment agree. ``World(replicas=64,
conversations=5000)`` is the large one.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from typing import Any

from tests.page.made_up_history import DECISIONS, History
from tests.page.made_up_parts import admission_of, engine_of, process_of, turn_of

Json = dict[str, Any]

CLIENTS = ("claude-code", "claude-code", "claude-code", "codex", "opencode", "openai", "curl")
KV_TOKENS = 280_000


def key_of(*words: object) -> str:
    """A made-up id of 32 hex digits."""
    return hashlib.blake2b(repr(words).encode(), digest_size=16).hexdigest()


class World(History):
    """The data of one mock console."""

    def __init__(self, replicas: int = 4, conversations: int = 60) -> None:
        self.begun_at = time.time()
        self.started_at = self.begun_at - 11_520
        self.replicas = replicas
        self.routing: dict[str, Json] = {
            name: {
                "affinity": True,
                "placement": "least-loaded",
                "spill_threshold": None,
                "admission": "auto",
                "prefer": "balanced",
                "max_wait_s": 240.0,
            }
            for name in ("qwen3-4b", "qwen3-27b")
        }
        self.room: Json = {}
        """What the waiting room of qwen3-4b says; nothing: it is open."""
        self.kv_tokens: int | None = None
        """What the cache of a replica holds; None: more than its conversations need."""
        self.crashes: dict[str, Json] = {}
        """By engine: what its process says besides the usual."""
        self.extra_warnings: list[Json] = []
        """Of qwen3-4b."""
        self.states: dict[str, Json] = {}
        """By replica: what its row says besides the usual."""
        self.served = ["qwen3-4b", "qwen3-27b"]
        self.kept_turns: int | None = None
        """So many turns of a conversation are in its rows; None: all that have ended."""
        self.fresh = False
        """Nobody has asked anything yet."""
        self.own_answers: list[Json] = []
        self.drained: set[str] = set()
        self.operation: Json | None = None
        self.operation_began = 0.0
        self.restart_s = 1.0
        """Of one engine in a rolling restart."""
        self.keys: list[Json] = [_key("alice-laptop", 86_400 * 9, 214), _key("ci", 86_400 * 3, 1890, ["qwen3-4b"])]
        self.extra_requests: list[Json] = []
        self.frozen_at: float | None = None
        rng = random.Random(7)
        self.conversations = [self._conversation(rng, number) for number in range(conversations)]
        for row in self.conversations:
            last = self.turns(row)[0]
            row["context_tokens"] = last["prompt_tokens"] + last["completion_tokens"]
            cached = last["cached_tokens"]
            row["cached_ratio_last"] = None if cached is None else cached / last["prompt_tokens"]

    def now(self) -> float:
        """Unix seconds; stands still while frozen."""
        return self.frozen_at or time.time()

    # -- the snapshot

    def snapshot(self) -> Json:
        """What the live stream sends."""
        models = [self.model(name) for name in self.served]
        return {
            "taken_at": self.now(),
            "counting_since": _iso(self.started_at),
            "overview": {
                "models": [self._line(model) for model in models],
                "ledger_trouble": None,
                "own_answers": self.own_answers,
            },
            "models": models,
        }

    def _line(self, model: Json) -> Json:
        routing, small = model["routing"], model["name"] == "qwen3-4b"
        wave = 1 + 0.2 * math.sin(self.now() / 9)
        return {
            "name": model["name"],
            "state": "ok" if small and not model["warnings"] else "warning",
            "replicas": len(routing["replicas"]),
            "replicas_ready": sum(row["state"] == "ready" for row in routing["replicas"]),
            "in_flight": routing["in_flight"],
            "waiting": routing["admission"]["waiting"],
            "prompt_tokens_per_s": (5120 if small else 18_400) * wave,
            "cached_tokens_per_s": (4010 if small else 14_900) * wave,
            "completion_tokens_per_s": (92 if small else 41) * wave,
            "cached_ratio_1h": self.stats_tokens(3600, self.now(), model["name"])["cached_ratio"],
            "conversations_live": sum(row["conversations"] for row in routing["replicas"]),
            "warnings": model["warnings"],
        }

    def model(self, name: str) -> Json:
        """``/api/models/{name}``."""
        small = name == "qwen3-4b"
        settings = self.routing[name]
        rows = (
            [self._row(f"e{index}/0", index, small) for index in range(self.replicas)]
            if small
            else [self._row(f"v0/{rank}", rank, small) for rank in range(2)]
        )
        decisions = {name: sum(row[_COLUMN[name]] for row in rows) if name in _COLUMN else 0 for name in DECISIONS}
        kept = decisions["sticky"] / max(1, decisions["sticky"] + decisions["spilled"] + decisions["rehomed"])
        threshold = settings["spill_threshold"]
        held = sum(row["resident_tokens"] for row in rows)
        live = sum(row["conversations"] for row in rows)
        mean = held / max(1, live)
        capacity = sum(row["kv_cache_tokens"] for row in rows)
        warnings = (
            [*self.extra_warnings]
            if small
            else [
                _warning(
                    "no_usage_details",
                    "warning",
                    "the answers of v0 do not say how much of a prompt was cached; all of it counts as computed",
                    engine="v0",
                ),
                # Without its numbers, as a warden of another version may send it.
                _warning(
                    "max_num_seqs", "warning", "max_num_seqs is not known, so the spill threshold is 8 by default"
                ),
            ]
        )
        warnings += [
            _warning("drained", "warning", f"{name} was taken out by an operator and gets nothing new", replica=name)
            for name in sorted(self.drained)
            if name.startswith("e") == small
        ]
        return {
            "name": name,
            "aliases": ["claude-*"] if small else [],
            "max_model_len": 32_768 if small else 131_072,
            "conversations": 0 if self.fresh else live + 14,
            "identity": {"sent": decisions["sticky"] + 120, "derived": 31, "none": decisions["balanced"]},
            "panic": False,
            "engines": self._engines(small),
            "operation": self._operation() if small else None,
            "warnings": warnings,
            "held_tokens": held,
            "room_for": max(0, int((capacity - held) / mean)) if mean else None,
            "mean_context_tokens": mean,
            "routing": {
                "affinity": settings["affinity"],
                "placement": settings["placement"],
                "spill_threshold": 8 if threshold is None else threshold,
                "spill_threshold_source": ("auto" if small else "default") if threshold is None else "set",
                "sticky_ratio": kept,
                "in_flight": sum(row["in_flight"] for row in rows),
                "decisions": decisions,
                "refused": 0,
                "balancer": None,
                "counting_since": _iso(self.started_at),
                "admission": admission_of(settings, held / capacity, self.room if small else {}),
                "pins": {
                    "state": "verified" if small else "unverified",
                    "detail": None if small else "v0 /v1/completions: not tested yet",
                    "endpoints": [],
                },
                "replicas": rows,
            },
        }

    def _row(self, replica: str, index: int, small: bool) -> Json:
        second = int(self.now())
        busy = random.Random(f"{replica} {second // 3}").randrange(0, 7) + (3 if index == 2 else 0)
        passed = self.now() - self.started_at
        homes = [row for row in self.conversations if row["home"] == replica and row["state"] != "dormant"]
        drained = replica in self.drained
        busy = 0 if drained else busy
        counts = {
            "placed": 34 + index * 3,
            "sticky": int(passed / 40) + 51 * index,
            "spilled_in": 5 if index == 1 else 0,
            "client_pinned": 2 if index == 0 else 0,
            "rehomed_in": 0,
            "balanced": 11 + index,
        }
        return {
            "replica": replica,
            "state": "draining" if drained else "ready",
            "stalled": False,
            "suspect": False,
            "drained": drained,
            "in_flight": busy,
            **(dict.fromkeys(counts, 0) if self.fresh else counts),
            "conversations": len(homes),
            "resident_tokens": sum(row["context_tokens"] for row in homes),
            "kv_cache_tokens": self.kv_tokens or KV_TOKENS * max(1, len(self.conversations) // (15 * self.replicas)),
            "running": None if not small and index == 1 else busy,
            "waiting": None if not small and index == 1 else max(0, busy - 8),
            "kv_used_ratio": min(0.99, busy * 0.09 + 0.02),
            "prefix_hit_ratio": 0.81 - 0.03 * (index % 4),
            "residents": 5 + index % 2 if self.room.get("engaged") and small else None,
            "reserved_tokens": 210_000 + 9000 * index if self.room.get("engaged") and small else None,
            **self.states.get(replica, {}),
        }

    def _engines(self, small: bool) -> list[Json]:
        if not small:
            pins = [
                {"engine": "v0", "endpoint": path, "state": state, "detail": None, "tested_at": self.started_at}
                for path, state in (
                    ("/v1/chat/completions", "verified"),
                    ("/v1/messages", "verified"),
                    ("/v1/completions", "unverified"),
                )
            ]
            return [engine_of("v0", "qwen3-27b", 2, None, pins)]
        operation = self._operation()
        engines = []
        for index in range(min(self.replicas, 4)):
            name = f"e{index}"
            restarting = operation is not None and operation["state"] == "running" and operation["engine"] == name
            process = process_of(index, restarting, self.started_at) | self.crashes.get(name, {})
            engines.append(engine_of(name, "qwen3-4b", 1, process, []))
        return engines

    def stats_cached(self, window_s: float, to: float, name: str) -> Json:
        """``/api/stats/cached``: one replica has answered nothing, one is slow, one reads everything again."""
        names = [row["replica"] for row in self.model(name)["routing"]["replicas"]]
        ratios = [0.31 if index == 3 else 0.8 - 0.02 * (index % 4) for index in range(len(names))]
        shares = [
            {
                "replica": replica,
                "cached_ratio": ratio,
                "prompt_tokens": 900_000,
                "first_byte_p50_s": None if index == 0 else 0.38 if index != 2 else 1.2,
                "first_byte_p95_s": None if index == 0 else 12.0 + index,
            }
            for index, (replica, ratio) in enumerate(zip(names, ratios, strict=True))
        ]
        return {"from": to - window_s, "to": to, "cached_ratio": sum(ratios) / len(ratios), "replicas": shares}

    # -- changes

    def patch(self, name: str, values: Json) -> Json:
        """``PATCH …/routing``."""
        self.routing[name].update(values)
        routing: Json = self.model(name)["routing"]
        return routing

    def begin_rolling_restart(self) -> Json:
        """It takes ``restart_s`` for each engine."""
        self.operation_began = time.time()
        self.operation = {"kind": "rolling-restart", "engines": [f"e{index}" for index in range(4)]}
        return {"operation": self._operation()}

    def _operation(self) -> Json | None:
        if self.operation is None:
            return None
        passed, each_s = time.time() - self.operation_began, self.restart_s
        engines = self.operation["engines"]
        ended = passed > each_s * len(engines)
        at = len(engines) if ended else int(passed / each_s)
        return {
            "kind": self.operation["kind"],
            "state": "done" if ended else "running",
            "engines": engines,
            "done": engines[:at],
            "engine": None if ended else engines[at],
            "step": None if ended else ("draining", "starting")[int(2 * passed / each_s) % 2],
            "step_since": self.operation_began + at * each_s,
            "started_at": self.operation_began,
            "ended_at": self.operation_began + each_s * len(engines) if ended else None,
            "sentence": "all engines serve again" if ended else "restarting one engine after the other",
        }

    # -- conversations and requests

    def _conversation(self, rng: random.Random, number: int) -> Json:
        subagent = number % 5 in (3, 4) and number > 5
        age = rng.expovariate(1 / 500)
        return {
            "id": key_of("conversation", number),
            "short": key_of("conversation", number)[:8],
            "client": rng.choice(CLIENTS),
            "derived": number % 11 == 10,
            "parent": key_of("conversation", number - number % 5) if subagent else None,
            "kind": "subagent" if subagent else "main",
            "home": f"e{rng.randrange(self.replicas)}/0",
            "turns": rng.randrange(1, 40),
            "state": "dormant" if age > 1500 else "running" if number % 9 == 0 else "idle",
            "in_flight": 1 if number % 9 == 0 else 0,
            "holds": number % 10 == 7,
            "key_name": "alice-laptop" if number % 4 else None,
            "age_s": age,
        }

    def list_conversations(self, model: str, state: str, sort: str) -> list[Json]:
        """In the order that was asked for."""
        if model != "qwen3-4b":
            return []
        now = self.now()
        rows = [
            {
                **row,
                "last_used": now if row["in_flight"] else self.begun_at - row["age_s"],
                **(self._waits(row) if row["holds"] and self.room.get("engaged") else {"waiting_since": None}),
            }
            for row in self.conversations
        ]
        if state == "waiting":
            rows = [row for row in rows if row["waiting_since"] is not None]
        rows = [row for row in rows if state == "all" or row["state"] != "dormant"]
        if sort == "waited":
            return sorted(rows, key=lambda row: (row["waiting_since"] or now, row["id"]))
        keys = {"last_used": "last_used", "context": "context_tokens", "turns": "turns"}
        return sorted(rows, key=lambda row: (-float(row[keys[sort]]), row["id"]))

    def _waits(self, row: Json) -> Json:
        return {"state": "waiting", "waiting_since": self.begun_at - row["turns"]}

    def conversation(self, key: str) -> Json | None:
        """``/api/conversations/{id}``."""
        rows = {row["id"]: row for row in self.list_conversations("qwen3-4b", "all", "turns")}
        row = rows.get(key)
        if row is None:
            return None
        turns = self.turns(row)
        costs: dict[str, int] = {}
        for turn in turns:
            if turn["recomputed_tokens"]:
                cause = "spilled" if turn["decision"] == "spilled" else turn["prefix_change"]
                costs[cause] = costs.get(cause, 0) + turn["recomputed_tokens"]
        children = [other for other in rows.values() if other["parent"] == key]
        return {
            "conversation": {**row, "turns": row["turns"] + row["in_flight"]},
            "children": children,
            "turns": turns[: self.kept_turns],
            "recomputed_by_cause": costs,
        }

    def turns(self, row: Json) -> list[Json]:
        """Newest first. One spills, one finds its history evicted, one meets other tools."""
        rng = random.Random(row["id"])
        turns: list[Json] = []
        prompt = 0
        for number in range(row["turns"]):
            before, prompt = prompt, prompt + rng.randrange(300, 900) + (3500 if number == 0 else 0)
            change = "first" if number == 0 else {4: "tools_changed", 7: "evicted", 9: "moved"}.get(number, "extends")
            cached = 3400 if number == 0 else {4: 3100, 7: 0, 9: 3400}.get(number, before // 16 * 16)
            turns.append(
                turn_of(self.begun_at, self.replicas, row, rng, number, prompt, min(cached, prompt), change, before)
            )
        return turns[::-1]

    def list_requests(self, filters: Json) -> list[Json]:
        """Newest first."""
        rows = [*self.extra_requests]
        for conversation in self.list_conversations("qwen3-4b", "all", "last_used")[:400]:
            key = self.keys[0]["name"] if self.keys and conversation["client"] == "claude-code" else None
            rows += [
                {
                    **turn,
                    "model": "qwen3-4b",
                    "key_name": key,
                    "conversation": conversation["short"],
                    "conversation_id": conversation["id"],
                    "client": conversation["client"],
                    "kind": conversation["kind"],
                    "derived": conversation["derived"],
                    "finish_reason": "stop",
                }
                for turn in self.turns(conversation)
            ]
        wanted = {"key": "key_name"} | {name: name for name in ("model", "outcome", "decision", "replica", "client")}
        for name, field in {**wanted, "endpoint": "endpoint"}.items():
            if filters.get(name):
                value = None if filters[name] == "refused" and name == "decision" else filters[name]
                rows = [row for row in rows if row[field] == value]
        rows = sorted(rows, key=lambda row: -float(row["finished_at"]))[:10_000]
        rows = [{**row, "id": len(rows) - index} for index, row in enumerate(rows)]
        order = _ORDERS.get(filters.get("sort", ""))
        return sorted(rows, key=lambda row: -float(row[order] or 0)) if order else rows

    def breakers(self, window: str) -> list[Json]:
        """``/api/prefix-breakers``."""
        share = {"1h": 1, "24h": 11, "7d": 60}[window]
        lines = (
            ("evicted", "claude-code", 31, 210_400, 0.021),
            ("evicted", "codex", 4, 11_000, 0.0011),
            ("tools_changed", "claude-code", 12, 98_000, 0.0098),
            ("timestamp", "opencode", 40, 61_200, 0.0061),
            ("rehomed", "claude-code", 20, 16_943, 0.0017),
            ("system_turn_moved", "codex", 3, 9100, 0.0009),
        )
        return [
            {
                "cause": cause,
                "client": client,
                "turns": turns * share,
                "recomputed_tokens": tokens * share,
                "share_of_prompt": part,
                "example": self.conversations[index]["id"],
                "what_to_do": None,
            }
            for index, (cause, client, turns, tokens, part) in enumerate(lines)
        ]


_ORDERS = {
    "first_byte": "first_byte_s",
    "duration": "duration_s",
    "waited": "waited_s",
    "computed": "computed_tokens",
}

_COLUMN = {
    "placed": "placed",
    "sticky": "sticky",
    "spilled": "spilled_in",
    "client_pinned": "client_pinned",
    "rehomed": "rehomed_in",
    "balanced": "balanced",
}


def _iso(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))


def _warning(code: str, level: str, text: str, **params: str | int) -> Json:
    return {"code": code, "level": level, "text": text, "what_to_do": "what the server says", "params": params}


def _key(name: str, age_s: float, requests: int, models: list[str] | None = None) -> Json:
    return {
        "name": name,
        "created_at": time.time() - age_s,
        "last_used_at": time.time() - 40,
        "requests_24h": requests,
        "prompt_tokens_24h": requests * 8300,
        "completion_tokens_24h": requests * 190,
        "models": models,
    }
