"""One line of a check: what was looked at, how it stands, what to do."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How bad."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    code: str
    level: Level
    text: str
    what_to_do: str | None = None
    """None where it is ok."""
    model: str | None = None
    engine: str | None = None


def ok(code: str, text: str) -> Check:
    """All is well."""
    return Check(code=code, level=Level.OK, text=text)


def warning(code: str, text: str, what_to_do: str) -> Check:
    """It works, but worse than it could."""
    return Check(code=code, level=Level.WARNING, text=text, what_to_do=what_to_do)


def fault(code: str, text: str, what_to_do: str) -> Check:
    """It does not work as promised."""
    return Check(code=code, level=Level.FAULT, text=text, what_to_do=what_to_do)
