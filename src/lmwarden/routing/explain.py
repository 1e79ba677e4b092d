"""Why a request went where it went: the choice with the numbers it was made on, and the sentence for people."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from lmwarden.routing.placement import Comparison, Nearest
from lmwarden.routing.replicas import Engine, Replica
from lmwarden.types import ConversationKey, Decision, Explanation, Grounds, ReplicaId, Ticket

MOST_CANDIDATES = 8
"""So many are kept in a request's books: with 64 replicas the others are many, and further from being chosen."""

_BINDING = frozenset({Decision.PLACED, Decision.STICKY, Decision.SPILLED, Decision.REHOMED})


class Why(StrEnum):
    """What tipped a decision, beyond its name."""

    LEAST_LOADED = "least loaded"
    FORK = "where its prefix is, as a fork"
    SIBLING = "where a sibling subagent is"
    HASH = "by the hash of its id"
    NAMED = "named by the client"
    NOT_ABOVE = "not above the threshold"
    NO_OTHER = "no other replica has fewer"
    ABOVE = "above the threshold"
    NOT_YET_BACK = "not yet down to the level at which it returns"
    SUSPECT = "its home had just failed"
    STALLED = "its home makes no progress"
    AWAITED = "its home was not heard of yet since the warden started"
    LAST_TURN = "where its last turn went"
    ROOM = "where the waiting room had a place"
    RESPONSE = "its engine keeps the response that it continues"
    AFFINITY_OFF = "affinity is off"
    RANK_IGNORED = "this endpoint ignores a rank"

    __hash__ = str.__hash__  # Enum's is a Python function, and the code is looked up for every request


CODES = {why: why.name.lower() for why in Why}
"""Their names for machines: ``least_loaded``."""


class Choice(msgspec.Struct, eq=False, gc=False):
    """One decision with every number it used. Made on the hot path, so it only keeps references."""

    decision: Decision
    engine: Engine
    replica: Replica | None
    """None: the engine's own balancer chooses the rank."""
    threshold: int
    why: Why
    home: Replica | None = None
    """The conversation's home before this decision."""
    compared: Comparison | None = None
    """The candidates that were compared."""
    home_in_flight: int | None = None
    """Requests in flight at home before this one, as are the next two: noted when the choice is made."""
    home_draining: bool = False
    binds: bool = False
    """It is a turn of a conversation that has, or now gets, a home."""

    def __post_init__(self) -> None:
        home = self.home
        if home is not None:
            self.home_in_flight = home.in_flight
            self.home_draining = home.draining
        self.binds = self.decision in _BINDING

    @property
    def replica_id(self) -> ReplicaId | None:
        return None if self.replica is None else self.replica.id


def grounds(conversation: ConversationKey | None, choice: Choice) -> Grounds:
    """The same for the books of every request: no sentence, and few candidates, those of a conversation's turn only."""
    home = choice.home
    compared = choice.compared if choice.binds else None
    return Grounds(
        conversation,
        CODES[choice.why],
        None if home is None else home.name,
        choice.home_in_flight,
        choice.threshold,
        None if compared is None else Nearest(compared, MOST_CANDIDATES),
    )


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
    replica, home, threshold = _name(choice.replica), _name(choice.home), choice.threshold
    at_home = f"Its home {home} had {choice.home_in_flight} in flight"
    match choice.decision:
        case Decision.CLIENT_PINNED if choice.why is Why.RESPONSE:
            return f"It continues a response that only {choice.engine.name} keeps: {replica}."
        case Decision.STICKY if choice.why is Why.RESPONSE:
            return f"It continues a response that only {choice.engine.name} keeps, where its home {home} is."
        case Decision.CLIENT_PINNED:
            return f"The client named {replica}."
        case Decision.UNROUTED:
            who = "its own balancer decides" if choice.replica is None else "chosen as vLLM's balancer would"
            return f"No rank was chosen by us because {choice.why}: {choice.engine.name}, {who}."
        case Decision.BALANCED:
            return f"No conversation to keep: {_placed(choice)}."
        case Decision.STICKY if choice.why is Why.NO_OTHER:
            return f"{at_home} (spill threshold {threshold}), but no other replica has fewer."
        case Decision.STICKY:
            return f"{at_home}, not above the spill threshold {threshold}."
        case Decision.SPILLED if choice.why is Why.ABOVE:
            return f"{at_home}, above the spill threshold {threshold}; {replica} took this turn."
        case Decision.SPILLED if choice.why is Why.NOT_YET_BACK:
            return f"{at_home}, not yet well below the spill threshold {threshold}; {replica} took this turn."
        case Decision.SPILLED if choice.why is Why.STALLED:
            return f"Its home {home} has work and makes no progress; {replica} took this turn."
        case Decision.SPILLED if choice.why is Why.AWAITED:
            return f"Its home {home} was not heard of yet since the warden started; {replica} took this turn."
        case Decision.SPILLED:
            return f"Its home {home} had just failed; {replica} took this turn."
        case Decision.REHOMED if choice.why is Why.ROOM:
            return f"It waited for a place; its home {home} holds its context no more, and {replica} had room."
        case Decision.REHOMED:
            lost = "is being drained" if choice.home_draining else "is lost"
            return f"Its home {home} {lost}; new home {_placed(choice)}."
    return f"New conversation: {_placed(choice)}."


def _name(replica: Replica | None) -> str:
    return "none" if replica is None else str(replica.id)


def _placed(choice: Choice) -> str:
    compared, replica = choice.compared, choice.replica
    if compared is None or replica is None:
        return f"{_name(replica)}, {choice.why}"
    stalled = [str(other.id) for other in compared.stalled if compared.score_of(other) is None]
    left_out = f" (without {', '.join(stalled)}: work there and no progress)" if stalled else ""
    score = f"with a score of {compared.score_of(replica):.2f} among {len(compared.scored)}"
    return f"{choice.why}, {_name(replica)} {score}{left_out}"
