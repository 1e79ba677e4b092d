"""Arms: the routings that are compared, and what the console is told for each.

``off`` is vLLM's own balancer, ``hash`` a home by a hash of the session with spill, ``on`` LM Warden's placement
without its waiting room, ``on+admission`` LM Warden as shipped, with it. ``as-is`` measures whatever runs, without a
console. An arm is allowed here or nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from lmwarden.bench.errors import PlanError
from lmwarden.types import RoutingSettings

AS_IS = "as-is"
WITH_ROOM = "on+admission"

_SETTINGS: dict[str, dict[str, bool | str]] = {
    "off": {"affinity": False},
    "hash": {"affinity": True, "placement": "hash", "admission": "off"},
    "on": {"affinity": True, "placement": "least-loaded", "admission": "off"},
    WITH_ROOM: {"affinity": True, "placement": "least-loaded", "admission": "auto"},
}


def parse_arms(text: str, *, as_is: bool) -> list[str]:
    """Read a comma-separated list of arms.

    Args:
        text: the list.
        as_is: whether ``as-is`` is one: where something runs already, and not where it is started to be compared.

    Raises:
        PlanError: it is empty, or an arm is unknown or repeated.
    """
    arms = [arm.strip() for arm in text.split(",")]
    known = [*_SETTINGS, AS_IS] if as_is else [*_SETTINGS]
    for arm in arms:
        if arm not in known:
            raise PlanError(f"--arms {arm or text!r}: unknown arm; allowed are {', '.join(known)}")
    if len(set(arms)) != len(arms):
        raise PlanError(f"--arms {text}: an arm is named twice")
    if AS_IS in arms and len(arms) > 1:
        raise PlanError(f"--arms {text}: {AS_IS} switches nothing and stands alone")
    return arms


def parse_levels(text: str) -> list[int]:
    """Read a comma-separated list of numbers of sessions.

    Raises:
        PlanError: one is not a whole number from 1 to 10,000, or is repeated.
    """
    try:
        levels = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise PlanError(f"--levels {text}: expected whole numbers separated by commas, e.g. 4,8,16") from error
    if not all(1 <= level <= 10_000 for level in levels):
        raise PlanError(f"--levels {text}: a level is a number of sessions from 1 to 10000")
    if len(set(levels)) != len(levels):
        raise PlanError(f"--levels {text}: a level is named twice")
    return levels


def console_patch(arm: str) -> dict[str, bool | str]:
    """Return what to PATCH on the console for an arm; empty for ``as-is``."""
    return {} if arm == AS_IS else dict(_SETTINGS[arm])


def routing_settings(arm: str, prefer: str = "balanced") -> RoutingSettings:
    """Return the router's settings for an arm, for virtual time. ``prefer``: of the waiting room."""
    patch = console_patch(arm)
    return RoutingSettings(
        affinity=bool(patch["affinity"]),
        placement=str(patch.get("placement", "least-loaded")),
        admission=str(patch.get("admission", "off")),
        prefer=prefer,
    )


def needs_console(arms: Sequence[str]) -> bool:
    """Whether switching to these arms needs the console."""
    return any(arm != AS_IS for arm in arms)
