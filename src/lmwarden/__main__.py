"""The process's first code, for ``lmwarden`` and ``python -m lmwarden`` alike."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command of this process; returns the exit status."""
    # While modules load there is nothing to clean up: Ctrl-C then ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from lmwarden.cli import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


if __name__ == "__main__":
    sys.exit(main())
