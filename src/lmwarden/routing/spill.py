"""Spill: when a turn leaves its home for once.

The test looks at the home replica only: a request leaves if its home's requests in flight *before it* exceed the
spill threshold and another usable replica has strictly fewer. A gate over the whole fleet ("is it imbalanced?") would
switch affinity off for everybody.

A spill does not rebind. It remembers the *second home* and prefers it next time, so that a conversation warms
two caches and not all of them. It goes back with hysteresis: a conversation whose last turn was spilled returns
when its home has come down to three quarters of the threshold, so that it does not swing at the edge.

A home that failed or stayed silent a moment ago (*suspect*) is left too, until the suspicion is over.

Worked example, threshold 8, home e0/1:

    in flight at home   last turn   in flight elsewhere   outcome
            8           at home          0, 0, 0          sticky: 8 does not exceed 8
            9           at home          9, 9, 9          sticky: no other has fewer
            9           at home          2, 0, 5          spilled to the least loaded, which becomes second home
            7           spilled          3 (second)       spilled to the second home: 7 exceeds 6
            6           spilled          3 (second)       sticky: back home
"""

from __future__ import annotations

from lmwarden.routing.conversations import Conversation
from lmwarden.routing.placement import Comparison, compare
from lmwarden.routing.replicas import Fleet, Replica


def return_level(threshold: int) -> int:
    """Requests in flight at home down to which a spilled conversation goes back."""
    return max(0, threshold - max(1, threshold // 4))


def spill_limit(conversation: Conversation, threshold: int) -> int:
    """Requests in flight at home above which this conversation's turn leaves."""
    return return_level(threshold) if conversation.spilled else threshold


def spill_target(
    conversation: Conversation, home: Replica, threshold: int, fleet: Fleet, now: float
) -> tuple[Replica | None, Comparison | None]:
    """Where the turn goes instead of home (None: it stays), and what was compared."""
    suspect = home.is_suspect(now)
    if not suspect and home.in_flight <= spill_limit(conversation, threshold):
        return None, None
    others = [
        replica
        for replica in fleet.usable(now)
        if replica is not home and (suspect or replica.in_flight < home.in_flight)
    ]
    if suspect:
        others = [replica for replica in others if not replica.is_suspect(now)]
    if not others:
        return None, None
    second = conversation.second
    if (
        second is not None
        and second in others
        and second.epoch == conversation.second_epoch
        and second.in_flight <= threshold
    ):
        return second, None
    compared = compare(others, fleet, now)
    return compared.least, compared
