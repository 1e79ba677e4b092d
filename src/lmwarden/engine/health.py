"""Which engines of one model are offered to the router: the rule for when all their probes fail at once.

Each engine's watch says what it believes of its own engine; here the engines of a model are seen together. One
engine *stands* in one of three ways:

===========  ======================================================================================
``ABSENT``   not ready in this run: never seen ready, or known dead (nobody listens, its process ended)
``READY``    its probes are answered
``FAILING``  it was ready, and its probes are silent or answered with an error
===========  ======================================================================================

Ready engines are offered. A failing engine is not, as long as another one is ready. **When none is ready, the
failing ones are offered all the same** (*panic*): if every probe of a model fails at once, the probes are likely
wrong (a switch, a firewall, a proxy in front of them), and an answer that might still come is better than a 503 to
everybody. Absent engines never are: they cannot answer. The panic ends with the first probe that is answered.

Nothing is measured or timed here, so that tables can test it. It stands between the watches of one model and the
sink, and every replica's way up or down goes through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

import structlog

from lmwarden.engine.pins import PinReport
from lmwarden.types import ReplicaCapacity, ReplicaId, ReplicaSample

log = structlog.get_logger("lmwarden.engine")


class ReplicaSink(Protocol):
    """Takes the news of replicas; called on the data loop."""

    def observe(self, replica: ReplicaId, sample: ReplicaSample) -> None:
        """One rank's figures."""
        ...

    def replica_up(self, replica: ReplicaId, capacity: ReplicaCapacity, boot_id: str) -> None:
        """Ready: first time, again, or after a restart (another boot id)."""
        ...

    def replica_down(self, replica: ReplicaId) -> None:
        """No request should go there."""
        ...

    def engine_lost(self, engine: str) -> None:
        """What was sent to the engine and is still open will never be answered."""
        ...

    def pins(self, engine: str, path: str, report: PinReport) -> None:
        """Whether the engine obeys a rank on one endpoint, as far as tested."""
        ...


class Standing(Enum):
    """What is known of one engine."""

    ABSENT = "absent"
    READY = "ready"
    FAILING = "failing"


class Up(NamedTuple):
    """One replica as the sink is told that it is up."""

    replica: ReplicaId
    capacity: ReplicaCapacity
    boot_id: str


class _Engine:
    """One engine of the model."""

    __slots__ = ("offered", "standing", "ups")

    def __init__(self) -> None:
        self.standing = Standing.ABSENT
        self.offered: bool | None = None
        """None: the sink has not heard of it."""
        self.ups: Sequence[Up] = ()
        """As last told, to say it again."""


class FleetHealth:
    """The engines of one model. Called on the data loop."""

    def __init__(self, sink: ReplicaSink) -> None:
        """Args:
        sink: takes the replicas that are offered.
        """
        self._sink = sink
        self._engines: dict[str, _Engine] = {}
        self._panic = False

    @property
    def panic(self) -> bool:
        """Whether engines are offered although all their probes fail."""
        return self._panic

    def offered(self, engine: str) -> bool:
        """Whether the router may send requests there."""
        found = self._engines.get(engine)
        return found is not None and bool(found.offered)

    def expect(self, engine: str, ups: Sequence[Up]) -> None:
        """What the operator said of an engine that has not answered yet: known, and not offered."""
        found = self._engines[engine] = _Engine()
        for up in ups:
            self._sink.replica_up(*up)
        self._withdraw(found, [up.replica for up in ups])
        self._settle()

    def ready(self, engine: str, ups: Sequence[Up]) -> None:
        """Its probes are answered: first time, again, or as another run.

        Args:
            engine: its name.
            ups: all its replicas.
        """
        found = self._engines.setdefault(engine, _Engine())
        found.standing, found.offered, found.ups = Standing.READY, True, ups
        for up in ups:
            self._sink.replica_up(*up)
        self._settle()

    def failing(self, engine: str, replicas: Sequence[ReplicaId]) -> None:
        """Its probes are silent or answered with an error, for long enough to believe it."""
        found = self._engines.setdefault(engine, _Engine())
        if found.standing is Standing.ABSENT:
            # Never ready in this run: it still starts, and takes no part in a panic.
            self._withdraw(found, replicas)
            return
        found.standing = Standing.FAILING
        self._settle()

    def gone(self, engine: str, replicas: Sequence[ReplicaId]) -> None:
        """It is known dead, or cannot be used as it is now."""
        found = self._engines.setdefault(engine, _Engine())
        found.standing = Standing.ABSENT
        self._withdraw(found, replicas)
        self._settle()

    def _withdraw(self, engine: _Engine, replicas: Sequence[ReplicaId]) -> None:
        if engine.offered is False:
            return
        engine.offered = False
        for replica in replicas:
            self._sink.replica_down(replica)

    def _settle(self) -> None:
        """Offer what should be offered; say when a panic begins and ends."""
        failing = {name: found for name, found in self._engines.items() if found.standing is Standing.FAILING}
        panic = bool(failing) and all(found.standing is not Standing.READY for found in self._engines.values())
        if panic and not self._panic:
            log.error("all probes of a model fail; its engines are tried all the same", engines=sorted(failing))
        elif self._panic and not panic:
            log.warning("probes decide again which engines are used", still_failing=sorted(failing))
        self._panic = panic
        for found in failing.values():
            if panic and not found.offered:
                found.offered = True
                for up in found.ups:
                    self._sink.replica_up(*up)
            elif not panic and found.offered:
                self._withdraw(found, [up.replica for up in found.ups])
