"""What may be asked of a running system, and the checks that need nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from lmwarden.types import MOST_WAIT_S

ROUTING_KEYS = {
    "affinity": "true or false",
    "placement": '"least-loaded" or "hash"',
    "spill_threshold": "an integer from 0 to 1000000, or null for automatic",
    "admission": '"auto" or "off"',
    "prefer": '"balanced", "median" or "tail"',
    "max_wait_s": f"a number from 1 to {MOST_WAIT_S:g} (clients give up at 300 s)",
}
"""What ``patch_routing`` takes, and what each may be."""
MAX_DRAIN_S = 86_400


class CommandError(ValueError):
    """A command that is no command. One line that names the key and what is allowed."""


class SettingsError(CommandError):
    """A change of settings that cannot be made."""


class RestartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to restart, or to drain."""

    drain_s: float | None = None
    """Real seconds that open requests get to finish; None: as configured for the warden's own stop."""
    allow_outage: bool = False
    """Go on where that leaves the model without a ready replica."""


def check_routing_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, if all are allowed.

    Raises:
        SettingsError: one line that names the key and what is allowed.
    """
    for key, value in changes.items():
        if key not in ROUTING_KEYS:
            raise SettingsError(f"{key!r:.80}: unknown key; allowed: {', '.join(ROUTING_KEYS)}")
        allowed = {
            "affinity": isinstance(value, bool),
            "placement": value in ("least-loaded", "hash"),
            "spill_threshold": value is None or (_is_number(value, int) and 0 <= value <= 1_000_000),
            "admission": value in ("auto", "off"),
            "prefer": value in ("balanced", "median", "tail"),
            "max_wait_s": _is_number(value, int, float) and 1 <= value <= MOST_WAIT_S,
        }
        if not allowed[key]:
            raise SettingsError(f"{key}: must be {ROUTING_KEYS[key]}, not {value!r:.100}")
    return dict(changes)


def check_options(given: Mapping[str, Any], *keys: str) -> RestartOptions:
    """The options of a command that takes ``keys``.

    Raises:
        CommandError: one line that names the key and what is allowed.
    """
    allowed: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "drain_s": (
            f"seconds from 0 to {MAX_DRAIN_S}",
            lambda value: _is_number(value, int, float) and 0 <= value <= MAX_DRAIN_S,
        ),
        "allow_outage": ("true or false", lambda value: isinstance(value, bool)),
    }
    for key, value in given.items():
        if key not in keys:
            takes = f"allowed: {', '.join(keys)}" if keys else "this command takes none"
            raise CommandError(f"{key!r:.80}: unknown key; {takes}")
        words, fits = allowed[key]
        if not fits(value):
            raise CommandError(f"{key}: must be {words}, not {value!r:.100}")
    return RestartOptions(**given)


def _is_number(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)
