"""A real vLLM, launched and supervised as the warden does it: its steps, its family, its crash, its end.

One start of one rank and a second one after the crash, so it takes about two minutes on two cores.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import aiohttp
import pytest
from tests.engine.launching import Followed, Launched, News
from tests.real.vllm_server import START_TIMEOUT_S

from lmwarden.config import load
from lmwarden.engine.launch import plan_engines
from lmwarden.engine.processes import marked, send, words_of
from lmwarden.engine.records import EngineRecords
from lmwarden.engine.supervisor import EnginePhase, LaunchState

RECIPE = Path(__file__).with_name("tiny_model.py")

CONFIG = """
[[models]]
name = "tiny"
aliases = ["claude-*", "another name"]
[models.engine]
launch = "vllm"
executable = "{environment}/bin/vllm"
model = "{folder}/tiny"
max_num_seqs = 32
args = ["--max-model-len", "4096", "--block-size", "32", "--num-gpu-blocks-override", "160", "--enforce-eager"]
[models.engine.env]
HF_HUB_OFFLINE = "1"
VLLM_CPU_KVCACHE_SPACE = "1"
VLLM_CPU_OMP_THREADS_BIND = "nobind"
OMP_NUM_THREADS = "1"
VLLM_HOST_IP = "127.0.0.1"
VLLM_NO_USAGE_STATS = "1"
"""


class Steps(Followed):
    """Notes the steps of a start, as they are read from the log."""

    seen: list[str]

    @property
    def state(self) -> LaunchState:
        state = super().state
        if state.step is not None and state.step not in self.seen:
            self.seen.append(state.step)
        return state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the model and the configuration in it."""
    environment = os.environ.get("LMWARDEN_REAL_ENV")
    if not environment:
        pytest.skip("needs a real vLLM: ./run test-real")
    subprocess.run([f"{environment}/bin/python", RECIPE, tmp_path / "tiny"], check=True, capture_output=True)
    (tmp_path / "lmwarden.toml").write_text(CONFIG.format(environment=environment, folder=tmp_path))
    return tmp_path


async def until_ready(launched: Launched, url: str) -> list[str]:
    """As the watch does it: ``/health``, then whether it is ours. Returns the names that it serves."""
    async with asyncio.timeout(START_TIMEOUT_S), aiohttp.ClientSession() as http:
        while True:
            assert launched.supervisor.state.phase is EnginePhase.STARTING, launched.supervisor.state
            try:
                async with http.get(f"{url}/health") as answer:
                    if answer.status == 200 and launched.supervisor.may_serve():
                        break
            except aiohttp.ClientConnectionError:
                pass
            await launched.is_cared_for()  # once a second
        launched.supervisor.ready()
        async with http.get(f"{url}/v1/models") as answer:
            return [card["id"] for card in (await answer.json())["data"]]


@pytest.mark.real
async def test_a_real_vllm_is_launched_lost_started_again_and_ended(folder: Path) -> None:
    config = load(folder / "lmwarden.toml")
    model = config.models[0]
    (plan,) = plan_engines(model.engine, name="tiny", aliases=model.aliases, first_number=0)
    news = News()
    supervisor = Steps(plan, folder=folder / "data", settings=config.launch, news=news)
    supervisor.seen = []
    launched = Launched(supervisor, news)
    endpoint = await supervisor.prepare()
    await launched.begin()
    try:
        await launched.reaches(EnginePhase.STARTING)
        url = f"http://{endpoint.host}:{endpoint.port}"
        assert await until_ready(launched, url) == ["tiny", "another name"]
        assert supervisor.seen[:2] == ["importing", "starting the engine"]
        pid = supervisor.state.pid
        assert pid is not None
        # One engine core is killed: vLLM ends its whole server, some seconds later and with exit status 0.
        (core,) = [
            process
            for _, info in marked(EngineRecords(folder / "data").mark("e0"))
            if "EngineCore" in words_of((process := info.id).pid)[0]
        ]
        send(core, signal.SIGKILL)
        async with asyncio.timeout(60):
            await news.ends.get()
        await launched.reaches(EnginePhase.STARTING)
        assert supervisor.state.pid != pid
        await until_ready(launched, url)
        assert supervisor.state.restarts == 1
    finally:
        await supervisor.stop()
        await launched.drop()
    assert supervisor.state.phase is EnginePhase.STOPPED
    assert marked(EngineRecords(folder / "data").mark_prefix) == []
