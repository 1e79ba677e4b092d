"""A short form of ``benchmarks/soak``: a whole warden under a compressed day, and its accounts afterwards.

How late the event loop was is not asserted: that is the machine's. Growth shows only in the long form.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import soak
from benchmarks.soaking.table import table


async def test_a_short_day_leaves_nothing_behind(tmp_path: Path) -> None:
    options = soak.parser().parse_args(["--requests", "10000", "--restarts", "2", "--agents", "32"])
    found = await soak.run(options, tmp_path, lambda line: None)
    assert len(found) > 15
    assert not [check for check in found if not check.passed and not check.timing], "\n" + table(found)
