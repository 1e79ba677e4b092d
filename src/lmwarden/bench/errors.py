"""What can go wrong in the load tester, as one hierarchy.

The text of each error is one plain sentence for a person: what, where, what is allowed. ``exit_status`` is
what the command line ends with.
"""

from __future__ import annotations


class BenchError(Exception):
    """The load tester cannot go on."""

    exit_status = 1


class PlanError(BenchError):
    """An argument, a workload file or an arm is unusable."""

    exit_status = 2
