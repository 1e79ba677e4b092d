"""The whole warden with two real vLLM servers that it launched: one lost, the warden lost, both replaced in turn.

What a person with GPUs does in the first week, on the CPU: two process trees, one replica each. A start of vLLM takes
half a minute to some minutes here, so the whole story is one test, and it also looks at what a start says of itself:
its steps, and the names it answers to.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import pytest
from tests.real.agent import Agent, Reply
from tests.real.vllm_server import (
    BLOCK_SIZE_TOKENS,
    BLOCKS_PER_RANK,
    ENVIRONMENT,
    MAX_MODEL_LEN_TOKENS,
    START_TIMEOUT_S,
    tiny_model,
)
from tests.waiting import until
from tests.whole.launched import MODEL, LaunchedWarden

pytestmark = pytest.mark.real

CONVERSATIONS = 6
START_LOOK_S = 3.0
"""Between two requests while an engine is starting in a rolling restart."""


@dataclass
class RealWarden(LaunchedWarden):
    """Launches vLLM instead of simulated engines."""

    replicas: int = 2
    patience_s: float = 2 * START_TIMEOUT_S
    environment: Path = field(default_factory=Path)
    steps: dict[str, list[str]] = field(default_factory=dict)
    """Engine to the steps of its starts, as the console showed them."""

    def configuration(self) -> str:
        name = f'name = "{MODEL}"\n'
        return super().configuration().replace(name, f'{name}aliases = ["claude-*", "another name"]\n', 1)

    def engine(self) -> str:
        flags = [
            *("--max-model-len", str(MAX_MODEL_LEN_TOKENS), "--block-size", str(BLOCK_SIZE_TOKENS)),
            *("--num-gpu-blocks-override", str(BLOCKS_PER_RANK), "--enforce-eager"),
        ]
        arguments = ", ".join(f'"{flag}"' for flag in flags)
        variables = "\n".join(f'{name} = "{value}"' for name, value in ENVIRONMENT.items())
        return f"""
launch = "vllm"
executable = "{self.environment}/bin/vllm"
model = "{tiny_model(self.environment)}"
args = [{arguments}]
[models.engine.env]
{variables}
"""

    async def all_ready(self) -> None:
        """Wait until every replica is ready, and note what the starts are at meanwhile."""
        await self.until(lambda: self._note_steps() and set(self.states().values()) == {"ready"})

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that takes a start of vLLM.

        Raises:
            AssertionError: it did not hold within ``patience_s``.
        """
        await until(holds, self.describe, self.patience_s)

    def _note_steps(self) -> bool:
        for engine, line in self.engines().items():
            seen = self.steps.setdefault(engine, [])
            step = line["process"]["step"]
            if step is not None and step not in seen:
                seen.append(step)
        return True


@pytest.fixture
def environment() -> Path:
    """Where vLLM is installed."""
    found = os.environ.get("LMWARDEN_REAL_ENV")
    if not found:
        pytest.skip("needs a real vLLM: ./run test-real")
    return Path(found)


async def test_two_real_engines_through_a_crash_a_killed_warden_and_a_rolling_restart(
    tmp_path: Path, environment: Path
) -> None:
    warden = RealWarden(tmp_path, environment=environment)
    try:
        await warden.start()
        await warden.all_ready()
        assert [steps[:2] for steps in warden.steps.values()] == [["importing", "starting the engine"]] * 2
        assert [await _names_of(line["url"]) for line in warden.engines().values()] == [[MODEL, "another name"]] * 2
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
    process = warden.engines()["e1"]["process"]
    assert process["pid"] != pid
    assert process["restarts"] == 1


async def _kill_the_warden(warden: RealWarden, agents: list[Agent]) -> None:
    """The engines go on, the next warden takes them over, and the conversations find their caches."""
    pids = {engine: warden.engine_pid(engine) for engine in warden.engines()}
    await until(lambda: len(warden.rows()) >= 3 * len(agents), warden.describe)
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

    statuses: Counter[int] = Counter()
    limit_s = time.monotonic() + warden.patience_s
    while (operation := warden.get(f"/api/models/{MODEL}/operation")["operation"])["state"] != "done":
        assert operation["state"] == "running", operation
        assert time.monotonic() < limit_s, warden.describe()
        # A conversation of its own each time: the tiny model's context would soon be full otherwise.
        fresh = [Agent("", MODEL, "messages", True, f"{agent.session_id}-{statuses.total()}") for agent in agents[:2]]
        statuses.update(reply.status for reply in await _turns(warden, fresh))
        # Without a pause until something changes: it is then that a request could be lost. A start takes long, and a
        # vLLM that has just worked spins for a second, so the load would take the processor from it.
        await asyncio.sleep(START_LOOK_S if operation["step"] == "starting" else 0.0)
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


async def _names_of(engine_url: str) -> list[str]:
    """What an engine answers to: its model's name and those aliases that are names and not patterns."""
    async with aiohttp.ClientSession() as session, session.get(f"{engine_url}/v1/models") as answer:
        return [card["id"] for card in (await answer.json())["data"]]


def _is_core(process: psutil.Process) -> bool:
    return "EngineCore" in process.name() or any("EngineCore" in word for word in process.cmdline())
