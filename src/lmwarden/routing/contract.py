"""The router's contract: what every router object offers, ours and the baselines to compare with.

A driver (the gateway, the virtual-time simulation) calls these methods and carries out the returned
actions; nothing happens by itself. The order of a request's calls::

    offer -> Dispatch -> [failed_before_response -> Dispatch] -> first_byte -> finished
                                                               \\-> cancelled (at any time)
    offer -> Refuse                                             (the ticket is closed)
    offer -> (no action)  ... a later call returns its Dispatch or Refuse

``finished`` and ``cancelled`` are idempotent: the second call for a ticket does nothing, so a driver may
call ``cancelled`` in a ``finally`` without asking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from lmwarden.types import (
    Action,
    ConversationKey,
    ConversationView,
    Explanation,
    Grounds,
    Home,
    HomeChanges,
    Outcome,
    ReplicaCapacity,
    ReplicaId,
    ReplicaSample,
    RouterView,
    RoutingRequest,
    RoutingSettings,
    Ticket,
    Usage,
)


class RouterContract(Protocol):
    """One router per model. All ``now`` are seconds on one monotonic clock and never decrease."""

    def offer(self, request: RoutingRequest, now: float) -> tuple[Ticket, Sequence[Action]]:
        """Take a request. No action for the returned ticket means that it waits."""
        ...

    def failed_before_response(self, ticket: Ticket, now: float) -> Sequence[Action]:
        """The engine could not serve the request, and not one byte reached the client.

        Moves the reservation: one more Dispatch per ticket, then a Refuse. To another engine if there is one, unless
        the client named a replica or only this engine can serve it.
        """
        ...

    def first_byte(self, ticket: Ticket, now: float) -> None:
        """The engine's first response body byte arrived."""
        ...

    def finished(self, ticket: Ticket, outcome: Outcome, usage: Usage | None, now: float) -> Sequence[Action]:
        """The request ended; its reservation is released."""
        ...

    def cancelled(self, ticket: Ticket, now: float) -> Sequence[Action]:
        """The client left, before or after dispatch; its reservation is released."""
        ...

    def wants_opening(self, conversation: ConversationKey) -> bool:
        """Whether ``offer`` can use ``RoutingRequest.opening`` for this conversation (it costs a hash)."""
        ...

    def observe(self, replica: ReplicaId, sample: ReplicaSample, now: float) -> None:
        """Take one scrape of a replica. It corrects our own counts and never replaces them.

        A replica that stalls gets no new conversations while another one is ready, and its own go elsewhere meanwhile.
        """
        ...

    def replica_up(self, replica: ReplicaId, capacity: ReplicaCapacity, boot_id: str, now: float) -> Sequence[Action]:
        """A replica became ready (first time, again, or with another boot id: then its cache is empty).

        An empty ``boot_id`` says that nothing is known of its run yet, and changes nothing about its homes.
        """
        ...

    def replica_down(self, replica: ReplicaId, now: float) -> Sequence[Action]:
        """A replica is known dead. Its open requests stay open: the driver reports the end of each."""
        ...

    def drain(self, replica: ReplicaId, now: float) -> None:
        """No new conversation goes there, and its conversations move on their next turn.

        Requests in flight there end by themselves, and what names the replica (or only its engine can serve) still
        goes there. It is idle when ``in_flight`` and ``unrouted_in_flight`` of its view are 0. Holds until ``undrain``,
        over restarts of the engine too; one that comes back empty then fills gradually.
        """
        ...

    def undrain(self, replica: ReplicaId, now: float) -> None:
        """End a drain."""
        ...

    def configure(self, settings: RoutingSettings, now: float) -> Sequence[Action]:
        """Replace the settings, effective with the next request."""
        ...

    def tick(self, now: float) -> Sequence[Action]:
        """Do what became due (expiry of live conversations and the like)."""
        ...

    def next_deadline(self) -> float | None:
        """When the driver should next call ``tick``; None: not needed."""
        ...

    def export_homes(self) -> Sequence[Home]:
        """What should survive a restart of the warden."""
        ...

    def take_home_changes(self) -> HomeChanges:
        """What became of homes since the last call, to be written down; the first time, all of them.

        A home whose engine restarted is not reported for that: its boot id tells.
        """
        ...

    def restore_homes(self, homes: Iterable[Home], boot_ids: Mapping[ReplicaId, str], now: float) -> int:
        """Take back homes from before a restart of the warden. Returns how many.

        ``boot_ids`` holds those that are known already, maybe none. Other homes stand under the boot id that they were
        written with until ``replica_up`` names the engine's run, and are lost if it is another one.
        """
        ...

    def view(self, now: float) -> RouterView:
        """The state, frozen."""
        ...

    def explain(self, ticket: Ticket) -> Explanation:
        """Every number the decision used; for tickets that are still open.

        Raises:
            KeyError: the ticket is not open.
        """
        ...

    def grounds(self, ticket: Ticket) -> Grounds | None:
        """What the latest decision of an open ticket was made on; None: it is not open, or still waits. Cheap."""
        ...

    def conversations(self, now: float, most: int) -> Sequence[ConversationView]:
        """The ``most`` conversations that were used last, the latest first. About 1 us each."""
        ...
