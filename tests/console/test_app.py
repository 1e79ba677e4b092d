"""The console as its clients see it: the JSON, the one change, and who is let in."""

from __future__ import annotations

import time
from typing import Any

from tests.console.scene import ROUTING, Console

from lmwarden.types import ReplicaId, ReplicaSample


async def test_the_routing_state_has_the_published_shape(console: Console) -> None:
    scene = console.scene
    home = scene.turn(b"c" * 16).replica
    scene.turn(b"c" * 16)
    sample = ReplicaSample(taken_at=time.monotonic(), running=1, waiting=2, kv_used_ratio=0.5)
    scene.observe(ReplicaId("e0", 0), sample)
    scene.refresh()
    state = await console.get(ROUTING)
    rows = state.pop("replicas")
    assert state.pop("counting_since").endswith("Z")
    assert state.pop("decisions") == {
        "placed": 1, "sticky": 1, "spilled": 0, "client_pinned": 0, "rehomed": 0, "balanced": 0, "unrouted": 0,
    }  # fmt: skip
    assert state.pop("pins")["state"] == "unverified"
    assert state == {
        "affinity": True,
        "placement": "least-loaded",
        "spill_threshold": 8,
        "spill_threshold_source": "auto",
        "sticky_ratio": 1.0,
        "in_flight": 0,
        "refused": 0,
        "balancer": None,
        "admission": {"mode": "off", "engaged": False, "waiting": 0, "room_for": None},
    }
    by_name = {row["replica"]: row for row in rows}
    assert set(by_name) == {"e0/0", "e0/1"}
    assert by_name[str(home)]["sticky"] == 1
    assert by_name["e0/0"]["running"] == 1
    # What the engine did not report is null, never 0.
    untouched = by_name["e0/1"]
    assert [untouched[key] for key in ("running", "waiting", "kv_used_ratio", "prefix_hit_ratio")] == [None] * 4
    assert set(untouched) >= {
        "replica", "state", "in_flight", "placed", "sticky", "spilled_in", "client_pinned", "rehomed_in",
        "conversations", "resident_tokens", "kv_cache_tokens", "running", "waiting", "kv_used_ratio",
        "prefix_hit_ratio",
    }  # fmt: skip
    assert (untouched["state"], untouched["kv_cache_tokens"]) == ("ready", 42000)


async def test_models_and_one_model(console: Console) -> None:
    (line,) = (await console.get("/api/models"))["models"]
    assert line == {
        "name": "org/model",
        "aliases": ["claude-*"],
        "affinity": True,
        "in_flight": 0,
        "sticky_ratio": None,
        "replicas": 2,
        "replicas_ready": 2,
    }
    detail = await console.get("/api/models/org/model")
    assert detail["max_model_len"] == 32768
    (engine,) = detail["engines"]
    assert engine.pop("state") == "starting"
    assert engine == {"engine": "e0", "url": "http://h:1", "ranks": 2, "version": "0.32.0", "scrape_age_s": None}
    assert detail["routing"]["affinity"] is True


async def test_unknown_things_are_404_in_json(console: Console) -> None:
    for path in ("/api/models/nobody", "/api/models/nobody/routing", "/api/nothing"):
        assert "error" in await console.get(path, 404)


async def test_the_page_is_honest_and_quiet(console: Console) -> None:
    async with console.session.get(console.url + "/") as response:
        text = await response.text()
        assert response.headers["X-Frame-Options"] == "DENY"
        assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in response.headers
    assert "/api/models" in text
    assert "<script" not in text


async def test_a_change_answers_at_once_with_the_new_state(console: Console) -> None:
    state = await console.patch({"affinity": False, "spill_threshold": 3}, 200)
    assert (state["affinity"], state["spill_threshold"], state["spill_threshold_source"]) == (False, 3, "set")
    assert state["balancer"] == "engine"
    assert not console.scene.router.view(time.monotonic()).settings.affinity


async def test_a_bad_change_is_400_in_one_line_and_changes_nothing(console: Console) -> None:
    before = console.scene.router.view(time.monotonic()).settings
    bodies: list[Any] = [{"affinity": "no"}, {"colour": 1}, {"admission": "off"}, {"prefer": "tail"}, [], 17]
    for body in bodies:
        answer = await console.patch(body, 400)
        assert "\n" not in answer["error"]
    assert console.scene.router.view(time.monotonic()).settings == before


async def test_broken_and_endless_bodies(console: Console) -> None:
    headers = {"Content-Type": "application/json"}
    deep = b"[" * 30_000 + b"]" * 30_000
    bodies = ((b"{", 400), (b"\xff", 400), (b" " * 100_000, 413), (b'{"affinity":' + deep + b"}", 400))
    for body, status in bodies:
        async with console.session.patch(console.url + ROUTING, data=body, headers=headers) as response:
            assert response.status == status
            assert "error" in await response.json()


async def test_twenty_viewers_share_one_serialisation(console: Console) -> None:
    first = await console.get("/api/models")
    console.scene.turn(b"c" * 16)
    # Nothing was refreshed: all viewers see the same snapshot.
    assert [await console.get("/api/models") for _ in range(20)] == [first] * 20
