"""vLLM's own balancers, as measured: the choice of a rank inside a multi-rank server.

The simulated engine uses it for requests without a rank header; the router uses it to choose an *engine*
when affinity is off and the model has several (results then say ``balancer: emulated``).

* ``0.26``: for dense models vLLM 0.26.0's balancer never sees any queue; it rotates blindly (measured: with 12
  long requests pinned to rank 0, 20 short unpinned ones split evenly between the two ranks).
* ``0.26-moe``: the formula it was meant to use: ``waiting * 4 + running``, first minimum from a start index that
  advances by one with each pick; its own pick counts as waiting until the next snapshot.
* ``0.27``: since 0.27.1, ``max(own in flight, waiting + running)`` plus, while anything waits there,
  ``waiting * 6 * max(0, kv_used - 0.5)``.

None of them knows a prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

BalancerVersion: TypeAlias = Literal["0.26", "0.26-moe", "0.27"]
BALANCER_VERSIONS: tuple[BalancerVersion, ...] = get_args(BalancerVersion)

SNAPSHOT_INTERVAL_S = 0.1
"""How old the counts may be that 0.26-moe balances on."""


class RankLoad(NamedTuple):
    """What a balancer is told of one rank."""

    own_in_flight: int
    """Requests that this balancer sent there and that have not ended; exact."""
    running: int
    waiting: int
    kv_used_ratio: float


class EngineBalancer:
    """Chooses a rank by index. One instance per API server, since the rotation is its state."""

    def __init__(self, version: BalancerVersion) -> None:
        self.version = version
        self._start = 0

    def choose(self, loads: Sequence[RankLoad]) -> int:
        """Index of the chosen rank; ``loads`` holds one entry per rank, at least one."""
        count = len(loads)
        first = self._start % count
        self._start = (first + 1) % count
        if self.version == "0.26":
            return first
        best, best_score = first, float("inf")
        for offset in range(count):
            index = (first + offset) % count
            score = self._score(loads[index])
            if score < best_score:
                best, best_score = index, score
        return best

    def _score(self, load: RankLoad) -> float:
        if self.version == "0.26-moe":
            return load.waiting * 4 + load.running
        pressure = load.waiting * 6 * max(0.0, load.kv_used_ratio - 0.5) if load.waiting else 0.0
        return max(load.own_in_flight, load.waiting + load.running) + pressure
