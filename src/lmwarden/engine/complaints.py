"""When to say the same thing again.

Something that does not work is tried every few seconds. Its reason is logged at once when it is new, then again
after 2, 10 and 60 seconds, and every 60 seconds from there on: often enough that somebody who looks at the log now
sees it, and not a line per try.
"""

from __future__ import annotations

_PAUSES_S = (2.0, 10.0, 60.0)


class Complaints:
    """Decides which tries are worth a line."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._said = 0
        self._due_s = 0.0

    def worth_saying(self, reason: str, now_s: float) -> bool:
        """Whether to say ``reason`` at ``now_s`` (monotonic seconds); True counts as said."""
        if reason != self._reason:
            self._reason, self._said = reason, 0
        elif now_s < self._due_s:
            return False
        self._due_s = now_s + _PAUSES_S[min(self._said, len(_PAUSES_S) - 1)]
        self._said += 1
        return True
