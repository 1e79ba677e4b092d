"""``/api/stats/…``: what the history answers to a browser, as JSON or CSV (charts.py says what stands in it).

The file is read in a thread, by one question at a time, and a chart serves everybody who asks for it within a second.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lmwarden.console.answers import encode, json_answer
from lmwarden.console.charts import (
    CachedShares,
    Chart,
    as_csv,
    cached_shares,
    latency_chart,
    replicas_chart,
    requests_chart,
    tokens_chart,
)
from lmwarden.control import Control
from lmwarden.ledger.history import LONGEST_S, Question, Stretch
from lmwarden.ledger.history_sums import TICK_S
from lmwarden.ledger.ledger import Ledger
from lmwarden.ledger.schema import LedgerError

T = TypeVar("T")

USUAL_WINDOW = "1h"
_WINDOW = re.compile(r"([1-9][0-9]{0,3})([mhd])", re.ASCII)
_UNITS_S = {"m": 60, "h": 3600, "d": 86_400}
_QUERY = ("window", "from", "to", "model", "replica")


class Stats:
    """The handlers."""

    def __init__(self, control: Control, ledger: Ledger, speed: float, clock: Callable[[], float]) -> None:
        """See ``routes``."""
        self._control = control
        self._ledger = ledger
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._kept: dict[tuple[str, ...], Any] = {}
        """Answers of this second."""
        self._second = 0
        self._draw: dict[str, Callable[[Stretch], Chart]] = {
            "tokens": partial(tokens_chart, speed=speed),
            "latency": latency_chart,
            "requests": partial(requests_chart, speed=speed),
        }

    def routes(self) -> list[Route]:
        """All of them."""
        charts = [Route(f"/api/stats/{name}", self._handler(name)) for name in ("replicas", *self._draw)]
        return [*charts, Route("/api/stats/cached", self._cached)]

    async def _cached(self, request: Request) -> Response:
        """Replica by replica: the cached share of prompts, as the engines counted it per request, and first bytes."""
        query = request.query_params
        now = self._clock()
        question = _question(query, now, durations=False)
        if question.model is None or question.replica is not None:
            raise HTTPException(400, "model: must be one of those that are served, and replica not be there")
        view = self._control.snapshot.model(question.model).view
        names = [str(replica.replica) for replica in view.replicas]

        def ask() -> CachedShares:
            return cached_shares(question, names, self._ledger.history.by_replica(question, now))

        return json_answer(encode(await self._once(_key("cached", query), now, ask)))

    def _handler(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            query = request.query_params
            form = query.get("format", "json")
            if form not in ("json", "csv"):
                raise HTTPException(400, f"format: must be json or csv, not {form!r:.40}")
            chart = await self._chart(name, query)
            if form == "json":
                return json_answer(encode(chart))
            attachment = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
            return Response(as_csv(chart.points), media_type="text/csv", headers=attachment)

        return show

    async def _chart(self, name: str, query: QueryParams) -> Chart:
        draw = self._draw.get(name) or partial(replicas_chart, replicas=self._replicas(query))
        now = self._clock()
        question = _question(query, now, durations=name == "latency")
        if question.model is not None:
            self._control.snapshot.model(question.model)  # raises where there is none
        return await self._once(_key(name, query), now, lambda: draw(self._ledger.history.stretch(question, now)))

    async def _once(self, key: tuple[str, ...], now: float, ask: Callable[[], T]) -> T:
        """An answer of the history, the same for all who ask within a second."""
        async with self._one_at_a_time:
            if int(now) != self._second:
                self._second, self._kept = int(now), {}
            if key not in self._kept:
                try:
                    self._kept[key] = await asyncio.to_thread(ask)
                except LedgerError as error:
                    raise HTTPException(503, f"the history cannot be read: {error}") from None
            found: T = self._kept[key]
        return found

    def _replicas(self, query: QueryParams) -> int:
        """How many replicas a chart is about."""
        if "replica" in query:
            return 1
        snapshot = self._control.snapshot
        models = [snapshot.model(query["model"])] if "model" in query else snapshot.models
        return sum(len(model.view.replicas) for model in models)


def _key(name: str, query: QueryParams) -> tuple[str, ...]:
    return (name, *(query.get(part, "") for part in _QUERY))


def routes(
    control: Control, ledger: Ledger, *, speed: float = 1.0, clock: Callable[[], float] = time.time
) -> list[Route]:
    """``/api/stats/tokens``, ``latency``, ``requests``, ``replicas`` and ``cached``.

    Args:
        control: knows the models.
        ledger: keeps the history.
        speed: modelled seconds per second.
        clock: Unix seconds.
    """
    return Stats(control, ledger, speed, clock).routes()


def _question(query: QueryParams, now: float, *, durations: bool) -> Question:
    """What a query asks for: the last ``window``, or ``from`` and ``to``.

    Raises:
        HTTPException: (400) it is none.
    """
    if "from" in query:
        if "window" in query:
            raise HTTPException(400, "window: not together with from and to")
        begin_s, end_s = _moment(query, "from", now), _moment(query, "to", now)
    else:
        end_s = _moment(query, "to", now)
        begin_s = end_s - window_s(query.get("window", USUAL_WINDOW))
    if not TICK_S <= end_s - begin_s <= LONGEST_S or begin_s < 0:
        raise HTTPException(400, f"from, to: must be at least {TICK_S} s and at most 366 days apart")
    return Question(
        begin_s=begin_s, end_s=end_s, model=query.get("model"), replica=query.get("replica"), durations=durations
    )


def window_s(text: str) -> float:
    """The seconds of a window like ``24h``.

    Raises:
        HTTPException: (400) it is none.
    """
    match = _WINDOW.fullmatch(text)
    if match is None:
        raise HTTPException(400, f"window: must be a number of m, h or d, as 1h, 6h, 24h or 7d, not {text!r:.40}")
    return int(match[1]) * _UNITS_S[match[2]]


def _moment(query: QueryParams, name: str, usual: float) -> float:
    text = query.get(name)
    if text is None:
        return usual
    try:
        moment = float(text) if len(text) <= 30 else math.nan
    except ValueError:
        moment = math.nan
    if not 0 <= moment < 2**40:
        raise HTTPException(400, f"{name}: must be a time in Unix seconds, not {text!r:.40}")
    return moment
