"""``/metrics``: the published names, and no label that a client could grow."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.console.made_up import CHAT, MESSAGES, counted, engaged, model, pin, process, replica, room, snapshot, view
from tests.console.scene import Scene

from lmwarden import __version__
from lmwarden.console.metrics import exposition
from lmwarden.gateway.loop_lag import LoopLagSnapshot
from lmwarden.types import Decision, Outcome, PinVerdict, ReplicaSample

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with aiohttp.ClientSession() as session:
        yield Scene(session)


def read(scene: Scene) -> Series:
    scene.refresh()
    return parsed(exposition(scene.control.snapshot))


def parsed(page: bytes) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


async def test_the_published_names(scene: Scene) -> None:
    scene.turn(b"a" * 16)
    action = scene.turn(b"a" * 16)
    scene.turn(b"a" * 16, finish=False)
    scene.counters.ended(None, Outcome.REFUSED, None, None)
    scene.watch.scraped_at = 0.0
    series = read(scene)
    named = ("model", "org/model")
    home = ("replica", str(action.replica))
    for name, labels, value in (
        ("lmwarden_requests_total", [("decision", "placed"), named, ("outcome", "ok")], 1),
        ("lmwarden_requests_total", [("decision", "sticky"), named, ("outcome", "ok")], 1),
        ("lmwarden_requests_total", [("decision", "refused"), named, ("outcome", "refused")], 1),
        ("lmwarden_in_flight", [named, home], 1),
        ("lmwarden_conversations", [named, home], 1),
        ("lmwarden_replica_up", [named, home], 1),
        ("lmwarden_waiting_room", [named], 0),
        ("lmwarden_prompt_tokens_total", [named, ("source", "cached")], 120),
        ("lmwarden_prompt_tokens_total", [named, ("source", "computed")], 80),
        ("lmwarden_completion_tokens_total", [named], 14),
        ("lmwarden_time_to_first_byte_seconds_count", [named], 2),
        ("lmwarden_time_to_first_byte_seconds_bucket", [("le", "0.25"), named], 0),
        ("lmwarden_time_to_first_byte_seconds_bucket", [("le", "0.5"), named], 2),
        ("lmwarden_time_to_first_byte_seconds_bucket", [("le", "+Inf"), named], 2),
        ("lmwarden_ledger_dropped_rows_total", [], 0),
        ("lmwarden_ledger_trouble", [], 0),
        ("lmwarden_build_info", [("version", __version__)], 1),
        ("lmwarden_engine_state", [named, ("engine", "e0"), ("state", "starting")], 1),
        ("lmwarden_engine_state", [named, ("engine", "e0"), ("state", "up")], 0),
        ("lmwarden_requests_identified_total", [named, ("by", "none")], 0),
    ):
        assert series[name, tuple(sorted(labels))] == value, name
    assert series["lmwarden_engine_scrape_age_seconds", (("engine", "e0"), named)] > 0


async def test_engines_that_were_launched_and_tested() -> None:
    pins = {CHAT: pin(PinVerdict.VERIFIED), MESSAGES: pin(PinVerdict.FAILED), "/v1/other": pin(PinVerdict.UNVERIFIED)}
    well = msgspec.structs.replace(process(restarts=3), pins=pins)
    stalled = (replica(0, sample=ReplicaSample(taken_at=1.0, stalled=True)), replica(1, sample=None))
    made_up = snapshot(
        model(
            engines=(well,),
            view=view(replicas=stalled),
            counters=counted(identity_derived=5, unread_prompts=4).counters,
        ),
        ledger_trouble="the disk is full",
        own_answers={(404, "model_not_found"): 7},
    )
    series = parsed(exposition(made_up))
    labels = (("engine", "e0"), ("model", "org/model"))
    assert series["lmwarden_engine_restarts_total", labels] == 3
    by_endpoint = {
        dict(of)["endpoint"]: value for (name, of), value in series.items() if name == "lmwarden_pin_verified"
    }
    # What was not tested is absent.
    assert by_endpoint == {CHAT: 1, MESSAGES: 0}
    by_replica = {dict(of)["replica"]: v for (name, of), v in series.items() if name == "lmwarden_replica_stalled"}
    assert by_replica == {"e0/0": 1}
    assert series["lmwarden_ledger_trouble", ()] == 1
    assert series["lmwarden_unread_prompts_total", ()] == 4
    assert series["lmwarden_own_answers_total", (("code", "model_not_found"), ("status", "404"))] == 7
    assert series["lmwarden_requests_identified_total", (("by", "derived"), ("model", "org/model"))] == 5


async def test_the_client_port_and_the_loop_behind_it() -> None:
    lag = LoopLagSnapshot(counts=(5, 4, 0, 0, 0, 0, 0, 0, 0, 0, 1), sum_s=2.5, tasks=14)
    shared = counted(client_connections=7, buffered_bytes=4096).counters
    models = (model(counters=shared), model(name="other", counters=shared))
    series = parsed(exposition(snapshot(*models, loop_lag=lag)))
    # Shared by all models, so not a sum over them.
    assert series["lmwarden_client_connections", ()] == 7
    assert series["lmwarden_buffered_bytes", ()] == 4096
    assert series["lmwarden_event_loop_tasks", ()] == 14
    buckets = {
        dict(of)["le"]: v for (name, of), v in series.items() if name == "lmwarden_event_loop_lag_seconds_bucket"
    }
    assert (buckets["0.001"], buckets["0.002"], buckets["1.0"], buckets["+Inf"]) == (5, 9, 9, 10)
    assert series["lmwarden_event_loop_lag_seconds_sum", ()] == 2.5


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


def test_the_waiting_room_in_figures() -> None:
    named = ("model", "org/model")
    counters = counted(
        requests={(None, Outcome.CANCELLED): 2, (None, Outcome.REFUSED): 1, (None, Outcome.FAILED): 1},
        wait_counts=(0,) * 8 + (3,) + (0,) * 5,
        wait_sum_s=36.0,
    ).counters
    held = engaged(room=room(engaged=True, waiting=3), wait_expired=2)
    series = parsed(exposition(snapshot(model(view=held, counters=counters))))
    for name, labels, value in (
        ("lmwarden_waiting_room", [named], 3),
        ("lmwarden_waiting_room_engaged", [named], 1),
        ("lmwarden_wait_expired_total", [named], 2),
        ("lmwarden_waiting_room_seconds_sum", [named], 36),
        ("lmwarden_waiting_room_seconds_bucket", [("le", "8.0"), named], 0),
        ("lmwarden_waiting_room_seconds_bucket", [("le", "15.0"), named], 3),
        ("lmwarden_requests_total", [("decision", "left"), named, ("outcome", "cancelled")], 2),
        ("lmwarden_requests_total", [("decision", "refused"), named, ("outcome", "refused")], 1),
        ("lmwarden_requests_total", [("decision", "none"), named, ("outcome", "failed")], 1),
    ):
        assert series[name, tuple(sorted(labels))] == value, name
    off = parsed(exposition(snapshot(model(view=view(wait_expired=2)))))
    assert off["lmwarden_waiting_room_engaged", (named,)] == 0
    assert off["lmwarden_wait_expired_total", (named,)] == 2
