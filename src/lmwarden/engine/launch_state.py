"""What is said of a launched engine: its phase, for people and for the API, and the news of its process."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

NEXT_START = "; the next start is in "
"""Begins what a detail says of the time after the start that it is about."""


class LaunchError(Exception):
    """An engine could not be started. ``str()`` is one plain sentence."""


class EnginePhase(StrEnum):
    """Where a launched engine is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    BACKING_OFF = "backing_off"
    FAILED = "failed"
    STUCK = "stuck"
    STOPPED = "stopped"


class Crash(msgspec.Struct, frozen=True, kw_only=True):
    """An end that nobody wanted."""

    at: float
    """Unix seconds."""
    exit_status: int | None
    """Negative: by that signal; None: not known."""
    was_ready: bool
    """It had served; else it ended while it started."""
    pause_s: float | None
    """Between it and the next start; None: the engine was given up."""
    over_at: float | None = None
    """When it served again, Unix seconds; None: not yet."""

    @property
    def sentence(self) -> str:
        """How it ended, for a person."""
        how = f"with exit status {self.exit_status}"
        if self.exit_status is None:
            how = "(its exit status is not known)"
        elif self.exit_status < 0:
            how = f"by signal {-self.exit_status}"
        return f"it ended {how}" if self.was_ready else f"it ended {how} before it was ready"


class LaunchState(msgspec.Struct, frozen=True, kw_only=True):
    """A launched engine at one moment, for people."""

    phase: EnginePhase
    detail: str
    """One plain sentence."""
    step: str | None
    """What a starting engine is at; None: it is not starting."""
    progress_ratio: float | None
    """0..1 of this step; None: not reported."""
    since: float
    """When the phase began, Unix seconds."""
    pid: int | None
    restarts: int
    """Starts after the first one, whoever wanted them."""
    exit_status: int | None
    """Of the latest end; negative: by that signal; None: not known."""
    last_crash: Crash | None = None
    """The latest; it stays when the engine serves again by itself. None: there was none, or a start after it failed
    otherwise, or an operator restarted the engine before that."""
    last_lines: tuple[str, ...]
    """End of the log of a run that ended by itself."""
    taken_over: bool
    """Started by an earlier warden."""
    outdated: bool
    """It runs another command than the configuration says; a restart applies the new one."""
    command: str
    """What runs, or if nothing does, what a start executes; for a shell, secrets are hidden."""
    log: str
    """Path of the log file."""


class SupervisorNews(Protocol):
    """Takes the news of an engine's process; called on the data loop."""

    def process_started(self, engine: str) -> None:
        """A new process runs. Not called for one that was taken over: nothing changed."""
        ...

    def process_ended(self, engine: str, *, wanted: bool) -> None:
        """It has ended, by itself or (``wanted``) because we ended it; told before anything else is done."""
        ...
