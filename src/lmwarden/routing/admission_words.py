"""Why the waiting room is engaged or open: a code for machines, and one plain English sentence.

Both follow the switch (``admission_demand.py``): whatever keeps it from engaging above its level has a code of its own,
and so has the while between the end of an overload and the moment when it opens. A sentence never says that others wait
where all fit, nor leaves a demand that does not fit without a reason.
"""

from __future__ import annotations

from lmwarden.routing.admission_demand import DISENGAGE_RATIO, Thrash


def why_code(thrash: Thrash, gap_s: float | None, *, capacity_known: bool, though_kept: bool) -> str:
    """One of those that ``types.RoomView`` lists.

    Args:
        thrash: The switch.
        gap_s: The upper quartile of the gaps between turns; None: not known.
        capacity_known: Every engine that takes turns reports what its cache holds.
        though_kept: It engages even if turns find their context.
    """
    if thrash.engaged:
        return "emptying" if thrash.demand_ratio < DISENGAGE_RATIO else "engaged"
    if not capacity_known:
        return "no_capacity"
    if thrash.demand_ratio <= thrash.level:
        return "open"
    if gap_s is not None and thrash.pausing(gap_s):
        return "gaps"
    return "kept" if thrash.keeping and not though_kept else "settling"


def why(code: str, demand_ratio: float, gap_s: float | None) -> str:
    """The sentence. ``code``: of ``why_code``, from the same numbers."""
    demand = f"the conversations in use need {demand_ratio:.2f} times what the replicas hold"
    match code:
        case "engaged":
            return f"Engaged: {demand}; so many run as keep their context, and the others wait."
        case "emptying":
            return f"Emptying: {demand}, so all fit again, and the room opens in a moment."
        case "no_capacity":
            return "Open: an engine reports no KV capacity."
        case "gaps":
            pauses = f"a quarter of the pauses exceeds {gap_s:.1f} s"
            return f"Open: {demand}, but agents pause between their turns ({pauses})."
        case "kept":
            return f"Open: {demand}, but they find their context there."
        case "settling" if gap_s is None:
            return f"Open: {demand}, but it is not known yet how long agents pause between their turns."
        case "settling":
            return f"Open: {demand}; the room engages if that stays so for some seconds."
    return f"Open: {demand}." if demand_ratio <= 1.0 else f"Open: {demand}, too little above to hold anybody."
