"""The whole warden with two real vLLM servers that it launched: one lost, the warden lost, both replaced in turn.

What a person with GPUs does in the first week, on the CPU: two process trees, one replica each. A start of vLLM takes
half a minute to some minutes here, so the whole story is one test.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import pytest
from tests.real.agent import Agent, Reply
from tests.real.vllm_server import BLOCK_SIZE_TOKENS, BLOCKS_PER_RANK, MAX_MODEL_LEN_TOKENS, START_TIMEOUT_S
from tests.whole.launched import MODEL, LaunchedWarden, eventually

pytestmark = pytest.mark.real

RECIPE = Path(__file__).with_name("tiny_model.py")
CONVERSATIONS = 6


@dataclass
class RealWarden(LaunchedWarden):
    """Launches vLLM instead of simulated engines."""

    replicas: int = 2
    patience_s: float = 2 * START_TIMEOUT_S
    environment: Path = field(default_factory=Path)

    def engine(self) -> str:
        flags = [
            *("--max-model-len", str(MAX_MODEL_LEN_TOKENS), "--block-size", str(BLOCK_SIZE_TOKENS)),
            *("--num-gpu-blocks-override", str(BLOCKS_PER_RANK), "--enforce-eager"),
        ]
        arguments = ", ".join(f'"{flag}"' for flag in flags)
        return f"""
launch = "vllm"
executable = "{self.environment}/bin/vllm"
model = "{self.folder}/tiny"
args = [{arguments}]
[models.engine.env]
HF_HUB_OFFLINE = "1"
VLLM_CPU_KVCACHE_SPACE = "1"
VLLM_CPU_OMP_THREADS_BIND = "nobind"
OMP_NUM_THREADS = "1"
VLLM_HOST_IP = "127.0.0.1"
VLLM_NO_USAGE_STATS = "1"
"""

    async def until(self, holds: object) -> None:
        """Wait for something that takes a start of vLLM."""
        assert callable(holds)
        await eventually(holds, self.describe, self.patience_s)


@pytest.fixture
def environment() -> Path:
    """Where vLLM is installed."""
    found = os.environ.get("LMWARDEN_REAL_ENV")
    if not found:
        pytest.skip("needs a real vLLM: ./run test-real")
    return Path(found)


@pytest.fixture
def model(environment: Path, tmp_path: Path) -> Path:
    """A folder with the tiny model in it."""
    subprocess.run([environment / "bin/python", RECIPE, tmp_path / "tiny"], check=True, capture_output=True)
    return tmp_path


async def test_two_real_engines_through_a_crash_a_killed_warden_and_a_rolling_restart(
    model: Path, environment: Path
) -> None:
    warden = RealWarden(model, environment=environment)
    try:
        await warden.start()
        await warden.all_ready()
        agents = [Agent("", MODEL, "messages", True, f"session-{number}") for number in range(CONVERSATIONS)]
        first = await _turns(warden, agents)
        assert Counter(reply.replica for reply in first) == {"e0/0": 3, "e1/0": 3}
        homes = [reply.replica for reply in first]
        again = await _turns(warden, agents)
        assert [(reply.decision, reply.replica) for reply in again] == [("sticky", home) for home in homes]
        assert all(reply.cached_tokens for reply in again)

        await _kill_an_engine_core(warden, agents)
        await _kill_the_warden(warden, agents)
        await _replace_both(warden, agents)
        assert warden.end() == 0
        assert not warden.engine_processes(), "an orderly end leaves no process of an engine"
    finally:
        warden.stop()


async def _kill_an_engine_core(warden: RealWarden, agents: list[Agent]) -> None:
    """One replica dies from inside: the other one serves everybody, and the dead one comes back by itself."""
    pid = warden.engine_pid("e1")
    core = next(child for child in psutil.Process(pid).children(recursive=True) if _is_core(child))
    core.send_signal(signal.SIGKILL)
    await warden.until(lambda: warden.states()["e1/0"] in ("down", "starting"))
    moved = await _turns(warden, agents)
    assert {reply.replica for reply in moved} == {"e0/0"}
    assert {reply.decision for reply in moved} == {"sticky", "rehomed"}
    await warden.all_ready()
    assert warden.engine_pid("e1") != pid


async def _kill_the_warden(warden: RealWarden, agents: list[Agent]) -> None:
    """The engines go on, the next warden takes them over, and the conversations find their caches."""
    pids = {engine: warden.engine_pid(engine) for engine in warden.engines()}
    await eventually(lambda: len(warden.rows()) >= 3 * len(agents), warden.describe)
    warden.kill()
    await warden.start()
    await warden.all_ready()
    assert {engine: warden.engine_pid(engine) for engine in warden.engines()} == pids
    replies = await _turns(warden, agents)
    assert {reply.decision for reply in replies} == {"sticky"}
    assert all(reply.cached_tokens for reply in replies)


async def _replace_both(warden: RealWarden, agents: list[Agent]) -> None:
    """A rolling restart under load: no request fails, and both processes are new."""
    pids = {engine: warden.engine_pid(engine) for engine in warden.engines()}
    warden.post(f"/api/models/{MODEL}/rolling-restart")

    def done() -> bool:
        operation = warden.get(f"/api/models/{MODEL}/operation")["operation"]
        assert operation["state"] != "failed", operation
        return bool(operation["state"] == "done")

    replaced = asyncio.ensure_future(warden.until(done))
    statuses: Counter[int] = Counter()
    while not replaced.done():
        # A conversation of its own each time: the tiny model's context would soon be full otherwise.
        fresh = [Agent("", MODEL, "messages", True, f"{agent.session_id}-{statuses.total()}") for agent in agents[:2]]
        statuses.update(reply.status for reply in await _turns(warden, fresh))
    await replaced
    assert set(statuses) == {200}, statuses
    assert all(warden.engine_pid(engine) != pid for engine, pid in pids.items())


async def _turns(warden: RealWarden, agents: list[Agent]) -> list[Reply]:
    """One turn of each agent, one after the other: a tiny machine, and placement is then by what replicas hold."""
    replies = []
    for agent in agents:
        agent.url = warden.client_url
        try:
            replies.append(await agent.turn(f"Turn {len(agent.messages)} of {agent.session_id}: go on."))
        except aiohttp.ClientError as error:
            raise AssertionError(f"{agent.session_id}: {error!r}\n{warden.describe()}") from None
    return replies


def _is_core(process: psutil.Process) -> bool:
    return "EngineCore" in process.name() or any("EngineCore" in word for word in process.cmdline())
