"""Which run of an engine answers: told by itself, or by counters that fall."""

from __future__ import annotations

import pytest

from lmwarden.engine import runs as module
from lmwarden.engine.metrics import EngineMetrics, RankMetrics
from lmwarden.engine.runs import EngineRuns


@pytest.fixture(autouse=True)
def same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "token_hex", lambda size: "x")


def figures(*prompt_tokens: int | None, boot_ids: tuple[str | None, ...] | None = None) -> EngineMetrics:
    ids = boot_ids or (None,) * len(prompt_tokens)
    return EngineMetrics(
        tuple(RankMetrics(prompt_tokens=n, boot_id=boot) for n, boot in zip(prompt_tokens, ids, strict=True))
    )


def test_each_rank_has_its_own_name_and_one_that_changes_is_another_run() -> None:
    runs = EngineRuns(2)
    first = figures(5, 5, boot_ids=("a", "b"))
    assert runs.changed(first)
    assert runs.begin(first.boot_ids, first)
    assert runs.names == ("a", "b")
    assert not runs.changed(figures(6, 6, boot_ids=("a", "b")))
    second = figures(6, 0, boot_ids=("a", "c"))
    assert runs.changed(second)
    assert runs.begin(second.boot_ids, second)
    assert runs.names == ("a", "c")


def test_a_look_without_figures_or_without_names_changes_nothing() -> None:
    runs = EngineRuns(1)
    first = figures(5, boot_ids=("a",))
    runs.begin(first.boot_ids, first)
    runs.count(first.ranks)
    assert not runs.changed(None)
    assert not runs.changed(figures(6))
    assert not runs.begin((None,), None)
    assert runs.names == ("a",)


def test_without_names_counters_that_fall_begin_a_run() -> None:
    runs = EngineRuns(2)
    runs.begin((None, None), figures(10, 10))
    runs.count(figures(10, 10).ranks)
    assert not runs.changed(figures(10, 11))
    fallen = figures(20, 3)
    assert runs.changed(fallen)
    assert runs.begin(fallen.boot_ids, fallen)
    assert runs.names == ("run-x-2", "run-x-2")


def test_without_names_counters_that_went_on_are_the_same_run_even_after_a_refusal() -> None:
    runs = EngineRuns(1)
    runs.begin((None,), figures(10))
    runs.count(figures(10).ranks)
    runs.over()
    assert not runs.begin((None,), figures(12))
    assert runs.names == ("run-x-1",)


def test_without_names_and_counters_only_a_known_end_ends_a_run() -> None:
    runs = EngineRuns(1)
    assert runs.begin((None,), None)
    assert not runs.begin((None,), None)
    runs.over()
    assert runs.begin((None,), None)
    assert not runs.begin((None,), None)
    assert runs.names == ("run-x-3",)


def test_two_wardens_never_give_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    names = set()
    for _ in range(2):
        runs = EngineRuns(1)
        runs.begin((None,), None)
        names.add(runs.names)
    assert len(names) == 2
