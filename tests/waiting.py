"""Waiting for what somebody else brings about.

Where something tells of it, a test waits for that: an event, a queue, a line of output. ``until`` is for the rest: what
nothing signals, or what another process does in its own time. ``turns`` is for what must not happen: when it has not
happened after a few turns of the loop, nobody in this process is still about to do it.

No test is about how long anything takes, so all of them have the same patience, far more than a loaded machine needs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

PATIENCE_S = 60.0
"""How long a test waits for what must happen; reached only by a failure."""
_FIRST_PAUSE_S, _PAUSE_RATIO, _LONGEST_PAUSE_S = 0.001, 0.05, 0.25
"""Between two looks: at first, then in relation to the time waited so far, because a look may cost something."""


async def until(
    holds: Callable[[], bool | Awaitable[bool]],
    describe: Callable[[], object] = lambda: "it did not happen",
    patience_s: float = PATIENCE_S,
) -> None:
    """Wait until ``holds()``. An ``OSError`` of it is a no: whoever was asked does not answer yet.

    Raises:
        AssertionError: it did not hold within ``patience_s``; the text is ``describe()``.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while not await _holds(holds):
        waited_s = loop.time() - begun
        assert waited_s < patience_s, describe()
        await asyncio.sleep(min(_FIRST_PAUSE_S + _PAUSE_RATIO * waited_s, _LONGEST_PAUSE_S))


async def _holds(holds: Callable[[], bool | Awaitable[bool]]) -> bool:
    try:
        answer = holds()
        return await answer if inspect.isawaitable(answer) else answer
    except OSError:
        return False


async def turns(count: int = 10) -> None:
    """Let the loop turn: what was written on one side of a socket is read on the other, and what is due is done."""
    for _ in range(count):
        await asyncio.sleep(0)
