"""Arms: the routings that are compared, and what the console is told for each.

``off`` is vLLM's own balancer, ``hash`` a home by a hash of the session with spill, ``on`` LM Warden's
placement. ``as-is`` measures whatever runs, without a console. An arm is allowed here or nowhere:
``on+admission`` is LM Warden with its waiting room, in virtual time only: the console cannot switch that on yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from lmwarden.bench.errors import PlanError
from lmwarden.types import RoutingSettings

AS_IS = "as-is"

_SETTINGS: dict[str, dict[str, bool | str]] = {
    "off": {"affinity": False},
    "hash": {"affinity": True, "placement": "hash"},
    "on": {"affinity": True, "placement": "least-loaded"},
}
ADMISSION = "on+admission"


def parse_arms(text: str, *, virtual: bool = False) -> list[str]:
    """Read a comma-separated list of arms.

    Args:
        text: as given.
        virtual: they are played in virtual time.

    Raises:
        PlanError: it is empty, or an arm is unknown, repeated or not to be had there.
    """
    arms = [arm.strip() for arm in text.split(",")]
    for arm in arms:
        if arm == ADMISSION:
            if virtual:
                continue
            raise PlanError(f"--arms {arm}: the waiting room is not in this version; allowed are {_allowed()}")
        if arm != AS_IS and arm not in _SETTINGS:
            raise PlanError(f"--arms {arm or text!r}: unknown arm; allowed are {_allowed()}")
    if len(set(arms)) != len(arms):
        raise PlanError(f"--arms {text}: an arm is named twice")
    if AS_IS in arms and len(arms) > 1:
        raise PlanError(f"--arms {text}: {AS_IS} switches nothing and stands alone")
    return arms


def _allowed() -> str:
    return ", ".join([*_SETTINGS, AS_IS])


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
    if arm == ADMISSION:
        return RoutingSettings(admission="auto", prefer=prefer)
    patch = console_patch(arm)
    return RoutingSettings(affinity=bool(patch["affinity"]), placement=str(patch.get("placement", "least-loaded")))


def needs_console(arms: Sequence[str]) -> bool:
    """Whether switching to these arms needs the console."""
    return any(arm != AS_IS for arm in arms)
