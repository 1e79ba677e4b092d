"""Whoever is sent away because of us is told when to come back: in 1 to 60 whole seconds, wherever it is said.

Claude Code gives up on a longer one, and a client that reads a fraction or a date may not understand it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmwarden
from lmwarden.console.guard import too_many
from lmwarden.console.session import TooManyTriesError
from lmwarden.gateway import envelope
from lmwarden.gateway.envelope import Problem, refusal, render
from lmwarden.gateway.routes import Api
from lmwarden.types import RefuseReason

LATER = frozenset((429, 502, 503, 504, 529))
"""Statuses that mean: not now."""
SOURCES = Path(lmwarden.__file__).parent
CLIENTS_OF_OTHERS = ("simulation", "bench")
"""An engine's own answers, and a client that reads them."""


def told(response: bytes) -> list[bytes]:
    """The values of Retry-After in a response head."""
    head = response.partition(b"\r\n\r\n")[0]
    return re.findall(rb"(?im)^retry-after:[ \t]*([^\r]*)", head)


def fits(values: list[bytes]) -> bool:
    return len(values) == 1 and re.fullmatch(rb"[1-9][0-9]?", values[0]) is not None and int(values[0]) <= 60


def every_problem() -> list[Problem]:
    made = [refusal(reason, seconds, api) for reason in RefuseReason for api in Api for seconds in (0, 5, 10_000)]
    return [*(value for value in vars(envelope).values() if isinstance(value, Problem)), *made]


@given(st.integers(), st.sampled_from(sorted(LATER)), st.sampled_from(list(Api)), st.booleans())
def test_whatever_was_computed_it_is_1_to_60(seconds: int, status: int, api: Api, close: bool) -> None:
    assert fits(told(render(Problem(status, "Why.", retry_after_s=seconds), api, close=close)))


@pytest.mark.parametrize("api", list(Api))
def test_every_not_now_of_ours_says_when(api: Api) -> None:
    problems = every_problem()
    assert {problem.status for problem in problems} >= {502, 503, 504, 529}
    for problem in problems:
        values = told(render(problem, api, close=True))
        assert fits(values) if problem.status in LATER else not values, problem


@pytest.mark.parametrize("wait_s", [0.0, 0.2, 1.0, 14.9])
def test_the_console_says_it_the_same_way(wait_s: float) -> None:
    assert fits([too_many(TooManyTriesError(wait_s)).headers["Retry-After"].encode()])


def test_nobody_else_writes_that_header() -> None:
    """A place that writes it by itself would not be bounded by what is tested here."""
    places = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if path.relative_to(SOURCES).parts[0] not in CLIENTS_OF_OTHERS
        and re.search(r"""["'(]Retry-After""", path.read_text(), re.IGNORECASE)
    }
    assert places <= {"gateway/envelope.py", "console/guard.py", "console/app.py"}
