"""The clockwork behind the HTTP server: one timer for all ranks, no task per token.

Modelled time is the event loop's clock times ``speed``. The driver arms one timer for the end of the next step. When
it fires late, all steps that ended meanwhile are played in order, each at its own modelled moment, so lateness
never accumulates; a stream that is behind writes all its due tokens at once.

A stream is a counter of available tokens and a future: its handler sleeps on the future, is woken at most once per
wake-up of the driver, and formats what is new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lmwarden.simulation.engine import SimulatedEngine
from lmwarden.simulation.metrics import EngineMetrics
from lmwarden.simulation.protocol import FinishReason
from lmwarden.simulation.scheduler import EngineRequest

_COALESCE_S = 0.001
"""Wall-clock seconds: steps that end within this of each other are played in one wake-up."""


class Stream:
    """The tokens of one request as they become available."""

    __slots__ = ("_wakeup", "available", "finish", "request", "words")

    def __init__(self, request: EngineRequest, words: Sequence[str], finish: FinishReason) -> None:
        self.request = request
        self.words = words
        """The whole answer; the first ``available`` are out."""
        self.finish = finish
        self.available = 0
        self._wakeup: asyncio.Future[None] | None = None
        request.tag = self

    @property
    def complete(self) -> bool:
        """All tokens are out."""
        return self.available == len(self.words)

    async def more(self, seen: int) -> int:
        """Wait until more than ``seen`` tokens are available; returns how many are."""
        while self.available <= seen:
            self._wakeup = asyncio.get_running_loop().create_future()
            await self._wakeup
        return self.available

    async def whole(self) -> None:
        """Wait until the answer is complete."""
        while not self.complete:
            await self.more(len(self.words) - 1)

    def wake(self) -> None:
        """Tokens were added."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)


class EngineDriver:
    """Runs a ``SimulatedEngine`` on an event loop, ``speed`` times as fast as its hardware."""

    def __init__(self, engine: SimulatedEngine, metrics: EngineMetrics, speed: float) -> None:
        self._engine = engine
        self._metrics = metrics
        self._speed = speed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    def now(self) -> float:
        """Modelled seconds."""
        return self._loop.time() * self._speed

    def submit(self, stream: Stream, rank: int | None) -> None:
        """Hand the stream's request to the engine.

        Raises:
            ValueError: it never fits.
        """
        self._play()
        now = self.now()
        stream.request.arrival_s = now
        self._engine.submit(stream.request, now, rank)
        self._arm()

    def abort(self, stream: Stream) -> None:
        """The client left; does nothing if the answer is complete."""
        self._play()
        self._engine.abort(stream.request)
        self._arm()

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._play()
        self._arm()

    def _play(self) -> None:
        """Bring the engine to the present and wake the streams that got tokens."""
        woken: dict[Stream, None] = {}
        for progress in self._engine.advance(self.now()):
            request = progress.request
            stream = request.tag
            assert isinstance(stream, Stream)
            self._metrics.observe_token(progress)
            if progress.finished:
                self._metrics.observe_finished(progress, stream.finish)
            stream.available = progress.token
            woken[stream] = None
        for stream in woken:
            stream.wake()

    def _arm(self) -> None:
        event = self._engine.next_event()
        if event is None:
            self.close()
            return
        when = max(event / self._speed, self._loop.time() + _COALESCE_S)
        if self._timer is not None:
            if self._timer_s <= when:
                return
            self._timer.cancel()
        self._timer_s = when
        self._timer = self._loop.call_at(when, self._fire)
