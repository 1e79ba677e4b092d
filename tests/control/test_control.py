"""The control: snapshots for any thread, changes on the data loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from tests.console.scene import Scene
from tests.waiting import PATIENCE_S

from lmwarden.control import SettingsError, UnknownModelError
from lmwarden.control.commands import check_routing_changes
from lmwarden.engine.discover import EngineFacts
from lmwarden.types import ReplicaId, RoutingSettings


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with aiohttp.ClientSession() as session:
        yield Scene(session)


async def test_a_snapshot_does_not_change_when_the_router_does(scene: Scene) -> None:
    before = scene.control.snapshot
    scene.turn(b"c" * 16, finish=False)
    assert before.model("org/model").view.in_flight == 0
    assert scene.control.snapshot is before
    scene.refresh()
    assert scene.control.snapshot.model("org/model").view.in_flight == 1
    with pytest.raises(UnknownModelError):
        before.model("nobody")


async def test_a_change_from_another_thread_answers_with_the_new_state(scene: Scene) -> None:
    changes = {"affinity": False, "spill_threshold": 3, "placement": "hash"}
    future = await asyncio.to_thread(scene.control.patch_routing, "org/model", changes)
    model = await asyncio.wrap_future(future)
    expected = RoutingSettings(affinity=False, spill_threshold=3, placement="hash")
    assert model.view.settings == expected
    # Whoever reads the shared snapshot next sees it too.
    assert scene.control.routing_settings("org/model") == expected


async def test_changes_are_handed_on_to_be_kept(scene: Scene) -> None:
    await asyncio.wrap_future(scene.control.patch_routing("org/model", {"affinity": False, "spill_threshold": None}))
    await asyncio.wrap_future(scene.control.patch_routing("org/model", {}))
    assert scene.kept_settings == [("org/model", {"affinity": False, "spill_threshold": None})]


async def test_a_command_that_goes_wrong_says_so_to_its_caller(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(settings: RoutingSettings, now: float) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(scene.router, "configure", broken)
    with pytest.raises(RuntimeError, match="no"):
        await asyncio.wrap_future(scene.control.patch_routing("org/model", {"affinity": False}))
    assert "a command failed" in capsys.readouterr().out
    assert scene.kept_settings == []


async def test_snapshots_go_on_after_one_failed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, taken, calls = scene.control.take, asyncio.Event(), 0

    def fails_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("no")
        real()
        taken.set()

    before = scene.control.snapshot
    monkeypatch.setattr(scene.control, "take", fails_once)
    running = asyncio.ensure_future(scene.control.run(0.0))
    async with asyncio.timeout(PATIENCE_S):
        await taken.wait()
    assert scene.control.snapshot is not before
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert "taking a snapshot failed" in capsys.readouterr().out


async def test_what_an_engine_says_of_itself_goes_before_what_was_known(scene: Scene) -> None:
    scene.watch.facts = EngineFacts(
        model="m",
        other_names=(),
        max_model_len=4096,
        ranks=2,
        kv_cache_tokens=(None, None),
        boot_ids=("counters-1.000", None),
        version="0.33.0",
        is_vllm=True,
        usage_details=False,
    )
    scene.refresh()
    model = scene.control.snapshot.model("org/model")
    (engine,) = model.engines
    assert model.max_model_len == 4096
    assert engine.boot_ids == ("counters-1.000", None)
    assert (engine.version, engine.is_vllm, engine.usage_details) == ("0.33.0", True, False)


async def test_only_what_was_named_changes(scene: Scene) -> None:
    await asyncio.wrap_future(scene.control.patch_routing("org/model", {"spill_threshold": 3}))
    model = await asyncio.wrap_future(scene.control.patch_routing("org/model", {"affinity": False}))
    assert model.view.settings == RoutingSettings(affinity=False, spill_threshold=3)
    model = await asyncio.wrap_future(scene.control.patch_routing("org/model", {"spill_threshold": None}))
    assert model.view.settings == RoutingSettings(affinity=False)
    assert (model.view.spill_threshold, model.view.spill_threshold_source) == (8, "auto")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"affinity": 1}, "affinity: must be true or false, not 1"),
        ({"affinity": None}, "affinity: must be true or false, not None"),
        ({"placement": "random"}, 'placement: must be "least-loaded" or "hash", not \'random\''),
        ({"placement": ["hash"]}, 'placement: must be "least-loaded" or "hash"'),
        ({"spill_threshold": True}, "spill_threshold: must be an integer from 0 to 1000000"),
        ({"spill_threshold": -1}, "spill_threshold: must be an integer from 0 to 1000000"),
        ({"spill_threshold": 2.0}, "spill_threshold: must be an integer from 0 to 1000000"),
        ({"spill_treshold": 2}, "'spill_treshold': unknown key; allowed: affinity, placement, spill_threshold"),
        ({"admission": True}, 'admission: must be "auto" or "off", not True'),
        ({"prefer": "mean"}, 'prefer: must be "balanced", "median" or "tail", not \'mean\''),
        (
            {"affinity": False, "max_wait_s": 0.5},
            "max_wait_s: must be a number from 1 to 270 (clients give up at 300 s)",
        ),
        ({"max_wait_s": 271}, "max_wait_s: must be a number from 1 to 270"),
        ({"max_wait_s": float("nan")}, "max_wait_s: must be a number from 1 to 270"),
        ({"max_wait_s": True}, "max_wait_s: must be a number from 1 to 270"),
    ],
)
async def test_a_change_that_is_not_allowed_changes_nothing(scene: Scene, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        scene.control.patch_routing("org/model", changes)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    await asyncio.sleep(0)
    scene.refresh()
    assert scene.control.routing_settings("org/model") == RoutingSettings()


def test_allowed_changes_pass_unchanged() -> None:
    changes = {"affinity": True, "placement": "hash", "spill_threshold": 0}
    assert check_routing_changes(changes) == changes
    assert check_routing_changes({}) == {}


async def test_an_unknown_model(scene: Scene) -> None:
    with pytest.raises(UnknownModelError):
        scene.control.patch_routing("nobody", {})


async def test_the_engines_own_figures_stand_in_the_snapshot(scene: Scene) -> None:
    scene.watch.prefix_totals[1].read(0, 0)
    scene.watch.prefix_totals[1].read(100, 25)
    scene.refresh()
    model = scene.control.snapshot.model("org/model")
    assert model.prefix_hit_ratio == {ReplicaId("e0", 0): None, ReplicaId("e0", 1): 0.25}
    assert model.engines[0].scrape_age_s is None
    assert "sk-engine-secret" not in repr(scene.control.snapshot)
