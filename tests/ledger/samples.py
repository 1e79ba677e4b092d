"""Records, homes and settings for the ledger's tests."""

from __future__ import annotations

import time
from typing import Any

from lmwarden.config import StorageConfig
from lmwarden.types import Decision, Home, HomeChanges, Outcome, ReplicaId, RequestRecord

LIMIT_S = 20.0
"""Longer than anything takes on a busy machine."""


def settings(**changes: Any) -> StorageConfig:
    values: dict[str, Any] = {"retention_days": 30.0, "max_rows": 3_000_000, "max_queued_rows": 20_000}
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
