"""What is said of a model's work."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.console.made_up import counted, engine, model, replica, view

from lmwarden.console.check_work import check_work
from lmwarden.console.findings import Check, Level
from lmwarden.control import ModelSnapshot, Operation, OperationKind, OperationState
from lmwarden.control.rates import Rates
from lmwarden.types import Decision, ReplicaCapacity, ReplicaId, ReplicaSample, ReplicaState, RoutingSettings

STALLED = ReplicaSample(taken_at=1.0, stalled=True)
FAILED = Operation(
    kind=OperationKind.ROLLING_RESTART,
    state=OperationState.FAILED,
    engines=("e0", "e1"),
    step_since=1.0,
    started_at=1.0,
    sentence="e0 did not start: no GPU",
)


def found(ill: ModelSnapshot) -> dict[str, Check]:
    return {check.code: check for check in check_work(ill)}


def worked(cached: int, computed: int, *, sticky: int = 100, placed: int = 20, **changes: Any) -> ModelSnapshot:
    decisions = dict.fromkeys(Decision, 0) | {Decision.STICKY: sticky, Decision.PLACED: placed}
    counters = counted(prompt_tokens_cached=cached, prompt_tokens_computed=computed).counters
    return model(view=view(decisions=decisions, **{"sticky_ratio": 1.0} | changes), counters=counters)


def capacity(kv_cache_tokens: int | None) -> ReplicaCapacity:
    return ReplicaCapacity(kv_cache_tokens=kv_cache_tokens, max_num_seqs=32)


@pytest.mark.parametrize(
    ("ill", "code", "level", "says"),
    [
        (model(view=view(replicas=(replica(1, sample=STALLED),))), "stalled", Level.FAULT, "e0/1 has requests"),
        (model(drained=frozenset({ReplicaId("e0", 1)})), "drained", Level.WARNING, "e0/1 was taken out by an operator"),
        (
            model(view=view(settings=RoutingSettings(affinity=False))),
            "affinity_off",
            Level.WARNING,
            "affinity is off: conversations do not stay",
        ),
        (model(operation=FAILED), "restart_failed", Level.WARNING, "e0 did not start: no GPU"),
        (
            model(view=view(spill_threshold_source="default")),
            "max_num_seqs",
            Level.WARNING,
            "max_num_seqs is not known, so the spill threshold is 8 by default",
        ),
        (
            model(max_model_len=262_144),
            "context_too_large",
            Level.WARNING,
            "a context may grow to 262144 tokens, but the cache of e0/0 holds 42000",
        ),
        (
            model(view=view(replicas=(replica(0), replica(1, resident_tokens=50_000)))),
            "contexts_do_not_fit",
            Level.WARNING,
            "more context than the cache can hold, in tokens: e0/1 holds 50,000 of 42,000",
        ),
        (
            counted(identity_sent=60, identity_derived=30, identity_none=10),
            "no_session_id",
            Level.WARNING,
            "40 of 100 requests came without a session id (30 recognised by how their conversation begins, 10 not",
        ),
        (worked(1000, 3000), "prefix_changes", Level.WARNING, "only 25% of their prompts came from the cache"),
    ],
)
def test_each_trouble(ill: ModelSnapshot, code: str, level: Level, says: str) -> None:
    check = found(ill)[code]
    assert check.level is level
    assert says in check.text
    assert check.what_to_do


def test_a_share_of_few_requests_says_nothing() -> None:
    checks = found(counted(identity_none=19))
    assert not {"no_session_id", "session_ids"} & set(checks)
    assert found(counted(identity_none=20))["no_session_id"].level is Level.WARNING
    assert found(counted(identity_sent=90, identity_derived=10))["session_ids"].level is Level.OK


def test_a_low_cached_share_has_other_causes_too() -> None:
    assert found(worked(3000, 1000))["prefix"].level is Level.OK
    assert "prefix_changes" not in found(worked(1000, 3000, sticky=30, placed=70))
    assert "prefix_changes" not in found(worked(1000, 3000, sticky_ratio=0.5))
    assert not {"prefix", "prefix_changes"} & set(found(worked(0, 3000, sticky=19)))
    without = worked(0, 3000)
    silent = model(view=without.view, counters=without.counters, engines=(engine(usage_details=False),))
    assert not {"prefix", "prefix_changes"} & set(found(silent))


def test_what_is_not_known_is_not_said() -> None:
    unknown = (replica(0, capacity=capacity(None), resident_tokens=10**9),)
    assert not {"context", "contexts", "contexts_do_not_fit"} & set(found(model(view=view(replicas=unknown))))
    assert "context" not in found(model(max_model_len=None))
    # One that tells and one that does not: only the first is judged.
    mixed = (*unknown, replica(1))
    assert found(model(view=view(replicas=mixed)))["contexts"].level is Level.OK


def test_one_that_is_down_is_not_called_stalled() -> None:
    gone = replica(0, sample=STALLED, state=ReplicaState.DOWN)
    assert "stalled" not in found(model(view=view(replicas=(gone,))))


def test_an_operation_that_went_well_is_no_warning() -> None:
    assert "restart_failed" not in found(model())


def test_what_does_not_fit_is_not_blamed_on_the_prompts_heads() -> None:
    """Two warnings with two causes for one trouble send people the wrong way."""
    replicas = (replica(0, resident_tokens=50_000), replica(1))
    checks = found(worked(1000, 3000, replicas=replicas))
    assert "contexts_do_not_fit" in checks
    assert not {"prefix", "prefix_changes"} & set(checks)


def test_the_last_minute_counts_and_not_the_good_hours_before_it() -> None:
    good = worked(900_000, 100_000)
    now_bad = Rates(prompt_tokens_per_s=9_049.0, cached_tokens_per_s=63.0)
    assert found(msgspec.structs.replace(good, rates=now_bad))["prefix_changes"].level is Level.WARNING
    hardly_any = Rates(prompt_tokens_per_s=10.0, cached_tokens_per_s=0.0)
    assert found(msgspec.structs.replace(good, rates=hardly_any))["prefix"].level is Level.OK


def test_prompts_of_which_the_engine_did_not_tell_blame_nobody() -> None:
    """Clients that left: of what it told 90 % was cached."""
    silent = counted(prompt_tokens_cached=900, prompt_tokens_computed=9100, prompt_tokens_unknown=9000).counters
    checks = found(msgspec.structs.replace(worked(900, 100), counters=silent))
    assert "90%" in checks["prefix"].text
    recent = Rates(prompt_tokens_per_s=10_000.0, cached_tokens_per_s=900.0, unknown_tokens_per_s=9_000.0)
    checks = found(msgspec.structs.replace(worked(0, 10_000), rates=recent))
    assert "90%" in checks["prefix"].text
