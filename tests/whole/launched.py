"""``lmwarden serve`` with engines that it launches itself (simulated ones), as child processes seen from outside.

The warden is started on free ports and says in its log which they are. Whatever a test kills, ``stop`` ends: the
warden first, in order, then every engine of its data folder that is still there.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tests.waiting import PATIENCE_S, until

MODEL = "agents"
_SOURCES = Path(__file__).resolve().parents[2] / "src"


@dataclass
class LaunchedWarden:
    """One data folder and the warden that serves from it; it may be killed and started again."""

    folder: Path
    replicas: int = 4
    layout: str = "isolated"
    on_exit: str = "stop"
    speed: float = 10.0
    kv_cache_tokens: int = 20_000
    patience_s: float = PATIENCE_S
    """Simulated engines need seconds; real ones longer."""
    client_port: int = 0
    process: subprocess.Popen[bytes] | None = None
    client_url: str = ""
    console_url: str = ""
    _starts: int = field(default=0, repr=False)

    @property
    def log(self) -> Path:
        """Output of the latest run."""
        return self.folder / f"warden-{self._starts}.log"

    def configuration(self) -> str:
        """The file ``lmwarden.toml``."""
        return f"""
[client]
port = {self.client_port}
drain_s = {PATIENCE_S:g}
[console]
port = 0
[storage]
dir = "{self.folder / "data"}"
[[models]]
name = "{MODEL}"
[models.engine]
replicas = {self.replicas}
layout = "{self.layout}"
on_exit = "{self.on_exit}"
max_num_seqs = 32
{self.engine()}
"""

    def engine(self) -> str:
        """The lines that say what is launched."""
        arguments = f'"--speed", "{self.speed:g}", "--kv-cache-tokens", "{self.kv_cache_tokens}"'
        return f'launch = "simulated"\nmodel = "{MODEL}"\nargs = [{arguments}]'

    async def start(self) -> None:
        """Start the warden; returns when its ports serve (its engines need not be there yet).

        Raises:
            RuntimeError: it ended; the text has its output.
            AssertionError: it did not say that it is ready; likewise.
        """
        self._starts += 1
        self.process = process = self._spawn()
        await until(lambda: process.poll() is not None or addresses(self.log) is not None, self.log.read_text)
        said = addresses(self.log)
        if said is None:
            raise RuntimeError(f"the warden ended with {process.returncode}:\n{self.log.read_text()[-4000:]}")
        self.client_url, self.console_url = said

    async def fails_to_start(self) -> int:
        """Start a warden that is expected to end at once; its exit status."""
        self._starts += 1
        self.process = self._spawn()
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask the warden to end; its exit status. After SIGTERM what becomes of its engines is up to ``on_exit``."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_S)

    def _spawn(self) -> subprocess.Popen[bytes]:
        file = self.folder / "lmwarden.toml"
        file.write_text(self.configuration())
        with self.log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "lmwarden", "serve", "--config", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(_SOURCES)},
            )

    def kill(self) -> None:
        """SIGKILL, and only to the warden."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int | None:
        """End the warden in order, then whatever engine is left; the warden's exit status."""
        status = None
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            try:
                status = self.process.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for process in self.engine_processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return status

    def engine_processes(self) -> list[psutil.Process]:
        """Every living process of this data folder's engines: they write to its logs."""
        folder = f"{self.folder}/data/engines/"
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if any(file.path.startswith(folder) and file.path.endswith(".log") for file in process.open_files()):
                    found.append(process)
        return found

    def get(self, path: str) -> Any:
        """JSON of a console path."""
        with urllib.request.urlopen(self.console_url + path, timeout=PATIENCE_S) as response:
            return json.load(response)

    def post(self, path: str, **body: object) -> Any:
        """Change something through the console; the answer's JSON."""
        request = urllib.request.Request(
            self.console_url + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return json.loads(response.read() or b"null")

    def routing(self) -> dict[str, Any]:
        """The routing card."""
        card: dict[str, Any] = self.get(f"/api/models/{MODEL}/routing")
        return card

    def states(self) -> dict[str, str]:
        """Replica to state."""
        return {row["replica"]: row["state"] for row in self.routing()["replicas"]}

    def engines(self) -> dict[str, dict[str, Any]]:
        """Engine to what the console says of it."""
        return {engine["engine"]: engine for engine in self.get("/api/engines")["engines"]}

    def engine_pid(self, engine: str) -> int:
        """Process id of an engine's leader."""
        pid = self.engines()[engine]["process"]["pid"]
        assert isinstance(pid, int)
        return pid

    def rows(self) -> list[dict[str, Any]]:
        """The ledger's request rows, oldest first."""
        return select(self.ledger, "SELECT * FROM requests ORDER BY id")

    def homes(self) -> int:
        """How many homes are on disk, which they are 200 ms after they were bound: what a kill finds may be lost."""
        return len(select(self.ledger, "SELECT conversation FROM homes"))

    @property
    def ledger(self) -> Path:
        """The ledger's file."""
        return self.folder / "data" / "ledger.sqlite3"

    async def all_ready(self) -> None:
        """Wait until every replica is ready."""
        await until(lambda: set(self.states().values()) == {"ready"}, self.describe, self.patience_s)

    def describe(self) -> str:
        """For a failed test: where things stand."""
        try:
            state = json.dumps({"routing": self.routing(), "engines": self.engines()}, indent=1)
        except OSError as error:
            state = str(error)
        return f"{state[-6000:]}\n{self.log.read_text()[-6000:]}"


def addresses(log: Path) -> tuple[str, str] | None:
    """Where a warden serves clients and the console, once its output says that it is ready."""
    for line in log.read_text().splitlines(keepends=True):
        if '"ready"' in line and line.endswith("\n"):  # and is not still being written
            said = json.loads(line)
            return said["clients"], said["console"]
    return None


def select(ledger: Path, query: str) -> list[dict[str, Any]]:
    """Rows of a ledger's file, which its warden may be writing to."""
    with closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query)]
