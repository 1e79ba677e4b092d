"""Processes that write into a ledger until they are killed, one after the other, and say what is certainly written.

Reads from its input the number to begin with and forks a writer, whose first word is its process id (its own word:
the other process might say it after the first number); says ``over`` when that was killed. Forked, because starting
an interpreter twenty times takes longer than the test.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path

from tests.ledger.samples import LIMIT_S, changed, home, record, settings

from lmwarden.ledger import ledger as module
from lmwarden.ledger.ledger import Ledger

ROWS = 25
"""Per message: so many rows and homes."""


def write(folder: Path, first: int) -> None:
    """Rows and homes numbered from ``first`` on; says the number that is next after each that is written."""
    say(os.getpid())
    module._PAUSE_S = 3600.0  # homes wake the ledger, and nothing else does: no row is written before its home is there
    ledger = Ledger(folder, settings())
    ledger.start()
    for start in itertools.count(first, ROWS):
        numbers = range(start, start + ROWS)
        for number in numbers:
            ledger.record(record(status=number, prompt_tokens=number * 2))
        ledger.save_homes("m", changed(*(home(number) for number in numbers)), 100.0, time.time())
        assert ledger.flush(LIMIT_S)
        say(start + ROWS)


def say(what: object) -> None:
    """One line, in one piece."""
    os.write(sys.stdout.fileno(), f"{what}\n".encode())


def main() -> None:
    for line in sys.stdin:
        writer = os.fork()
        if not writer:
            write(Path(sys.argv[1]), int(line))
        os.waitpid(writer, 0)
        say("over")


if __name__ == "__main__":
    main()
