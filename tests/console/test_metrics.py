"""``/metrics``: the published names, and no label that a client could grow."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.console.scene import Scene

from lmwarden.console.metrics import exposition
from lmwarden.types import Decision, Outcome

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with aiohttp.ClientSession() as session:
        yield Scene(session)


def read(scene: Scene) -> Series:
    scene.refresh()
    text = exposition(scene.control.snapshot).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_the_published_names(scene: Scene) -> None:
    scene.turn(b"a" * 16)
    action = scene.turn(b"a" * 16)
    scene.turn(b"a" * 16, finish=False)
    scene.counters.ended(None, Outcome.REFUSED, None, None)
    scene.watch.scraped_at = 0.0
    series = read(scene)
    model = ("model", "org/model")
    home = ("replica", str(action.replica))
    for name, labels, value in (
        ("lmwarden_requests_total", [("decision", "placed"), model, ("outcome", "ok")], 1),
        ("lmwarden_requests_total", [("decision", "sticky"), model, ("outcome", "ok")], 1),
        ("lmwarden_requests_total", [("decision", "refused"), model, ("outcome", "refused")], 1),
        ("lmwarden_in_flight", [model, home], 1),
        ("lmwarden_conversations", [model, home], 1),
        ("lmwarden_replica_up", [model, home], 1),
        ("lmwarden_waiting_room", [model], 0),
        ("lmwarden_prompt_tokens_total", [model, ("source", "cached")], 120),
        ("lmwarden_prompt_tokens_total", [model, ("source", "computed")], 80),
        ("lmwarden_completion_tokens_total", [model], 14),
        ("lmwarden_time_to_first_byte_seconds_count", [model], 2),
        ("lmwarden_time_to_first_byte_seconds_bucket", [("le", "0.25"), model], 0),
        ("lmwarden_time_to_first_byte_seconds_bucket", [("le", "0.5"), model], 2),
        ("lmwarden_time_to_first_byte_seconds_bucket", [("le", "+Inf"), model], 2),
        ("lmwarden_ledger_dropped_rows_total", [], 0),
    ):
        assert series[name, tuple(sorted(labels))] == value, name
    assert series["lmwarden_engine_scrape_age_seconds", (("engine", "e0"), model)] > 0


async def test_what_was_not_measured_is_absent(scene: Scene) -> None:
    names = {name for name, _ in read(scene)}
    assert "lmwarden_engine_scrape_age_seconds" not in names
    assert "lmwarden_pin_verified" not in names


async def test_a_replica_that_is_down(scene: Scene) -> None:
    scene.replica_down(scene.watch.replicas[0])
    series = read(scene)
    assert series["lmwarden_replica_up", (("model", "org/model"), ("replica", "e0/0"))] == 0


async def test_ids_do_not_grow_the_page(scene: Scene) -> None:
    for decision in Decision:
        for outcome in Outcome:
            scene.counters.ended(decision, outcome, 0.1, None)
    scene.turn(b"first-conversati")
    series = read(scene)
    for number in range(500):
        scene.turn(number.to_bytes(16, "big"))
    assert set(read(scene)) == set(series)
