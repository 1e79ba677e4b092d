"""``benchmarks/room_vs_real``: what it says of what was measured, without a vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import room_vs_real

LEVELS = (6, 12)


def rows(*arms: str) -> list[Any]:
    return [SimpleNamespace(sessions=level, arm=arm) for level in LEVELS for arm in arms]


def test_some_of_the_arms_are_measured_and_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert room_vs_real.verdict(rows("off", "on"), LEVELS, ("off", "on")) == 0
    assert "not compared: that takes the arms off, on, on+admission" in capsys.readouterr().out


def test_an_arm_that_was_asked_for_and_not_measured_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert room_vs_real.verdict(rows("off", "on")[:-1], LEVELS, ("off", "on")) == 1
    assert room_vs_real.verdict(rows("off", "on"), LEVELS, room_vs_real.ARMS) == 1
    assert capsys.readouterr().out.count("not every arm was measured") == 2


@pytest.mark.parametrize(("missed", "status"), [([], 0), (["12 sessions: median"], 1)])
def test_all_arms_are_compared(monkeypatch: pytest.MonkeyPatch, missed: list[str], status: int) -> None:
    monkeypatch.setattr(room_vs_real, "misses", lambda found, levels: missed)
    assert room_vs_real.verdict(rows(*room_vs_real.ARMS), LEVELS, room_vs_real.ARMS) == status
