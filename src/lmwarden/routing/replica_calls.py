"""What the router is told of its replicas: that they came, went, restarted, are drained, and what was scraped of them.

One half of a ``Router``. A replica that comes up as another run of its engine is empty: what was at home there is lost,
and it is filled gradually (replicas.py). Whatever changes the set of ready replicas is told to the waiting room, whose
places stand on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lmwarden.routing.deciding import Decider
from lmwarden.routing.door import Door
from lmwarden.routing.replicas import Fleet, Replica
from lmwarden.types import Action, ReplicaCapacity, ReplicaId, ReplicaSample, RoutingSettings


class ReplicaCalls:
    """The part of the contract that is about replicas. The other half makes what it works on."""

    _fleet: Fleet
    _settings: RoutingSettings
    _decider: Decider
    _threshold_source: str
    _door: Door | None
    """None: admission is off, or affinity."""

    def observe(self, replica: ReplicaId, sample: ReplicaSample, now: float) -> None:
        """See ``RouterContract``."""
        state = self._fleet.get(replica)
        if state is not None:
            self._fleet.sampled(state, sample, now)

    def replica_up(self, replica: ReplicaId, capacity: ReplicaCapacity, boot_id: str, now: float) -> Sequence[Action]:
        """See ``RouterContract``.

        Raises:
            KeyError: the model has no such replica.
        """
        state = self._fleet[replica]
        if boot_id:
            state.awaited_until = -math.inf
        if boot_id not in ("", state.boot_id):
            if state.boot_id:
                self._fleet.cache_lost(state)
            state.boot_id = boot_id
            state.ramp_due = True
        state.capacity = capacity
        state.succeeded()
        state.up = True
        self._became_ready(state, now)
        self._update_threshold()
        return () if self._door is None else self._door.replicas_changed(now)

    def replica_down(self, replica: ReplicaId, now: float) -> Sequence[Action]:
        """See ``RouterContract``."""
        self._fleet[replica].up = False
        self._fleet.changed()
        return () if self._door is None else self._door.replicas_changed(now)

    def drain(self, replica: ReplicaId, now: float) -> None:
        """See ``RouterContract``. Holds until ``undrain``, over restarts of the engine too."""
        self._fleet[replica].draining = True
        self._fleet.changed()
        if self._door is not None:
            self._door.replicas_will_change(now)

    def undrain(self, replica: ReplicaId, now: float) -> None:
        """See ``RouterContract``."""
        state = self._fleet[replica]
        state.draining = False
        self._became_ready(state, now)
        if self._door is not None:
            self._door.replicas_will_change(now)

    def _became_ready(self, state: Replica, now: float) -> None:
        self._fleet.changed()
        if state.is_ready and state.ramp_due:
            self._fleet.begin_ramp(state, now)

    def _update_threshold(self) -> None:
        self._decider.threshold, self._threshold_source = self._fleet.spill_threshold(self._settings.spill_threshold)
