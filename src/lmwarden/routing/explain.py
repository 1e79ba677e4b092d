"""Why a request went where it went: the choice with the numbers it was made on, and the sentence for people."""

from __future__ import annotations

from lmwarden.routing.placement import Comparison
from lmwarden.routing.replicas import Engine, Replica
from lmwarden.types import Decision, Explanation, ReplicaId, Ticket

_BINDING = frozenset({Decision.PLACED, Decision.STICKY, Decision.SPILLED, Decision.REHOMED})


class Choice:
    """One decision with every number it used. Made on the hot path, so it only keeps references."""

    __slots__ = ("compared", "decision", "engine", "hashed", "home", "home_in_flight", "near", "replica", "threshold")

    def __init__(
        self,
        decision: Decision,
        engine: Engine,
        replica: Replica | None,
        threshold: int,
        home: Replica | None = None,
        home_in_flight: int | None = None,
        compared: Comparison | None = None,
        *,
        near: str | None = None,
        hashed: bool = False,
    ) -> None:
        self.decision = decision
        self.engine = engine
        self.replica = replica
        """None: the engine's own balancer chooses the rank."""
        self.threshold = threshold
        self.home = home
        """The conversation's home before this decision."""
        self.home_in_flight = home_in_flight
        """Requests in flight there, before this one."""
        self.compared = compared
        """The candidates that were compared."""
        self.near = near
        """``fork`` or ``sibling`` if it started beside one."""
        self.hashed = hashed
        """Chosen by placement ``hash``."""

    @property
    def binds(self) -> bool:
        """Whether it is a turn of a conversation that has, or now gets, a home."""
        return self.decision in _BINDING

    @property
    def replica_id(self) -> ReplicaId | None:
        return None if self.replica is None else self.replica.id


def explanation(ticket: Ticket, choice: Choice, retried: bool) -> Explanation:
    """Freeze a choice."""
    return Explanation(
        ticket=ticket,
        decision=choice.decision,
        replica=choice.replica_id,
        reason=_reason(choice) + (" Sent a second time after a failure." if retried else ""),
        home=None if choice.home is None else choice.home.id,
        home_in_flight=choice.home_in_flight,
        spill_threshold=choice.threshold,
        retried=retried,
        candidates=() if choice.compared is None else choice.compared.frozen(),
    )


def _reason(choice: Choice) -> str:
    replica, home = choice.replica, choice.home
    match choice.decision:
        case Decision.CLIENT_PINNED:
            return f"The client named {_name(replica)}."
        case Decision.UNROUTED:
            if replica is None:
                return f"No rank was chosen by us; {choice.engine.name}'s own balancer decides."
            return f"Affinity is off; {choice.engine.name} was chosen as vLLM's balancer would."
        case Decision.BALANCED:
            return f"No conversation to keep: least loaded, {_least(choice)}."
        case Decision.STICKY:
            return f"{_at_home(choice)}{', but no other replica has fewer' if _is_above(choice) else ''}."
        case Decision.SPILLED:
            return f"{_at_home(choice)}; {_name(replica)} took this turn."
        case Decision.REHOMED:
            return f"Its home {_name(home)} is lost; new home {_placed(choice)}."
    return f"New conversation: {_placed(choice)}."


def _at_home(choice: Choice) -> str:
    limit = f"the spill threshold {choice.threshold}"
    if _is_above(choice):
        where = f"above {limit}"
    elif choice.decision is Decision.STICKY:
        where = f"not above {limit}"
    else:
        where = f"not yet well below {limit}, or it had just failed"
    return f"Its home {_name(choice.home)} had {choice.home_in_flight} in flight, {where}"


def _is_above(choice: Choice) -> bool:
    return (choice.home_in_flight or 0) > choice.threshold


def _name(replica: Replica | None) -> str:
    return "none" if replica is None else str(replica.id)


def _placed(choice: Choice) -> str:
    if choice.near is not None:
        what = "its prefix, as a fork," if choice.near == "fork" else "a sibling subagent"
        return f"{_name(choice.replica)}, where {what} is"
    if choice.hashed:
        return f"{_name(choice.replica)}, by the hash of its id"
    return f"least loaded, {_least(choice)}"


def _least(choice: Choice) -> str:
    compared, replica = choice.compared, choice.replica
    if compared is None or replica is None:
        return _name(replica)
    return f"{_name(replica)} with a score of {compared.score_of(replica):.2f} among {len(compared.scored)}"
