"""Progress of a run, for people: a line that moves on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console as Terminal
from rich.live import Live
from rich.text import Text

from lmwarden.bench.results import LevelResult

_PIPE_COLUMNS = 120
_BAR_COLUMNS = 20


def make_terminal() -> Terminal:
    """Return where to print: the terminal as wide as it is, a pipe wide enough for the table."""
    terminal = Terminal()
    return terminal if terminal.is_terminal else Terminal(width=_PIPE_COLUMNS)


class Progress(Protocol):
    """What the runner tells while it runs."""

    def started(self, label: str, number: int, total: int) -> None:
        """A cell begins; ``number`` counts from 1."""
        ...

    def moved(self, elapsed_s: float, seconds: float, answered: int) -> None:
        """Some time passed, in modelled seconds; ``answered`` turns so far in this cell."""
        ...

    def finished(self, result: LevelResult | None) -> None:
        """The cell ended; None: nothing was measured."""
        ...


class TerminalProgress:
    """One live line while a cell runs, one plain line when it ended; without a terminal only the latter."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._label = ""
        self._live: Live | None = None

    def started(self, label: str, number: int, total: int) -> None:
        """See ``Progress.started``."""
        self._label = f"[{number}/{total}] {label}"
        if self._terminal.is_terminal:
            self._live = Live(Text(self._label), console=self._terminal, transient=True, auto_refresh=False)
            self._live.start()
        else:
            self._terminal.print(self._label, highlight=False, markup=False, soft_wrap=True)

    def moved(self, elapsed_s: float, seconds: float, answered: int) -> None:
        """See ``Progress.moved``."""
        if self._live is not None:
            share = min(1.0, elapsed_s / seconds)
            bar = "━" * round(_BAR_COLUMNS * share)
            line = f"{self._label}  {bar:<{_BAR_COLUMNS}}  {elapsed_s:4.0f}/{seconds:.0f} s  {answered} turns answered"
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)

    def finished(self, result: LevelResult | None) -> None:
        """See ``Progress.finished``."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._terminal.print(f"{self._label}: {_summary(result)}", highlight=False, markup=False, soft_wrap=True)


def _summary(result: LevelResult | None) -> str:
    if result is None:
        return "nothing measured"
    p50, hits = result.ttfb_s.p50, result.prefix_hit_ratio
    tokens = result.output_tokens_per_minute
    parts = [
        f"first token p50 {p50:.2f} s" if p50 is not None else "no answer",
        f"{tokens:.0f} output tokens/min" if tokens is not None else "output tokens not reported",
        f"prefix hits {100 * hits:.0f} %" if hits is not None else "prefix hits not reported",
    ]
    if result.failed:
        parts.append(f"{result.failed} failed")
    return ", ".join(parts)
