"""``lmwarden doctor`` against a console of made-up snapshots: each finding, the exit status, and who is no warden."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.access.clock import Now
from tests.console.made_up import CHAT, MESSAGES, counted, engine, model, pin, process, replica, snapshot, view
from tests.console.scene import Scene

from lmwarden.access.password import PasswordFile
from lmwarden.access.throttle import TRIES
from lmwarden.cli import main
from lmwarden.console.app import make_app
from lmwarden.console.server import ConsoleServer
from lmwarden.console.session import SignIn
from lmwarden.control import EngineState, Snapshot
from lmwarden.engine.launch_state import EnginePhase
from lmwarden.types import PinVerdict, ReplicaSample


class MadeUp:
    """A console that shows what the test makes up."""

    def __init__(self, scene: Scene, url: str) -> None:
        self._scene = scene
        self.url = url

    def shows(self, made_up: Snapshot) -> None:
        self._scene.control.snapshot = made_up


@pytest.fixture
async def console() -> AsyncIterator[MadeUp]:
    listener = socket.create_server(("127.0.0.1", 0))
    async with aiohttp.ClientSession() as session:
        scene = Scene(session)
        server = ConsoleServer(make_app(scene.control, [], host="127.0.0.1"), listener)
        server.start()
        yield MadeUp(scene, f"http://127.0.0.1:{listener.getsockname()[1]}")
        await server.stop()


async def run(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["doctor", *arguments])


async def test_all_is_well(console: MadeUp, capsys: pytest.CaptureFixture[str]) -> None:
    console.shows(snapshot())
    assert await run("--url", console.url) == 0
    output, errors = capsys.readouterr()
    lines = output.splitlines()
    assert lines[-1] == f"{len(lines) - 1} checks, all ok"
    assert all(line.startswith("ok ") for line in lines[:-1])
    assert errors == ""


@pytest.mark.parametrize(
    ("ill", "level", "says", "what_to_do"),
    [
        (
            model(engines=(engine(pins={CHAT: pin(PinVerdict.FAILED), MESSAGES: pin(PinVerdict.VERIFIED)}),)),
            "fault",
            "e0 does not obey the rank that we name on /v1/chat/completions",
            "a proxy in between that drops the header X-data-parallel-rank",
        ),
        (
            model(engines=(engine(usage_details=False),)),
            "warning",
            "do not say how much of a prompt was cached",
            "--enable-prompt-tokens-details",
        ),
        (counted(identity_none=50), "warning", "50 of 50 requests came without a session id", "lmwarden connect"),
        (model(max_model_len=262_144), "warning", "the cache of e0/0 holds 42000", "--max-model-len 42000 or less"),
        (
            model(view=view(replicas=(replica(resident_tokens=99_999),))),
            "warning",
            "e0/0 holds 99,999 of 42,000",
            "fewer agents at a time",
        ),
        (
            model(view=view(spill_threshold_source="default")),
            "warning",
            "max_num_seqs is not known",
            "max_num_seqs under [models.engine]",
        ),
        (model(engines=(engine(state=EngineState.DOWN),)), "fault", "e0 at http://h:1 does not answer", "start it"),
        (
            model(engines=(process(EnginePhase.FAILED, detail="it ended.", last_lines=("\x1b[2Jno GPU",)),)),
            "fault",
            "e0: it ended (its last line:  [2Jno GPU)",
            "/api/engines/e0/logs",
        ),
        (
            model(view=view(replicas=(replica(sample=ReplicaSample(taken_at=1.0, stalled=True)),))),
            "fault",
            "e0/0 has requests and makes no progress",
            "restart its engine",
        ),
        (model(engines=(process(outdated=True),)), "warning", "runs with another command", "rolling-restart"),
        (model(engines=(engine(scrape_age_s=60.0),)), "warning", "the metrics of e0 is 60 s old", "overloaded"),
        (model(panic=True), "fault", "the probes of all its engines fail", "between the warden and the engines"),
    ],
)
async def test_each_finding_says_what_to_change(
    console: MadeUp, capsys: pytest.CaptureFixture[str], ill: Any, level: str, says: str, what_to_do: str
) -> None:
    console.shows(snapshot(ill))
    assert await run("--url", console.url) == 1
    output, _ = capsys.readouterr()
    (line,) = [line for line in output.splitlines() if says in line]
    assert line.startswith(f"{level} ")
    assert what_to_do in line.partition("; what to do: ")[2]
    assert "\x1b" not in output
    assert output.splitlines()[-1].endswith(" of them not ok")


async def test_a_full_disk(console: MadeUp, capsys: pytest.CaptureFixture[str]) -> None:
    console.shows(snapshot(ledger_trouble="the disk is full"))
    assert await run("--url", console.url) == 1
    assert "history and homes: the disk is full" in capsys.readouterr().out


async def test_several_models_are_told_apart(console: MadeUp, capsys: pytest.CaptureFixture[str]) -> None:
    console.shows(snapshot(model(name="one"), model(name="two")))
    assert await run("--url", console.url) == 0
    output = capsys.readouterr().out
    assert "one: 2 of 2 replicas take requests" in output
    assert "two: 2 of 2 replicas take requests" in output


async def test_json(console: MadeUp, capsys: pytest.CaptureFixture[str]) -> None:
    console.shows(snapshot(model(max_model_len=262_144)))
    assert await run("--url", console.url + "/", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    (found,) = [check for check in answer["checks"] if check["level"] != "ok"]
    assert (found["code"], found["model"], found["engine"]) == ("context_too_large", "org/model", None)
    assert set(found) == {"code", "level", "text", "what_to_do", "model", "engine", "params"}


async def test_nobody_there(dead_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{dead_port}"
    assert await run("--url", url) == 2
    assert capsys.readouterr().err == (
        f"lmwarden: --url: {url} cannot be reached (Connection refused); is the warden running?\n"
    )


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(text="<html>"),
        web.Response(text='{"checks": [{"level": 3}]}'),
        web.Response(text="[]"),
        web.Response(status=404),
        web.Response(body=b"\xff\xfe"),
    ],
)
async def test_somebody_else_there(capsys: pytest.CaptureFixture[str], answer: web.Response) -> None:
    async def stranger(request: web.Request) -> web.Response:
        return web.Response(body=answer.body, status=answer.status)

    app = web.Application()
    app.router.add_get("/{path:.*}", stranger)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    assert await run("--url", url) == 2
    assert "answers, but not as a warden's console" in capsys.readouterr().err
    await runner.cleanup()


async def test_a_url_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("--url", "nonsense") == 2
    assert "expected http://host:port, the warden's console port" in capsys.readouterr().err


async def test_a_name_that_the_console_does_not_take(capsys: pytest.CaptureFixture[str]) -> None:
    async def refuses(request: web.Request) -> web.Response:
        return web.json_response({"error": "this Host is not allowed here"}, status=403)

    app = web.Application()
    app.router.add_get("/api/checks", refuses)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    assert await run("--url", f"http://127.0.0.1:{runner.addresses[0][1]}") == 2
    assert "console.allowed_hosts" in capsys.readouterr().err
    await runner.cleanup()


async def test_a_console_with_a_password(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("correct horse\n")
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with aiohttp.ClientSession() as session:
        scene = Scene(session)
        # Its clock stands: tries come back with the time that they take.
        sign_in = SignIn(PasswordFile(file, "console.password_file"), Now())
        server = ConsoleServer(make_app(scene.control, [], host="0.0.0.0", sign_in=sign_in), listener)
        server.start()
        scene.control.snapshot = snapshot()
        assert await run("--url", url, "--password-file", str(file)) == 0
        assert "the console asks for its password" in capsys.readouterr().out
        assert await run("--url", url) == 2
        assert f"--password-file: the console at {url} asks for a password" in capsys.readouterr().err
        wrong = tmp_path / "wrong"
        wrong.write_text("wrong horses")
        for _ in range(TRIES):
            assert await run("--url", url, "--password-file", str(wrong)) == 2
            assert "refuses the password" in capsys.readouterr().err
        assert await run("--url", url, "--password-file", str(file)) == 2
        assert "too many wrong passwords came from here; wait a minute" in capsys.readouterr().err
        assert await run("--url", url, "--password-file", str(tmp_path / "absent")) == 2
        await server.stop()
