"""A clock that stands until a test moves it."""

from __future__ import annotations


class Now:
    """Seconds."""

    def __init__(self, s: float = 1000.0) -> None:
        self.s = s

    def __call__(self) -> float:
        return self.s
