"""A short form of ``benchmarks/slow_readers``: a whole warden, streams, and readers that take almost nothing.

How long anything takes is not asserted.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import slow_readers


async def test_slow_readers_cost_little_and_nobody_elses_stream(tmp_path: Path) -> None:
    options = slow_readers.parser().parse_args(
        ["--streams", "160", "--slow", "40", "--seconds", "0.2", "--rounds", "1"]
    )
    result = await slow_readers.measure(options, tmp_path, lambda line: None)
    assert (result.good, result.lost) == (200, 0)
    assert [one.slow for one in result.rounds] == [False, True]
    # A first flood also makes the warden's heap, which is no reader's: hence some room.
    assert result.slow_kb <= 2 * slow_readers.LIMIT_KB
