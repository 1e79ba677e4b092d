"""Progress on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tests.bench.test_results import row

from lmwarden.bench.progress import TerminalProgress, make_terminal


def played(*, terminal: bool) -> str:
    out = io.StringIO()
    progress = TerminalProgress(Console(file=out, force_terminal=terminal, width=120))
    progress.started("8 sessions, on", 2, 6)
    progress.moved(60.0, 120.0, 17)
    progress.finished(row(failed=2))
    return out.getvalue()


def test_a_pipe_gets_plain_lines() -> None:
    assert played(terminal=False).splitlines() == [
        "[2/6] 8 sessions, on",
        "[2/6] 8 sessions, on: first token p50 0.48 s, 10752 output tokens/min, prefix hits 86 %, 2 failed",
    ]


def test_a_terminal_gets_a_moving_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # on a "dumb" one nothing moves
    text = played(terminal=True)
    assert "60/120 s" in text
    assert "17 turns answered" in text
    assert "\x1b[" in text


def test_nothing_measured_is_said() -> None:
    out = io.StringIO()
    progress = TerminalProgress(Console(file=out))
    progress.started("8 sessions, on", 1, 1)
    progress.finished(None)
    assert out.getvalue().endswith("nothing measured\n")


def test_a_pipe_is_wide_enough_for_the_table() -> None:
    terminal = make_terminal()
    assert terminal.is_terminal or terminal.width == 120
