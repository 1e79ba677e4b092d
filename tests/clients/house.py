"""Scripted engines and a real warden in front of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.programs import lmwarden
from tests.clients.scripted_engine import Brain, ScriptedEngine, Seen
from tests.real.warden_process import WardenProcess, start_configured_warden
from tests.waiting import until

MODEL = "coder"
MAX_NUM_SEQS = 32


@dataclass
class House:
    """Engines ``e0``, ``e1``, ... of one model, and the warden."""

    engines: list[ScriptedEngine]
    warden: WardenProcess
    key: str | None = None
    """An API key of the user "anna", where one is wanted."""

    @property
    def seen(self) -> list[Seen]:
        """All requests of clients that reached an engine, in the order of each engine."""
        return [seen for engine in self.engines for seen in engine.seen]

    def think(self, brain: Brain) -> None:
        """Give the model another brain."""
        for engine in self.engines:
            engine.brain = brain

    def homes(self) -> dict[tuple[str | None, str | None], list[str]]:
        """(session, agent) of Claude Code to the replicas that served its turns, in order; title calls left out."""
        homes: dict[tuple[str | None, str | None], list[str]] = {}
        for seen in self.seen:
            if seen.request_class != "auxiliary":
                homes.setdefault((seen.session, seen.agent), []).append(seen.replica)
        return homes

    async def arrivals(self, count: int) -> list[Seen]:
        """The first requests of clients, once ``count`` have arrived, in no order between engines."""
        await until(lambda: len(self.seen) >= count, lambda: (count, self.seen))
        return self.seen

    async def rows(self, count: int) -> list[dict[str, Any]]:
        """The ledger's rows of generations, oldest first, once there are ``count``."""

        def generations() -> list[dict[str, Any]]:
            return [row for row in self.warden.ledger() if not row["endpoint"].endswith("count_tokens")]

        await until(lambda: len(generations()) >= count, lambda: (count, generations()))
        return generations()

    async def card(self, decided: int) -> dict[str, Any]:
        """The model's routing card, which may be a second old, once it counts so many decisions."""

        def known() -> int:
            return sum(self.warden.routing()["decisions"].values())

        await until(lambda: known() >= decided, lambda: (decided, known()))
        return self.warden.routing()


@asynccontextmanager
async def open_house(
    folder: Path, *, engines: int = 1, ranks: int = 1, require_key: bool = False
) -> AsyncIterator[House]:
    """Start scripted engines and a warden in front of them; at the end the warden must stop cleanly.

    Args:
        folder: for the warden's files.
        engines: how many servers.
        ranks: data-parallel ranks of each.
        require_key: whether clients need an API key.
    """
    async with AsyncExitStack() as stack:
        servers = [ScriptedEngine(f"e{number}", ranks=ranks) for number in range(engines)]
        for server in servers:
            await server.start()
            stack.push_async_callback(server.close)
        data_dir = folder / "warden"
        data_dir.mkdir()
        key = None
        if require_key:
            created = await lmwarden("keys", "create", "anna", "--data-dir", str(data_dir), folder=folder)
            key = created.strip()
        configuration = data_dir / "lmwarden.toml"
        configuration.write_text(_configuration([server.url for server in servers], require_key))
        arguments = ["--config", str(configuration)]
        warden = await asyncio.to_thread(start_configured_warden, arguments, MODEL, data_dir)
        try:
            yield House(servers, warden, key)
        finally:
            status = await asyncio.to_thread(warden.stop)
    assert status == 0, "the warden did not end cleanly on SIGTERM"


def _configuration(urls: list[str], require_key: bool) -> str:
    return f"""
[client]
require_key = {"true" if require_key else "false"}
drain_s = 5
[[models]]
name = "{MODEL}"
aliases = ["claude-*"]
[models.engine]
attach = {json.dumps(urls)}
max_num_seqs = {MAX_NUM_SEQS}
"""
