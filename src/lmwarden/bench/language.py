"""The words of tables and reports, by language.

All of them stand in ``texts/*.toml`` under the same keys; a test holds the files to each other. A *note* is a key and
its values, so that one sentence can be said in every language; a plain string is said as it is.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

import msgspec

from lmwarden.bench.results import AS_RECORDED

LANGUAGES = ("en", "zh")


class Note(msgspec.Struct, frozen=True):
    """One sentence about a run: a key of the texts' table ``note``, and what is filled in."""

    key: str
    values: dict[str, str] = {}
    cell: tuple[int, str, bool] | None = None
    """Sessions, arm, and whether the loop is open: filled in as ``{cell}``."""


AnyNote: TypeAlias = Note | str


class Language:
    """The texts of one language."""

    def __init__(self, code: str) -> None:
        file = resources.files("lmwarden.bench") / "texts" / f"{code}.toml"
        self.code = code
        self._texts: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))

    def text(self, key: str, **values: object) -> str:
        """Return the text of a dotted key, with its names filled in.

        Raises:
            KeyError: there is no such text.
        """
        found: Any = self._texts
        for part in key.split("."):
            found = found[part]
        return str(found).format(**values) if values else str(found)

    def has(self, key: str) -> bool:
        """Whether there is a text of that dotted key."""
        try:
            self.text(key)
        except KeyError:
            return False
        return True

    def keys(self) -> list[str]:
        """All dotted keys."""
        return [key for name, value in self._texts.items() for key in _keys(name, value)]

    def say(self, note: AnyNote) -> str:
        """Return a note as one sentence."""
        if isinstance(note, str):
            return note
        values = dict(note.values)
        if note.cell is not None:
            values["cell"] = self.cell(*note.cell)
        return self.text(f"note.{note.key}", **values)

    def cell(self, sessions: int, arm: str, open_loop: bool) -> str:
        """Return the name of a cell inside a sentence."""
        if open_loop and sessions == AS_RECORDED:
            return self.text("gain.cell_recorded", arm=arm)
        return self.text("gain.cell_open" if open_loop else "gain.cell", level=sessions, arm=arm)

    def level(self, sessions: int) -> str:
        """Return the number of a level as a table or an axis shows it."""
        return self.text("gain.recorded") if sessions == AS_RECORDED else str(sessions)


@cache
def language(code: str) -> Language:
    """Return the texts of ``en`` or ``zh``."""
    return Language(code)


def _keys(name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{name}.{key}" for inner, text in value.items() for key in _keys(inner, text)]
    return [name]
