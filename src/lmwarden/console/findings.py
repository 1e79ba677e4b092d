"""One line of a check: what was looked at, how it stands, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

import msgspec

Param: TypeAlias = str | int | float


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
    params: Mapping[str, Param] = {}
    """What the text says of this very case, by name: with the code it can be said in other words. What is not known is
    left out."""


def ok(code: str, text: str, **params: Param | None) -> Check:
    """All is well."""
    return Check(code=code, level=Level.OK, text=text, params=known(params))


def warning(code: str, text: str, what_to_do: str, **params: Param | None) -> Check:
    """It works, but worse than it could."""
    return Check(code=code, level=Level.WARNING, text=text, what_to_do=what_to_do, params=known(params))


def fault(code: str, text: str, what_to_do: str, **params: Param | None) -> Check:
    """It does not work as promised."""
    return Check(code=code, level=Level.FAULT, text=text, what_to_do=what_to_do, params=known(params))


def known(params: Mapping[str, Param | None]) -> dict[str, Param]:
    """Without what is not known."""
    return {name: value for name, value in params.items() if value is not None}
