"""Records, homes and settings for the ledger's tests."""

from __future__ import annotations

import time
from typing import Any

from lmwarden.config import StorageConfig
from lmwarden.types import CandidateScore, Decision, Home, HomeChanges, Outcome, ReplicaId, RequestRecord

LIMIT_S = 60.0
"""Longer than anything takes on a busy machine."""


def settings(**changes: Any) -> StorageConfig:
    values: dict[str, Any] = {
        "retention_days": 30.0,
        "max_rows": 3_000_000,
        "max_queued_rows": 20_000,
        "history_days": 7.0,
        "history_max_bytes": 1 << 28,
    }
    return StorageConfig(**(values | changes))


def record(**changes: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "finished_at": time.time(),
        "model": "m",
        "endpoint": "/v1/messages",
        "key_name": "anna",
        "conversation": "0a1b2c3d",
        "derived": False,
        "decision": Decision.STICKY,
        "replica": "e0/1",
        "outcome": Outcome.OK,
        "status": 200,
        "streamed": True,
        "retried": False,
        "waited_s": 0.0,
        "first_byte_s": 0.25,
        "duration_s": 1.5,
        "prompt_tokens": 1000,
        "cached_tokens": 900,
        "completion_tokens": 50,
        "finish_reason": "end_turn",
    }
    return RequestRecord(**(values | changes))


def compared(replica: str, **changes: Any) -> CandidateScore:
    """One replica as a placement saw it."""
    values: dict[str, Any] = {
        "replica": ReplicaId.parse(replica), "score": 1.5, "in_flight": 1, "warm": 0.25, "conversations": 2,
        "live_share": 1.0, "kv_used_ratio": None, "held_ratio": None, "other": 0.0,
    }  # fmt: skip
    return CandidateScore(**(values | changes))


def home(number: int, **changes: Any) -> Home:
    """A home that was used at 100 on the router's clock."""
    values: dict[str, Any] = {
        "conversation": number.to_bytes(16, "big"),
        "replica": ReplicaId("e0", number % 4),
        "boot_id": "boot1",
        "context_tokens": 1000 + number,
        "last_used": 100.0,
    }
    return Home(**(values | changes))


def changed(*homes: Home) -> HomeChanges:
    return HomeChanges(list(homes), [])


def forgotten(*homes: Home) -> HomeChanges:
    return HomeChanges([], [home.conversation for home in homes])
