"""Time that does not pass while the process stands still: for tests of what is measured over real seconds.

A machine that gives a process nothing for two seconds would leave a window of three seconds nearly empty.
"""

from __future__ import annotations

import time
from typing import Any

MOST_S = 0.6
"""Between two looks at the clock; who measures looks more often than that."""


class SteadyTime:
    """The module ``time`` for one module, whose monotonic clock leaves standstills out."""

    def __init__(self) -> None:
        self._now_s = self._looked_s = time.monotonic()

    def monotonic(self) -> float:
        """Seconds."""
        real_s = time.monotonic()
        self._now_s += min(real_s - self._looked_s, MOST_S)
        self._looked_s = real_s
        return self._now_s

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
