"""When the waiting room engages: only under thrash, and with hysteresis.

*Demand* is the context of all conversations that are in use (in flight, waiting, or idle for less time than a next turn
usually takes) over what the replicas hold. Above ``ENGAGE_RATIO`` a cache that is visited in a circle has always just
evicted what comes next. It must stand for ``HOLD_S``: where a session ends and the next one begins, both count for a
moment. Where turns were seen to lose their context, ``ENGAGE_LOSING_RATIO`` is enough; where turns were seen to keep it
(there is a CPU tier behind the cache, or the estimate is wrong), no demand is.

With pauses between the turns, holding places makes residents think while others wait: the room stays open then. What is
long depends on the turns: a second of pause is nothing beside fifteen, and half of the time beside one. It disengages
when demand has fallen below 1 and nobody waits, or when pauses became long.
"""

from __future__ import annotations

from collections import deque

from lmwarden.routing.admission_places import KEPT_LOW_RATIO

ENGAGE_RATIO = 1.18
ENGAGE_LOSING_RATIO = 1.13
DISENGAGE_RATIO = 1.0
HOLD_S = 3.0
"""So long demand must stand before the room engages."""
STAY_S = 10.0
"""The room stays engaged for at least so long."""
GAP_ENGAGE_S = 1.0
GAP_DISENGAGE_S = 2.0
"""Three quarters of the gaps between turns must be at most the first to engage; above the second it disengages."""
IDLE_ENGAGE_RATIO = 0.12
IDLE_DISENGAGE_RATIO = 0.2
"""Short turns make short pauses long: the same for the part of its time for which a place stands idle. In virtual time
it is 0.01 to 0.06 where the room gains 25 to 40 % of the output, and 0.2 to 0.3 where it lost 16 %."""
EVIDENCE_S = 30.0
EVIDENCE_TURNS = 6
LOSING_RATIO = 0.5
"""Above this share of such turns the caches thrash."""
KEEPING_RATIO = 0.25
"""At or below this share they do not, whatever the demand."""


class Thrash:
    """The switch. Times in seconds."""

    def __init__(self) -> None:
        self.engaged = False
        self.demand_ratio = 0.0
        """As last seen."""
        self.idle_ratio = 0.0
        """As last seen."""
        self._since = 0.0
        """Of the state."""
        self._above_since: float | None = None
        self._turns: deque[tuple[float, bool]] = deque()
        """Of the last ``EVIDENCE_S``: when, and whether it lost its context."""
        self._lost = 0
        """So many of them did: a busy host has tens of thousands, and everybody who looks asks for their share."""

    def kept(self, kept_ratio: float, now: float) -> None:
        """A later turn found so much of its context."""
        lost = kept_ratio < KEPT_LOW_RATIO
        self._turns.append((now, lost))
        self._lost += lost
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._turns and self._turns[0][0] < now - EVIDENCE_S:
            self._lost -= self._turns.popleft()[1]

    @property
    def lost_ratio(self) -> float | None:
        """The share of recent later turns that lost their context; None: too few to say."""
        if len(self._turns) < EVIDENCE_TURNS:
            return None
        return self._lost / len(self._turns)

    @property
    def level(self) -> float:
        """Demand above it engages."""
        lost = self.lost_ratio
        return ENGAGE_RATIO if lost is None or lost <= LOSING_RATIO else ENGAGE_LOSING_RATIO

    @property
    def keeping(self) -> bool:
        """Turns were seen to find their context."""
        lost = self.lost_ratio
        return lost is not None and lost <= KEEPING_RATIO

    def pausing(self, gap_s: float) -> bool:
        """Agents pause for too long between their turns: by the upper quartile of the gaps, or beside the turns."""
        return gap_s > GAP_ENGAGE_S or self.idle_ratio > IDLE_ENGAGE_RATIO

    def look(
        self,
        demand_ratio: float,
        gap_s: float | None,
        waiting: int,
        now: float,
        *,
        idle_ratio: float = 0.0,
        though_kept: bool = False,
    ) -> bool:
        """Compare demand with capacity.

        Args:
            demand_ratio: What the conversations in use need over what there is.
            gap_s: The upper quartile of the gaps; None: not known.
            waiting: Requests in the room.
            now: Seconds.
            idle_ratio: The part of its time for which a place stands idle; 0: not known.
            though_kept: Engage even if turns find their context.

        Returns:
            Whether the state changed.
        """
        self.demand_ratio, self.idle_ratio = demand_ratio, idle_ratio
        self._forget(now)
        if self.engaged:
            pausing = idle_ratio > IDLE_DISENGAGE_RATIO or (gap_s is not None and gap_s > GAP_DISENGAGE_S)
            over = pausing or (demand_ratio < DISENGAGE_RATIO and not waiting)
            if now - self._since < STAY_S or not over:
                return False
        else:
            keeping = self.keeping and not though_kept
            if demand_ratio <= self.level or keeping or gap_s is None or self.pausing(gap_s):
                self._above_since = None
                return False
            if self._above_since is None:
                self._above_since = now
            if now - self._above_since < HOLD_S:
                return False
        self.switch(engaged=not self.engaged, now=now)
        return True

    def switch(self, *, engaged: bool, now: float) -> None:
        """Set the state."""
        self.engaged, self._since, self._above_since = engaged, now, None
