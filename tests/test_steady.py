"""Time without standstills."""

from __future__ import annotations

import time

import pytest
from tests.steady import MOST_S, SteadyTime


def test_a_standstill_is_left_out_and_everything_else_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    steady = SteadyTime()
    begun_s = steady.monotonic()
    now_s = 100.5
    assert steady.monotonic() - begun_s == pytest.approx(0.5)
    now_s = 103.0
    assert steady.monotonic() - begun_s == pytest.approx(0.5 + MOST_S)
    now_s = 103.25
    assert steady.monotonic() - begun_s == pytest.approx(0.75 + MOST_S)
    assert steady.time is time.time
