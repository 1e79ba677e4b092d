"""Counts the request bodies that the gateway holds, all together, and makes the rest wait.

A body counts by the bytes that have arrived, so a client that announces much and sends little takes little. Above
the limit each connection that receives more stops reading; connections go on in the order in which they stopped
as soon as there is room, as many as there is room for. One that went on and must stop again is the next to go on, so
that bodies become complete one after the other and not all a little. All could still stand with half a body each; the
gateway's sweep ends those that have stood too long.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

STEP_BYTES = 64 * 1024
"""What a connection that goes on may take before it stops again."""


class Paused(Protocol):
    """A connection that stopped reading."""

    def resume_body(self) -> None:
        """Go on reading."""
        ...


class BufferBudget:
    """Bytes held against the limit."""

    __slots__ = ("_waiting", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._waiting: OrderedDict[Paused, None] = OrderedDict()

    def take(self, size_bytes: int) -> bool:
        """Count bytes that have arrived. False: the limit is passed, stop reading."""
        self.held_bytes += size_bytes
        return self.held_bytes <= self.limit_bytes

    def give_back(self, size_bytes: int) -> None:
        """The bytes are not held any more."""
        self.held_bytes -= size_bytes
        room = self.limit_bytes - self.held_bytes
        while self._waiting and room >= 0:
            room -= STEP_BYTES
            self._waiting.popitem(last=False)[0].resume_body()

    def wait(self, connection: Paused, *, again: bool) -> None:
        """The connection stopped reading and wants to go on. ``again``: it went on already, so it is the next."""
        self._waiting[connection] = None
        if again:
            self._waiting.move_to_end(connection, last=False)

    def forget(self, connection: Paused) -> None:
        """The connection does not wait any more."""
        self._waiting.pop(connection, None)
