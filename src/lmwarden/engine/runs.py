"""Which run of an engine is this? A cache lives as long as the run that filled it.

The metrics page names a run by rank (``metrics.py``). An engine that does not (several API processes, metrics off,
no vLLM) is judged by what never goes backwards in a run: its token counters. They fell: another run. They did not:
the same one, even if nobody listened for a while. Where it has no counters either, only the end of its process, or
a time when nobody listened, ends a run. A look that merely failed never does. What was before the warden's own start
is not known, so the names that we give are new in each run of the warden, too: homes of an engine that names no run
are placed anew after a restart of the warden, rather than believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex

from lmwarden.engine.metrics import EngineMetrics, RankMetrics


class EngineRuns:
    """The runs of one engine's ranks, as the router is told them."""

    def __init__(self, ranks: int) -> None:
        self.names: tuple[str, ...] = ()
        """Boot id of each rank as last told, ours where the engine tells none; empty before its first run."""
        self._boot_ids: tuple[str | None, ...] = (None,) * ranks
        """As the engine told them when it last came up; None: it showed no figures, so they are news later."""
        self._prompt_tokens: list[int | None] = [None] * ranks
        self._warden = token_hex(4)
        """Makes our names differ from those of an earlier warden, whose runs we know nothing of."""
        self._begun = 0
        self._over = False

    def over(self) -> None:
        """The run is known to be over, whatever comes next."""
        self._over = True

    def count(self, ranks: Sequence[RankMetrics]) -> None:
        """Take the counters of a good scrape."""
        self._prompt_tokens = [rank.prompt_tokens for rank in ranks]

    def changed(self, metrics: EngineMetrics | None) -> bool:
        """Whether these figures are another run's than those it came up with; None tells nothing."""
        if metrics is None:
            return False
        pairs = zip(metrics.boot_ids, self._boot_ids, strict=True)
        if any(new is not None and new != old for new, old in pairs):
            return True
        return None in metrics.boot_ids and self._counters_fell(metrics.ranks)

    def begin(self, boot_ids: tuple[str | None, ...], metrics: EngineMetrics | None) -> bool:
        """The engine comes up; whether as another run than before.

        Args:
            boot_ids: as the engine tells them.
            metrics: its figures, if there are any.
        """
        self._begun += 1
        ours = (f"run-{self._warden}-{self._begun}",) * len(boot_ids)
        fallback = self.names if self.names and self._same_unnamed_run(metrics) else ours
        names = tuple(told or other for told, other in zip(boot_ids, fallback, strict=True))
        another = names != self.names
        self.names, self._boot_ids, self._over = names, boot_ids, False
        return another

    def _same_unnamed_run(self, metrics: EngineMetrics | None) -> bool:
        if metrics is not None and any(self._prompt_tokens):
            return not self._counters_fell(metrics.ranks)
        return not self._over

    def _counters_fell(self, ranks: Sequence[RankMetrics]) -> bool:
        return any(
            rank.prompt_tokens is not None and last is not None and rank.prompt_tokens < last
            for rank, last in zip(ranks, self._prompt_tokens, strict=True)
        )
