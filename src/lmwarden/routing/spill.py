"""Spill: when a turn leaves its home for once.

The test looks at the home replica only: a request leaves if its home's requests in flight *before it* exceed the
spill threshold and another usable replica has strictly fewer. A gate over the whole fleet ("is it imbalanced?") would
switch affinity off for everybody.

A spill does not rebind. It remembers the *second home* and prefers it next time, so that a conversation warms
two caches and not all of them. It goes back with hysteresis: a conversation whose last turn was spilled returns
when its home has come down to three quarters of the threshold, so that it does not swing at the edge. In between it
goes to its second home or to its home, never to a third cache.

A home that failed or stayed silent a moment ago, or that has work and makes no progress (*suspect*), is left too, until
the suspicion is over. So is, for a while after a restart of the warden, a home that was not heard of yet: it may come
up with its cache, and whoever was moved would not come back.

Worked example, threshold 8, home e0/1:

    in flight at home   last turn   in flight elsewhere   outcome
            8           at home          0, 0, 0          sticky: 8 does not exceed 8
            9           at home          9, 9, 9          sticky: no other has fewer
            9           at home          2, 0, 5          spilled to the least loaded, which becomes second home
            7           spilled          3 (second)       spilled to the second home: 7 exceeds 6
            6           spilled          3 (second)       sticky: back home
"""

from __future__ import annotations

from collections.abc import Sequence

from lmwarden.routing.conversations import Conversation
from lmwarden.routing.explain import Why
from lmwarden.routing.placement import Comparison, compare
from lmwarden.routing.replicas import Fleet, Replica

_NOT_ABOVE = Why.NOT_ABOVE  # a look-up in an Enum is slow in Python 3.11, and this is the usual end


def return_level(threshold: int) -> int:
    """Requests in flight at home down to which a spilled conversation goes back."""
    return max(0, threshold - max(1, threshold // 4))


def spill_target(
    conversation: Conversation, home: Replica, threshold: int, fleet: Fleet, now: float
) -> tuple[Replica | None, Why, Comparison | None]:
    """Where the turn goes instead of home (None: it stays), why, and what was compared."""
    suspect = now < home.suspect_until or now < home.stalled_until
    above = home.in_flight > threshold
    if not suspect and not above:
        if not conversation.spilled or home.in_flight <= return_level(threshold):
            return None, _NOT_ABOVE, None
        second = _better_second_home(conversation, home, threshold, fleet.usable(now))
        return (None, _NOT_ABOVE, None) if second is None else (second, Why.NOT_YET_BACK, None)
    others = [
        replica
        for replica in fleet.usable(now)
        if replica is not home and (replica.in_flight < home.in_flight or (suspect and not replica.is_suspect(now)))
    ]
    if not others:
        return None, Why.NO_OTHER, None
    why = Why.ABOVE if above else Why.SUSPECT if now < home.suspect_until else Why.STALLED
    target, compared = stand_in(conversation, home, threshold, others, fleet, now)
    return target, why, compared


def stand_in(
    conversation: Conversation, home: Replica, threshold: int, others: Sequence[Replica], fleet: Fleet, now: float
) -> tuple[Replica, Comparison | None]:
    """Who of ``others`` (at least one, the home not among them) takes a turn of the home's, and what was compared."""
    second = _better_second_home(conversation, home, threshold, others)
    if second is not None:
        return second, None
    compared = compare(others, fleet, now)
    return compared.least, compared


def second_home(conversation: Conversation, threshold: int, candidates: Sequence[Replica]) -> Replica | None:
    """The second home, if it is a candidate, not above the threshold, and its cache is the one that was warmed."""
    second = conversation.second
    if (
        second is not None
        and second.epoch == conversation.second_epoch
        and second.in_flight <= threshold
        and second in candidates
    ):
        return second
    return None


def _better_second_home(
    conversation: Conversation, home: Replica, threshold: int, candidates: Sequence[Replica]
) -> Replica | None:
    """The second home if it is also no worse off than the home."""
    second = second_home(conversation, threshold, candidates)
    if second is not None and (second.in_flight < home.in_flight or home not in candidates):
        return second
    return None
