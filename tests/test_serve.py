"""The warden as a whole, in this process: a simulated or scripted engine behind it, real sockets before it."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs
from tests.engine.fake_vllm import FakeVllm, fake_vllm, page
from tests.security.house import ACT, ObedientEngine
from tests.stub_engine import MESSAGE_BEGIN, MESSAGE_END, held
from tests.waiting import PATIENCE_S, until

from lmwarden.access.keys import KeyStore
from lmwarden.access.password import PasswordError
from lmwarden.access.secrets import StorageError, load_secrets
from lmwarden.config import Config, ConfigError, Flag, load
from lmwarden.engine.port_hold import PortHold
from lmwarden.ledger.ledger import Ledger
from lmwarden.serve import Warden
from lmwarden.simulation.options import SimulatedEngineOptions
from lmwarden.simulation.server import serving
from lmwarden.types import Decision, Outcome, ReplicaState

MODEL = "qwen3-4b"


def config(data_dir: Path, *engines: str, more: Sequence[Flag] = (), **engine: Any) -> Config:
    return load(
        None,
        [
            Flag("--engine", ("models",), [{"engine": {"attach": list(engines), **engine}}]),
            Flag("--port", ("client", "port"), 0),
            Flag("--console-port", ("console", "port"), 0),
            Flag("--data-dir", ("storage", "dir"), str(data_dir)),
            Flag("interval", ("watch", "interval_s"), 0.02),
            Flag("retry", ("watch", "attach_retry_s"), 0.02),
            *more,
        ],
    )


@asynccontextmanager
async def running(settings: Config) -> AsyncIterator[Warden]:
    warden = Warden(settings)
    await warden.start()
    try:
        yield warden
    finally:
        await warden.stop(drain_s=0)


def assert_nowhere(folder: Path, text: str) -> None:
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert text.encode() not in path.read_bytes(), path


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


@pytest.fixture
async def simulated() -> AsyncIterator[str]:
    options = SimulatedEngineOptions(replicas=2, speed=200.0, hardware="tiny-cpu", model=MODEL)
    async with serving(options) as url:
        yield url


async def turn(
    session: aiohttp.ClientSession, url: str, conversation: str, *, status: int = 200, key: str = ""
) -> tuple[aiohttp.ClientResponse, Any]:
    body = {
        "model": MODEL,
        "max_tokens": 8,
        "messages": [{"role": "user", "content": f"{conversation} " * 400}],
    }
    headers = {"X-Claude-Code-Session-Id": conversation} | ({"x-api-key": key} if key else {})
    async with session.post(url + "/v1/messages", json=body, headers=headers) as response:
        assert response.status == status
        return response, await response.json()


async def get(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as response:
        assert response.status == 200
        return await response.json()


async def engine_counted(session: aiohttp.ClientSession, url: str) -> Counter[str]:
    """What the engine says that it did, over all ranks."""
    families = {"prompt_tokens": "prompt", "prompt_tokens_cached": "cached", "generation_tokens": "completion"}
    counted: Counter[str] = Counter()
    async with session.get(f"{url}/metrics") as response:
        for line in (await response.text()).splitlines():
            name = line.partition("{")[0].removeprefix("vllm:").removesuffix("_total")
            if name in families:
                counted[families[name]] += round(float(line.rpartition(" ")[2]))
    counted["computed"] = counted.pop("prompt") - counted["cached"]
    return counted


async def test_a_conversation_stays_and_everything_counts_it(
    tmp_path: Path, simulated: str, session: aiohttp.ClientSession
) -> None:
    async with running(config(tmp_path, simulated, max_num_seqs=32)) as warden:
        first, _ = await turn(session, warden.client_url, "a")
        again, answer = await turn(session, warden.client_url, "a")
        other, _ = await turn(session, warden.client_url, "b")
        homes = [response.headers["X-LMWarden-Replica"] for response in (first, again, other)]
        assert homes[0] == homes[1] != homes[2]
        decisions = [response.headers["X-LMWarden-Decision"] for response in (first, again, other)]
        assert decisions == ["placed", "sticky", "placed"]

        assert await asyncio.to_thread(warden.ledger.flush, PATIENCE_S)
        rows = warden.ledger.recent()
        assert [row.decision for row in rows] == [Decision.PLACED, Decision.STICKY, Decision.PLACED]
        assert all(row.outcome is Outcome.OK for row in rows)
        cached = answer["usage"]["cache_read_input_tokens"]
        assert cached > 0
        assert rows[1].cached_tokens == cached

        warden.control.take()
        async with session.get(f"{warden.console_url}/api/models/{MODEL}/routing") as response:
            state = await response.json()
        assert (state["in_flight"], state["sticky_ratio"], state["spill_threshold"]) == (0, 1.0, 8)
        async with session.get(warden.console_url + "/metrics") as response:
            metrics = await response.text()
        assert f'lmwarden_prompt_tokens_total{{model="{MODEL}",source="cached"}} {float(cached)}' in metrics


async def test_the_charts_are_the_answers_and_the_engines_own_counters_to_the_token_over_a_restart(
    tmp_path: Path, simulated: str, session: aiohttp.ClientSession
) -> None:
    settings = config(tmp_path, simulated, more=[Flag("pins", ("watch", "test_pins"), False)])
    before = await engine_counted(session, simulated)
    told: Counter[str] = Counter()
    for _ in range(2):  # two wardens, one after the other
        async with running(settings) as warden:
            asked = [turn(session, warden.client_url, f"conversation {number % 3}") for number in range(9)]
            for _, answer in await asyncio.gather(*asked):
                usage = answer["usage"]
                told["cached"] += usage["cache_read_input_tokens"]
                told["computed"] += usage["input_tokens"] + usage["cache_creation_input_tokens"]
                told["completion"] += usage["output_tokens"]
            assert await asyncio.to_thread(warden.ledger.flush, PATIENCE_S)
            charts = f"{warden.console_url}/api/stats"
            tokens = await get(session, f"{charts}/tokens?window=1h&model={MODEL}")
            assert tokens["totals"] == told
            of_ranks = [await get(session, f"{charts}/tokens?replica=e0/{rank}") for rank in range(2)]
            assert sum((Counter(chart["totals"]) for chart in of_ranks), Counter()) == told
            drawn = sum(point["cached"] * 10 for point in tokens["points"] if point["cached"] is not None)
            assert drawn == pytest.approx(told["cached"])
            assert tokens["cached_ratio"] == told["cached"] / (told["cached"] + told["computed"])
    assert told["cached"] > 0
    assert await engine_counted(session, simulated) - before == told


async def test_looks_at_the_routers_become_history(
    tmp_path: Path, simulated: str, session: aiohttp.ClientSession
) -> None:
    async with running(config(tmp_path, simulated)) as warden:

        async def is_seen() -> bool:
            chart = await get(session, f"{warden.console_url}/api/stats/replicas?model={MODEL}")
            return any(point["ready"] == 2.0 for point in chart["points"])

        await until(is_seen)


async def test_affinity_is_switched_through_the_console(
    tmp_path: Path, simulated: str, session: aiohttp.ClientSession
) -> None:
    async with running(config(tmp_path, simulated)) as warden:
        routing = f"{warden.console_url}/api/models/{MODEL}/routing"
        async with session.patch(routing, json={"affinity": False}) as response:
            assert (await response.json())["affinity"] is False
        response, _ = await turn(session, warden.client_url, "a")
        assert response.headers["X-LMWarden-Decision"] == "unrouted"


async def test_conversations_go_home_after_a_restart_and_are_placed_anew_if_the_engine_restarted_too(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    hold = PortHold()  # the engine comes back to its port: nobody else may have it meanwhile
    options = SimulatedEngineOptions(port=hold.port, replicas=2, speed=200.0, hardware="tiny-cpu", model=MODEL)
    names = [f"conversation-{number}" for number in range(6)]

    async def decisions(url: str) -> list[tuple[str, str]]:
        seen = []
        for name in names:
            response, _ = await turn(session, url, name)
            seen.append((response.headers["X-LMWarden-Decision"], response.headers["X-LMWarden-Replica"]))
        return seen

    async with serving(options) as engine:
        async with running(config(tmp_path, engine)) as warden:
            first = await decisions(warden.client_url)
        async with running(config(tmp_path, engine)) as warden:
            assert await decisions(warden.client_url) == [("sticky", replica) for _, replica in first]
    async with serving(options) as engine, running(config(tmp_path, engine)) as warden:
        assert {decision for decision, _ in await decisions(warden.client_url)} == {"rehomed"}
    hold.close()


async def test_a_setting_changed_at_run_time_holds_over_a_restart_until_the_file_says_otherwise(
    tmp_path: Path, simulated: str, session: aiohttp.ClientSession
) -> None:
    async def threshold(*more: Flag) -> int | None:
        async with running(config(tmp_path, simulated, more=more)) as warden:
            return warden.control.routing_settings(MODEL).spill_threshold

    async with running(config(tmp_path, simulated)) as warden:
        routing = f"{warden.console_url}/api/models/{MODEL}/routing"
        async with session.patch(routing, json={"spill_threshold": 5}) as response:
            assert response.status == 200
    assert await threshold() == 5
    in_file = Flag("file", ("models", 0, "routing"), {"spill_threshold": 7})
    assert await threshold(in_file) == 7
    assert await threshold() is None


@pytest.mark.parametrize(
    ("key", "value", "configured"),
    [
        ("affinity", "off", True),
        ("spill_threshold", -5, None),
        ("placement", ["hash"], "least-loaded"),
        ("of_another_version", 1, None),
        ("max_wait_s", 295, 240.0),
        ("admission", None, "auto"),
    ],
)
async def test_a_kept_setting_that_is_none_is_forgotten_and_does_not_keep_it_from_starting(
    tmp_path: Path, simulated: str, key: str, value: Any, configured: Any
) -> None:
    ledger = Ledger(tmp_path, config(tmp_path, simulated).storage)
    ledger.start()
    ledger.save_settings(MODEL, key, value, configured)
    ledger.save_settings(MODEL, "spill_threshold" if key != "spill_threshold" else "affinity", False, None)
    ledger.stop()
    async with running(config(tmp_path, simulated)) as warden:
        settings = warden.control.routing_settings(MODEL)
        assert (settings.affinity, settings.spill_threshold, settings.placement) == (True, None, "least-loaded")
    assert Ledger(tmp_path, config(tmp_path, simulated).storage).settings(MODEL) == {}


async def test_an_error_of_ours_does_not_end_what_is_done_at_intervals(
    tmp_path: Path, simulated: str, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(config(tmp_path, simulated)) as warden:
        fails = asyncio.Event()

        def fail(*given: object) -> None:
            fails.set()
            raise RuntimeError("a mistake of ours")

        with monkeypatch.context() as patched:
            patched.setattr(warden.ledger, "save_homes", fail)
            await asyncio.wait_for(fails.wait(), PATIENCE_S)
        await turn(session, warden.client_url, "one")
        await until(lambda: len(warden.ledger.load_homes(MODEL, 0.0)) == 1)


async def test_an_engine_that_cannot_be_stopped_keeps_nothing_from_being_written(
    tmp_path: Path, simulated: str, session: aiohttp.ClientSession
) -> None:
    class Unstoppable:
        plan = SimpleNamespace(on_exit="stop")

        async def stop(self) -> None:
            raise OSError(24, "Too many open files")

    async with running(config(tmp_path, simulated)) as warden:
        assert warden._assembly is not None
        warden._assembly.supervisors.append(Unstoppable())  # type: ignore[arg-type]
        await turn(session, warden.client_url, "a")
    assert len(warden.ledger.recent()) == 1
    async with running(config(tmp_path, simulated)):
        pass  # the folder is free again


async def test_keys_made_while_it_runs(tmp_path: Path, simulated: str, session: aiohttp.ClientSession) -> None:
    settings = config(tmp_path, simulated, more=[Flag("require", ("client", "require_key"), True)])
    async with running(settings) as warden:
        await turn(session, warden.client_url, "a", status=401)
        key = KeyStore(tmp_path, load_secrets(tmp_path).keys).create("anna")

        async def accepted() -> bool:
            headers = {"Authorization": f"Bearer {key}"}
            async with session.get(warden.client_url + "/v1/models", headers=headers) as response:
                return response.status == 200

        await until(accepted)
        await turn(session, warden.client_url, "a", key=key)
        assert await asyncio.to_thread(warden.ledger.flush, PATIENCE_S)
        assert warden.ledger.recent(1)[0].key_name == "anna"
    assert_nowhere(tmp_path, key)


async def test_a_console_with_a_password_makes_a_key_that_works_and_shows_its_use(
    tmp_path: Path, simulated: str, session: aiohttp.ClientSession
) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("correct horse\n")
    more = [
        Flag("require", ("client", "require_key"), True),
        Flag("password", ("console", "password_file"), str(file)),
        Flag("metrics", ("console", "open_metrics"), True),
    ]
    signed = {"Authorization": "Basic " + base64.b64encode(b"lmwarden:correct horse").decode()}
    async with running(config(tmp_path / "data", simulated, more=more)) as warden:
        async with session.get(f"{warden.console_url}/metrics") as response:
            assert response.status == 200
        async with session.post(f"{warden.console_url}/api/keys", json={"name": "anna"}) as response:
            assert response.status == 401
        async with session.post(f"{warden.console_url}/api/keys", json={"name": "anna"}, headers=signed) as response:
            assert response.status == 201
            key = (await response.json())["key"]

        async def accepted() -> bool:
            async with session.get(warden.client_url + "/v1/models", headers={"x-api-key": key}) as response:
                return response.status == 200

        await until(accepted)
        await turn(session, warden.client_url, "a", key=key)
        assert await asyncio.to_thread(warden.ledger.flush, PATIENCE_S)
        (row,) = warden.ledger.recent(1)
        async with session.get(f"{warden.console_url}/api/keys", headers=signed) as response:
            (line,) = (await response.json())["items"]
        assert (line["requests_24h"], line["prompt_tokens_24h"]) == (1, row.prompt_tokens)
        assert (line["completion_tokens_24h"], line["last_used_at"]) == (row.completion_tokens, row.finished_at)
        async with session.get(f"{warden.console_url}/api/connect", headers=signed) as response:
            connect = await response.json()
        assert (connect["url"], connect["key_needed"]) == (warden.client_url, True)
        assert connect["first_request_at"] == row.finished_at
        async with session.get(f"{warden.console_url}/api/settings", headers=signed) as response:
            assert "correct horse" not in await response.text()
        # An open page does not hold up the end.
        stream = await session.get(f"{warden.console_url}/api/events", headers=signed)
        assert (await stream.content.readline()).startswith(b"retry")
    stream.close()
    assert_nowhere(tmp_path / "data", "correct horse")
    assert_nowhere(tmp_path, key)


async def test_a_password_file_that_cannot_be_used_is_one_clear_line_and_leaves_nothing(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    more = [Flag("--x", ("console", "password_file"), str(tmp_path / "absent"))]
    with pytest.raises(PasswordError, match=r"--x: .*absent: cannot be read: No such file"):
        await Warden(config(tmp_path / "data", "http://127.0.0.1:9", more=more)).start()
    assert set(threading.enumerate()) <= threads


@pytest.mark.parametrize("port", ["client", "console"])
async def test_a_port_in_use_is_one_clear_line_and_leaves_nothing(tmp_path: Path, port: str) -> None:
    threads = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        settings = config(tmp_path, "http://127.0.0.1:9", more=[Flag("taken", (port, "port"), number)])
        with pytest.raises(ConfigError, match=rf"port: cannot listen on 127\.0\.0\.1 port {number}: Address already"):
            await Warden(settings).start()
    assert set(threading.enumerate()) <= threads


async def test_a_host_that_is_none_is_one_line_and_nothing_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even that no key exists, which a port that others reach is told."""

    def unknown(*given: object, **more: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    settings = config(tmp_path, "http://127.0.0.1:9", more=[Flag("--host", ("client", "host"), "999.1.1.1")])
    with capture_logs() as said, pytest.raises(ConfigError, match=r"--host: '999\.1\.1\.1' cannot be resolved"):
        await Warden(settings).start()
    assert said == []


@pytest.fixture
async def absent() -> AsyncIterator[FakeVllm]:
    """An engine that is not there yet."""
    async with fake_vllm() as engine:
        await engine.stop()
        yield engine


async def test_it_waits_for_an_engine_that_is_not_there_yet(
    tmp_path: Path, absent: FakeVllm, session: aiohttp.ClientSession
) -> None:
    warden = Warden(config(tmp_path, absent.url))
    starting = asyncio.ensure_future(warden.start())
    done, _ = await asyncio.wait([starting], timeout=0.1)
    assert not done
    await absent.start()
    try:
        await asyncio.wait_for(starting, PATIENCE_S)
        async with session.get(warden.client_url + "/readyz") as response:
            assert response.status == 200
    finally:
        await warden.stop(drain_s=0)


async def test_it_starts_without_an_engine_whose_ranks_and_model_are_stated(
    tmp_path: Path, absent: FakeVllm, session: aiohttp.ClientSession
) -> None:
    settings = config(tmp_path, absent.url, model="tiny", data_parallel_size=2, max_num_seqs=64)
    async with running(settings) as warden:
        # What the operator said holds from the start.
        view = warden.control.snapshot.models[0].view
        assert (view.spill_threshold, view.spill_threshold_source) == (16, "auto")
        assert [replica.state for replica in view.replicas] != [ReplicaState.READY] * 2

        async def ready() -> bool:
            async with session.get(warden.client_url + "/readyz") as response:
                return response.status == 200

        assert not await ready()
        await absent.start()
        await until(ready)
        warden.control.take()
        states = [replica.state for replica in warden.control.snapshot.models[0].view.replicas]
        assert states == [ReplicaState.READY] * 2
        await absent.stop()

        async def down() -> bool:
            return not await ready()

        await until(down)


async def test_engines_of_one_model_are_one_model_and_others_are_others(tmp_path: Path) -> None:
    async with fake_vllm() as one, fake_vllm() as two, fake_vllm() as three:
        two.metrics = page(ranks=1)
        three.models = {"data": [{"id": "other"}]}
        async with running(config(tmp_path, one.url, two.url, three.url)) as warden:
            models = warden.control.snapshot.models
            replicas = {model.name: [str(row.replica) for row in model.view.replicas] for model in models}
            assert replicas == {"tiny": ["e0/0", "e0/1", "e1/0"], "other": ["e2/0", "e2/1"]}


async def test_a_contradiction_ends_the_start(tmp_path: Path) -> None:
    async with fake_vllm() as engine:
        with pytest.raises(ConfigError, match="--data-parallel-size: 3 given"):
            await Warden(config(tmp_path, engine.url, data_parallel_size=3)).start()
        with pytest.raises(ConfigError, match="does not serve 'big'"):
            await Warden(config(tmp_path, engine.url, model="big")).start()


async def test_stopping_lets_a_stream_finish_and_refuses_the_rest(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    go_on = asyncio.Event()
    async with ObedientEngine(MODEL) as engine:
        engine.acts = {"held": held(MESSAGE_BEGIN, go_on, MESSAGE_END)}
        warden = Warden(config(tmp_path, f"http://127.0.0.1:{engine.port}"))
        await warden.start()
        body = {"model": MODEL, "stream": True, "max_tokens": 24, "messages": [{"role": "user", "content": "hello"}]}
        client_url = warden.client_url
        async with session.post(client_url + "/v1/messages", json=body, headers={ACT: "held"}) as stream:
            assert await stream.content.readexactly(len(MESSAGE_BEGIN)) == MESSAGE_BEGIN
            stopping = asyncio.ensure_future(warden.stop(drain_s=PATIENCE_S))

            async def refused() -> bool:
                async with aiohttp.ClientSession() as late, late.get(client_url + "/readyz") as response:
                    return response.status == 503

            await until(refused)
            assert not stopping.done()
            go_on.set()
            assert await stream.content.read() == MESSAGE_END
        await asyncio.wait_for(stopping, PATIENCE_S)
        assert warden.ledger.recent(1)[0].outcome is Outcome.OK
        await warden.stop()


async def test_a_data_folder_has_one_warden(tmp_path: Path, simulated: str) -> None:
    async with running(config(tmp_path, simulated)) as first:
        with pytest.raises(StorageError, match=rf"--data-dir: {tmp_path} is in use by another warden \(process \d+\)"):
            await Warden(config(tmp_path, simulated)).start()
        assert first.client_url
    async with running(config(tmp_path, simulated)):
        pass


@pytest.mark.parametrize(("name", "says"), [("engines", "File exists"), ("engines/id/", "Is a directory")])
async def test_a_data_folder_without_room_for_engines_is_one_clear_line(
    tmp_path: Path, simulated: str, name: str, says: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.mkdir() if name.endswith("/") else path.touch()
    with pytest.raises(StorageError, match=rf"^--data-dir: engines cannot be launched from .*: {says} \(/.*\)$"):
        await Warden(config(tmp_path, simulated)).start()


async def test_mistakes_are_blamed_on_the_file_where_it_has_the_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "w.toml"
    path.write_text(
        f'[storage]\ndir = "{tmp_path}/file/x"\n[[models]]\n[models.engine]\nattach = ["http://127.0.0.1:9"]\n'
    )
    with pytest.raises(StorageError, match=rf"{path}: storage\.dir: cannot make"):
        await Warden(load(path)).start()
    async with fake_vllm() as engine:
        path.write_text(f'[[models]]\n[models.engine]\nattach = ["{engine.url}"]\nmodel = "big"\n')
        flags = [
            Flag("--port", ("client", "port"), 0),
            Flag("--console-port", ("console", "port"), 0),
            Flag("--data-dir", ("storage", "dir"), str(tmp_path / "data")),
        ]
        with pytest.raises(ConfigError, match=rf"{path}: models\[0\]\.engine\.model: .* does not serve 'big'"):
            await Warden(load(path, flags)).start()


async def test_no_text_of_a_prompt_is_kept(tmp_path: Path, simulated: str, session: aiohttp.ClientSession) -> None:
    async with running(config(tmp_path, simulated)) as warden:
        body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "MARKER-7f3a"}]}
        for headers in ({}, {"X-Session-Id": "MARKER-session"}):
            async with session.post(warden.client_url + "/v1/messages", json=body, headers=headers) as response:
                assert response.status == 200
        warden.control.take()
        for path in ("/api/models", f"/api/models/{MODEL}", f"/api/models/{MODEL}/routing", "/metrics"):
            async with session.get(warden.console_url + path) as response:
                assert "MARKER" not in await response.text()
        assert json.dumps([str(row) for row in warden.ledger.recent()]).count("MARKER") == 0
    assert_nowhere(tmp_path, "MARKER")
