"""A request body of known length that is read straight into a buffer of its own.

The buffer grows with what arrives and never with what is announced: a client that announces 64 MB and sends one byte
costs one step. A step leads to four times what has arrived, so that a large body is moved a few times at most and what
is held stays in proportion to what was sent; where the budget has no room for that, steps are small. What is held
counts against the gateway's budget from the moment at which it is decided to hold it.

A buffer that the transport has its hands on cannot grow, so it grows when the transport asks for the next place.
"""

from __future__ import annotations

from lmwarden.gateway.buffers import BufferBudget

_SMALL_STEP_BYTES = 64 * 1024
_GROWTH = 4


class IncomingBody:
    """One body on its way in."""

    __slots__ = ("_budget", "_held_bytes", "_length", "_view", "arrived_bytes", "buffer")

    def __init__(self, have: bytes, length: int, budget: BufferBudget) -> None:
        """
        Args:
            have: What has arrived, already counted in the budget.
            length: How much it will be, in bytes; more than ``have``.
        """
        self._budget = budget
        self._length = length
        self.buffer = bytearray(have)
        self.arrived_bytes = len(have)
        self._held_bytes = len(have)
        self._view = memoryview(self.buffer)

    @property
    def complete(self) -> bool:
        """All of it has arrived."""
        return self.arrived_bytes == self._length

    def take(self, nbytes: int) -> bool:
        """Count bytes that have arrived. False: the budget is passed, stop reading."""
        self.arrived_bytes += nbytes
        return self.arrived_bytes < self._held_bytes or self.reserve()

    def reserve(self) -> bool:
        """Decide on the next step, if there is to be one. False: the budget is passed, stop reading."""
        step = min(self._length, max(_SMALL_STEP_BYTES, _GROWTH * self.arrived_bytes)) - self._held_bytes
        if step <= 0:
            return True
        if self._budget.held_bytes + step > self._budget.limit_bytes:
            step = min(step, _SMALL_STEP_BYTES)
        self._held_bytes += step
        return self._budget.take(step)

    def space(self) -> memoryview:
        """Where the next bytes go."""
        missing = self._held_bytes - len(self.buffer)
        if missing:
            self._view.release()
            self.buffer += bytes(missing)
            self._view = memoryview(self.buffer)
        return self._view[self.arrived_bytes :]

    def give_up(self) -> None:
        """It is not wanted any more."""
        self._budget.give_back(self._held_bytes)
