"""For how long an engine has been silent."""

from __future__ import annotations

import asyncio

import pytest

from lmwarden.engine.silence import Silence


class Heard:
    """The loop's clock and the engine's traffic, set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.heard: float | None = None
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)


async def test_it_counts_from_the_first_look_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    silence = Silence(None)
    assert silence.length_s() == 0
    heard.now = 107.0
    assert silence.length_s() == 7
    silence.over()
    assert silence.length_s() == 0


async def test_an_answer_that_flows_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    silence = Silence(lambda: heard.heard)
    assert silence.length_s() == 0
    heard.now, heard.heard = 110.0, 108.0
    assert silence.length_s() == 2
    # What was heard before the silence began says nothing.
    heard.now, heard.heard = 111.0, 50.0
    assert silence.length_s() == 3
