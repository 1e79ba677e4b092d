"""vLLM's balancers, as measured."""

from __future__ import annotations

from lmwarden.routing.engine_balancer import EngineBalancer, RankLoad

IDLE = RankLoad(0, 0, 0, 0.0)


def test_0_26_rotates_blindly_for_dense_models() -> None:
    balancer = EngineBalancer("0.26")
    busy = RankLoad(own_in_flight=12, running=12, waiting=9, kv_used_ratio=1.0)
    assert [balancer.choose([busy, IDLE]) for _ in range(6)] == [0, 1, 0, 1, 0, 1]


def test_0_26_moe_weighs_waiting_four_times() -> None:
    balancer = EngineBalancer("0.26-moe")
    waiting = RankLoad(0, running=0, waiting=1, kv_used_ratio=0.0)
    running = RankLoad(0, running=3, waiting=0, kv_used_ratio=0.0)
    assert {balancer.choose([waiting, running]) for _ in range(4)} == {1}


def test_0_26_moe_rotates_among_equals() -> None:
    balancer = EngineBalancer("0.26-moe")
    assert [balancer.choose([IDLE] * 3) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_0_27_knows_its_own_requests() -> None:
    balancer = EngineBalancer("0.27")
    own = RankLoad(own_in_flight=12, running=0, waiting=0, kv_used_ratio=0.0)
    assert {balancer.choose([own, IDLE]) for _ in range(20)} == {1}


def test_0_27_adds_kv_pressure_while_something_waits() -> None:
    balancer = EngineBalancer("0.27")
    full = RankLoad(2, running=1, waiting=1, kv_used_ratio=1.0)
    busier = RankLoad(4, running=4, waiting=0, kv_used_ratio=1.0)
    assert {balancer.choose([full, busier]) for _ in range(4)} == {1}
    half = RankLoad(2, running=1, waiting=1, kv_used_ratio=0.5)
    assert {balancer.choose([half, busier]) for _ in range(4)} == {0}
