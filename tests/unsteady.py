"""A machine that is busy with other things, for finding the tests that would fail there: ``-p tests.unsteady``.

``./run test -p tests.unsteady --unsteady 1`` runs the tests with two disturbances, both of which any machine may bring
about; a test that fails then has a race, or takes real time for granted:

* **Sockets are late.** What the kernel says of a socket is told to the loops of asyncio a little later, at random.
  The kernel says it again at each look, so nothing is lost, and no order is changed that anybody was promised.
* **Processes stand still.** A process of its own stops pytest or one of its descendants for a moment, at random, and
  lets it go on; the youngest are preferred, as races are near starts. One that somebody else stopped is left alone, but
  a stop that falls into one of ours ends with it.

What a seed does depends on the machine too: a failure shows a race, a repetition may not.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

_LATE_SHARE = 0.1
_LATE_S = (0.002, 0.01, 0.03, 0.1)
_STILL_S = (0.002, 0.01, 0.03, 0.03, 0.08, 0.2)
_LONG_STILL_S, _LONG_SHARE = 1.2, 0.03
_BETWEEN_S = (0.001, 0.005, 0.02, 0.05)
_RESTING = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)

Events = list[tuple[selectors.SelectorKey, int]]
Select = Callable[[Any, float | None], Events]


def late(select: Select, chance: random.Random) -> Select:
    """``select`` that keeps some of what it found to itself for a while."""
    held: dict[tuple[int, int], float] = {}

    def select_late(selector: Any, timeout: float | None = None) -> Events:
        found = select(selector, timeout)
        now, told = time.monotonic(), []
        for key, mask in found:
            of = (id(selector), key.fd)
            if of not in held:
                held[of] = now + (chance.choice(_LATE_S) if chance.random() < _LATE_SHARE else 0.0)
            if held[of] <= now:
                del held[of]
                told.append((key, mask))
        if found and not told:
            time.sleep(0.001)  # not to ask the kernel without pause
        return told

    return select_late


def disturb(family: list[psutil.Process], chance: random.Random) -> None:
    """Have one of these processes stand still for a moment, unless it does so anyway."""
    victim = max(family, key=lambda process: process.pid) if chance.random() < 0.4 else chance.choice(family)
    try:
        if victim.status() in _RESTING:
            return
        victim.suspend()
        time.sleep(_LONG_STILL_S if chance.random() < _LONG_SHARE else chance.choice(_STILL_S))
        victim.resume()
    except psutil.Error:
        pass


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unsteady", type=int, default=1, metavar="SEED", help="disturb the tests, beginning at random")


def pytest_configure(config: pytest.Config) -> None:
    seed = config.getoption("--unsteady")
    selectors.DefaultSelector.select = late(selectors.DefaultSelector.select, random.Random(seed))  # type: ignore[method-assign,assignment]
    command = [sys.executable, __file__, str(os.getpid()), str(seed)]
    disturber = subprocess.Popen(command, start_new_session=True)

    def end() -> None:
        disturber.terminate()
        disturber.wait()

    config.add_cleanup(end)


def main() -> None:
    """Disturb a process, named by number, and its descendants, until it ends or says so. Nobody is left standing."""
    root, ours, chance = psutil.Process(int(sys.argv[1])), psutil.Process(), random.Random(sys.argv[2])
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    while root.is_running() and not told:
        disturb([root, *(process for process in root.children(recursive=True) if process != ours)], chance)
        time.sleep(chance.choice(_BETWEEN_S))


if __name__ == "__main__":
    main()
