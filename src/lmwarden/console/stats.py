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

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lmwarden.console.answers import encode, json_answer
from lmwarden.console.charts import Chart, as_csv, latency_chart, replicas_chart, requests_chart, tokens_chart
from lmwarden.control import Control
from lmwarden.ledger.history import LONGEST_S, Question, Stretch
from lmwarden.ledger.history_sums import TICK_S
from lmwarden.ledger.ledger import Ledger
from lmwarden.ledger.schema import LedgerError

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
        self._kept: dict[tuple[str, ...], Chart] = {}
        """Charts of this second."""
        self._second = 0
        self._draw: dict[str, Callable[[Stretch], Chart]] = {
            "tokens": partial(tokens_chart, speed=speed),
            "latency": latency_chart,
            "requests": partial(requests_chart, speed=speed),
        }

    def routes(self) -> list[Route]:
        """All of them."""
        return [Route(f"/api/stats/{name}", self._handler(name)) for name in ("replicas", *self._draw)]

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
        key = (name, *(query.get(part, "") for part in _QUERY))
        async with self._one_at_a_time:
            if int(now) != self._second:
                self._second, self._kept = int(now), {}
            chart = self._kept.get(key)
            if chart is None:
                try:
                    chart = await asyncio.to_thread(lambda: draw(self._ledger.history.stretch(question, now)))
                except LedgerError as error:
                    raise HTTPException(503, f"the history cannot be read: {error}") from None
                self._kept[key] = chart
        return chart

    def _replicas(self, query: QueryParams) -> int:
        """How many replicas a chart is about."""
        if "replica" in query:
            return 1
        snapshot = self._control.snapshot
        models = [snapshot.model(query["model"])] if "model" in query else snapshot.models
        return sum(len(model.view.replicas) for model in models)


def routes(
    control: Control, ledger: Ledger, *, speed: float = 1.0, clock: Callable[[], float] = time.time
) -> list[Route]:
    """``/api/stats/tokens``, ``latency``, ``requests`` and ``replicas``.

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
