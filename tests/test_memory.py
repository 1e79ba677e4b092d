"""The measure of memory sees what is taken, also after something larger, and not what was taken before."""

from __future__ import annotations

from tests.memory import PeakMemory

MIB = 1 << 20


def test_what_was_taken_before_does_not_hide_what_is_taken_now() -> None:
    assert len(bytearray(b"x" * (128 * MIB)))
    peak = PeakMemory()
    assert peak.grown_bytes < 16 * MIB
    assert len(bytearray(b"x" * (64 * MIB)))
    assert peak.grown_bytes > 48 * MIB
