"""How a command ends badly: one line on stderr, and the exit status that scripts rely on."""

from __future__ import annotations


class CommandError(Exception):
    """Ends the command. ``str()`` is one line for a person."""

    exit_status = 1


class UsageError(CommandError):
    """Unusable arguments or configuration (exit status 2)."""

    exit_status = 2


class CheckFailedError(CommandError):
    """A check failed (exit status 1)."""
