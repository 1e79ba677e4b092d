"""How the rooms are put together: in which order news of an engine reach the router and the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from lmwarden.assembly import Model, _Sink
from lmwarden.gateway.gateway import Gateway
from lmwarden.types import Action, Decision, Dispatch, ReplicaCapacity, ReplicaId

HERE = ReplicaId("e0", 0)
LET_OUT = (Dispatch(1, HERE, "e0", Decision.PLACED),)


class Told:
    """Router and gateway of one model: writes down what each is told."""

    name = "m"
    max_model_len = 4096

    def __init__(self) -> None:
        self.router = self
        self.story: list[str] = []

    def replica_up(self, replica: ReplicaId, capacity: ReplicaCapacity, boot_id: str, now: float) -> Sequence[Action]:
        self.story.append("router: up")
        return LET_OUT

    def perform(self, model: str, actions: Sequence[Action]) -> None:
        assert actions == LET_OUT
        self.story.append("gateway: let out")

    def engine_restarted(self, model: str, engine: str) -> None:
        self.story.append(f"gateway: {engine} restarted")

    def describe(self, model: str, max_model_len: int | None) -> None:
        assert max_model_len == 4096


@pytest.mark.parametrize(
    ("boot_ids", "restarted"),
    [(("1", "2"), True), (("1", "1"), False), (("", "2"), False), (("1", ""), False), (("1", "", "2"), True)],
)
def test_the_old_run_is_forgotten_before_anybody_is_let_out(boot_ids: Sequence[str], restarted: bool) -> None:
    told = Told()
    sink = _Sink(cast(Model, told), lambda: 0.0, cast(Gateway, told))
    for boot_id in boot_ids:
        told.story.clear()
        sink.replica_up(HERE, ReplicaCapacity(), boot_id)
    middle = ["gateway: e0 restarted"] if restarted else []
    assert told.story == ["router: up", *middle, "gateway: let out"]
