"""The console as its clients see it: the JSON, the one change, and who is let in."""

from __future__ import annotations

import time
from typing import Any

from tests.console.conftest import LaunchedConsole
from tests.console.scene import MODEL, ROUTING, Console

from lmwarden.console.app import LOG_BYTES
from lmwarden.console.static_files import CONTENT_SECURITY_POLICY
from lmwarden.engine.launch_state import EnginePhase
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
    assert state.pop("pins") == {
        "state": "unverified",
        "detail": "e0 /v1/chat/completions: not tested; e0 /v1/messages: not tested",
        "endpoints": [
            {"engine": "e0", "endpoint": path, "state": "unverified", "detail": "not tested", "tested_at": None}
            for path in ("/v1/chat/completions", "/v1/messages")
        ],
    }
    assert state == {
        "affinity": True,
        "placement": "least-loaded",
        "spill_threshold": 8,
        "spill_threshold_source": "auto",
        "sticky_ratio": 1.0,
        "in_flight": 0,
        "refused": 0,
        "balancer": None,
        # Two requests wait in the engine: nothing more fits just now.
        "admission": {
            "mode": "off",
            "prefer": "balanced",
            "max_wait_s": 240.0,
            "engaged": False,
            "waiting": 0,
            "room_for": 0,
            "why_code": "off",
            "wait_expired": 0,
            **dict.fromkeys(("longest_wait_s", "residents", "reserved_tokens", "demand_ratio", "why", "gap_s")),
            "tier_tokens": None,
            "tier_advice": None,
        },
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
    assert (untouched["stalled"], untouched["suspect"], untouched["drained"]) == (False, False, False)


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
    assert len(engine.pop("pins")) == 2
    assert engine == {
        "engine": "e0", "model": "org/model", "url": "http://h:1", "ranks": 2, "state": "starting",
        "version": "0.32.0", "is_vllm": None, "scrape_age_s": None, "usage_details": None, "launched": False,
        "process": None,
    }  # fmt: skip
    assert detail["routing"]["affinity"] is True
    assert detail["identity"] == {"sent": 0, "derived": 0, "none": 0}
    assert (detail["panic"], detail["operation"]) == (False, None)
    # No conversation is live, so nothing is known of their size.
    assert [detail[key] for key in ("held_tokens", "mean_context_tokens", "room_for")] == [0, None, None]
    assert [warning["code"] for warning in detail["warnings"]] == [
        "engine_starting",
        "pin_unverified",
        "pin_unverified",
    ]
    assert all(warning["what_to_do"] for warning in detail["warnings"])


async def test_the_engines(console: Console, launched_console: LaunchedConsole) -> None:
    (attached,) = (await console.get("/api/engines"))["engines"]
    assert attached == (await console.get("/api/models/org/model"))["engines"][0]
    launched_console.engines["e0"].becomes(EnginePhase.STARTING, step="loading weights", progress_ratio=0.5)
    launched_console.scene.refresh()
    first, second = (await launched_console.get("/api/engines"))["engines"]
    assert (first["launched"], second["engine"]) == (True, "e1")
    process = first["process"]
    assert process.pop("since") > 0
    assert process == {
        "phase": "starting", "detail": "it serves.", "step": "loading weights", "progress_ratio": 0.5, "pid": 100,
        "restarts": 0, "exit_status": None, "last_crash": None, "last_lines": [], "taken_over": False,
        "outdated": False, "command": "vllm serve org/model", "log": "/data/engines/e0.log",
    }  # fmt: skip


# -- commands ---------------------------------------------------------------------------------------------------------


async def test_drain_and_undrain_answer_with_the_new_state(console: Console) -> None:
    state = await console.post("replicas/e0/1/drain", 200)
    rows = {row["replica"]: row for row in state["replicas"]}
    assert (rows["e0/1"]["state"], rows["e0/1"]["drained"], rows["e0/0"]["state"]) == ("draining", True, "ready")
    # As it is written elsewhere, with the slash encoded.
    state = await console.post("replicas/e0%2F1/undrain", 200, {})
    assert [row["state"] for row in state["replicas"]] == ["ready", "ready"]


async def test_commands_that_cannot_be_are_told_apart(console: Console) -> None:
    for path, status, says in (
        ("replicas/e0/7/drain", 404, "org/model has no replica 'e0/7'; it has e0/0, e0/1"),
        ("replicas/e0/0/explode", 404, "drain, undrain and restart"),
        ("replicas/e0/0/restart", 409, "e0 was not launched by the warden; restart it where it runs"),
        ("rolling-restart", 409, "e0 was not launched by the warden"),
    ):
        assert says in (await console.post(path, status))["error"]
    assert "no model" in (await console.ask("POST", "/api/models/nobody/rolling-restart", 404))["error"]
    assert "no restart of org/model is running" in (await console.ask("DELETE", f"{MODEL}/operation", 409))["error"]
    assert "unknown key" in (await console.post("replicas/e0/0/drain", 400, {"now": True}))["error"]
    await console.post("replicas/e0/0/drain", 400, [])
    await console.post("replicas/e0/0/drain", 200)
    assert "last ready replica" in (await console.post("replicas/e0/1/drain", 409))["error"]
    await console.post("replicas/e0/1/drain", 200, {"allow_outage": True})


async def test_a_restart_is_begun_shown_and_cancelled(launched_console: LaunchedConsole) -> None:
    console = launched_console
    assert await console.get(f"{MODEL}/operation") == {"operation": None}
    begun = (await console.post("rolling-restart", 202, {"drain_s": 5}))["operation"]
    assert (begun["kind"], begun["state"], begun["engines"]) == ("rolling-restart", "running", ["e0", "e1"])
    await console.scene.until(console.engines["e0"].asked.is_set)
    console.scene.refresh()
    shown = (await console.get(f"{MODEL}/operation"))["operation"]
    assert (shown["engine"], shown["step"]) == ("e0", "stopping")
    assert shown == (await console.get(MODEL))["operation"]
    assert "is running already" in (await console.post("replicas/e1/0/restart", 409))["error"]
    cancelled = (await console.ask("DELETE", f"{MODEL}/operation", 200))["operation"]
    assert cancelled["state"] == "cancelled"


async def test_commands_from_elsewhere_do_nothing(launched_console: LaunchedConsole) -> None:
    console = launched_console
    for path in ("rolling-restart", "replicas/e0/0/restart", "replicas/e0/0/drain", "replicas/e0/0/undrain"):
        await console.post(path, 403, Origin="http://evil.test")
        await console.post(path, 403, **{"Sec-Fetch-Site": "cross-site"})
        await console.post(path, 415, **{"Content-Type": "text/plain"})
    await console.ask("DELETE", f"{MODEL}/operation", 403, Origin="http://evil.test")
    console.scene.refresh()
    assert (await console.get(f"{MODEL}/operation")) == {"operation": None}
    assert not console.engines["e0"].restarts


# -- logs -------------------------------------------------------------------------------------------------------------


async def test_the_end_of_a_log(launched_console: LaunchedConsole) -> None:
    console = launched_console
    console.log.write_text("".join(f"line {number}\n" for number in range(1000)))
    lines = (await console.get("/api/engines/e0/logs"))["lines"]
    assert (len(lines), lines[0], lines[-1]) == (200, "line 800", "line 999")
    assert (await console.get("/api/engines/e0/logs?lines=2"))["lines"] == ["line 998", "line 999"]
    found = (await console.get("/api/engines/e0/logs?lines=3&search=LINE%201"))["lines"]
    assert found == ["line 197", "line 198", "line 199"]
    # Nothing was written yet.
    assert (await console.get("/api/engines/e1/logs"))["lines"] == []


async def test_a_log_as_a_file(launched_console: LaunchedConsole) -> None:
    launched_console.log.write_text("".join(f"line {number}\n" for number in range(1000)))
    async with launched_console.session.get(f"{launched_console.url}/api/engines/e0/logs?download") as response:
        assert response.headers["Content-Disposition"] == 'attachment; filename="e0.log"'
        assert response.content_type == "text/plain"
        assert (await response.text()).count("\n") == 1000


async def test_only_the_end_of_a_huge_log_is_read(launched_console: LaunchedConsole) -> None:
    line = "x" * 1023 + "\n"
    with launched_console.log.open("w") as file:
        for _ in range(8):
            file.write(line * 1024)
    async with launched_console.session.get(f"{launched_console.url}/api/engines/e0/logs?download") as response:
        assert LOG_BYTES - 2 * len(line) <= len(await response.read()) <= LOG_BYTES


async def test_logs_that_are_not_there(console: Console, launched_console: LaunchedConsole) -> None:
    attached = await console.get("/api/engines/e0/logs", 404)
    assert attached["error"] == "e0 was not started by the warden; its log is where it runs"
    for name in ("e9", "..%2F..%2Fsecret", "e0.log"):
        assert "error" in await launched_console.get(f"/api/engines/{name}/logs", 404)
    for lines in ("0", "501", "-1", "x", "", "9" * 30):
        assert "1 to 500" in (await launched_console.get(f"/api/engines/e0/logs?lines={lines}", 400))["error"]


# -- checks -----------------------------------------------------------------------------------------------------------


async def test_the_checks_know_the_client_port(whole_console: Console) -> None:
    codes = {check["code"]: check for check in (await whole_console.get("/api/checks"))["checks"]}
    assert (codes["client_open"]["level"], codes["client_open"]["params"]) == ("ok", {"guard": "this_machine"})


async def test_the_checks_are_the_models_warnings_and_more(console: Console) -> None:
    answer = await console.get("/api/checks")
    assert answer["version"]
    codes = {check["code"]: check for check in answer["checks"]}
    assert codes["data_loop"]["level"] == codes["console_open"]["level"] == codes["ledger"]["level"] == "ok"
    assert codes["engine_starting"]["model"] == "org/model"
    assert codes["engine_starting"]["engine"] == "e0"
    console.scene.ledger_trouble = "the disk is full"
    console.scene.refresh()
    levels = {check["code"]: check["level"] for check in (await console.get("/api/checks"))["checks"]}
    assert levels["ledger"] == "warning"


async def test_unknown_things_are_404_in_json(console: Console) -> None:
    for path in ("/api/models/nobody", "/api/models/nobody/routing", "/api/nothing"):
        assert "error" in await console.get(path, 404)


async def test_the_page_and_its_headers(console: Console) -> None:
    for path, cache in (
        ("/", "no-cache"),
        ("/console.js", "no-cache"),
        ("/api/models", "no-store"),
        ("/x", "no-store"),
    ):
        async with console.session.get(console.url + path) as response:
            assert response.headers["X-Frame-Options"] == "DENY"
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["Referrer-Policy"] == "no-referrer"
            assert response.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
            assert response.headers["Cache-Control"] == cache
            assert "Access-Control-Allow-Origin" not in response.headers
    assert "'unsafe" not in CONTENT_SECURITY_POLICY
    assert "frame-ancestors 'none'" in CONTENT_SECURITY_POLICY


async def test_a_change_answers_at_once_with_the_new_state(console: Console) -> None:
    state = await console.patch({"affinity": False, "spill_threshold": 3}, 200)
    assert (state["affinity"], state["spill_threshold"], state["spill_threshold_source"]) == (False, 3, "set")
    assert state["balancer"] == "engine"
    assert not console.scene.router.view(time.monotonic()).settings.affinity


async def test_a_bad_change_is_400_in_one_line_and_changes_nothing(console: Console) -> None:
    before = console.scene.router.view(time.monotonic()).settings
    bodies: list[Any] = [{"affinity": "no"}, {"colour": 1}, {"admission": "on"}, {"prefer": ""}, [], 17]
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
