"""``lmwarden serve --engine URL`` as a child process, and what the tests ask of it from outside.

Nothing of the warden is imported here but the interpreter: what these tests see is what a user sees, the client
port, the console port and the ledger's file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.whole.launched import addresses, select

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
PINS_TIMEOUT_S = 60
_SOURCES = Path(__file__).resolve().parents[2] / "src"


@dataclass(frozen=True)
class TokenSums:
    """Tokens of some requests, or of one rank: prompt (cached part included), cached, completion."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __add__(self, other: TokenSums) -> TokenSums:
        return TokenSums(self.prompt + other.prompt, self.cached + other.cached, self.completion + other.completion)

    def __sub__(self, other: TokenSums) -> TokenSums:
        return TokenSums(self.prompt - other.prompt, self.cached - other.cached, self.completion - other.completion)


@dataclass(frozen=True)
class WardenProcess:
    """A running warden. URLs have no trailing slash."""

    client_url: str
    console_url: str
    model: str
    data_dir: Path
    process: subprocess.Popen[bytes]

    def routing(self) -> dict[str, Any]:
        """The model's routing card."""
        state: dict[str, Any] = json.loads(_get(f"{self.console_url}/api/models/{self.model}/routing"))
        return state

    def wait_for_pins(self) -> None:
        """Until it has seen every rank obey, and so sends the engine no test requests any more.

        Raises:
            RuntimeError: not within ``PINS_TIMEOUT_S``.
        """
        for _ in range(PINS_TIMEOUT_S * 5):
            if self.routing()["pins"]["state"] == "verified":
                return
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.2)
        raise RuntimeError(f"the pins were not verified within {PINS_TIMEOUT_S} s: {self.routing()['pins']}")

    def patch_routing(self, **changes: object) -> dict[str, Any]:
        """Change settings; the new state."""
        request = urllib.request.Request(
            f"{self.console_url}/api/models/{self.model}/routing",
            data=json.dumps(changes).encode(),
            headers={"Content-Type": "application/json"},
            method="PATCH",
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            state: dict[str, Any] = json.load(response)
        return state

    def counted(self) -> TokenSums:
        """The warden's own counters of the model, from its ``/metrics``."""
        values = {
            line.split(" ")[0]: round(float(line.split(" ")[1]))
            for line in _get(f"{self.console_url}/metrics").decode().splitlines()
            if line.startswith(("lmwarden_prompt_tokens_total", "lmwarden_completion_tokens_total"))
        }
        cached = values[f'lmwarden_prompt_tokens_total{{model="{self.model}",source="cached"}}']
        computed = values[f'lmwarden_prompt_tokens_total{{model="{self.model}",source="computed"}}']
        completion = values[f'lmwarden_completion_tokens_total{{model="{self.model}"}}']
        return TokenSums(cached + computed, cached, completion)

    def ledger(self) -> list[dict[str, Any]]:
        """All rows, oldest first."""
        return select(self.data_dir / "ledger.sqlite3", "SELECT * FROM requests ORDER BY id")

    def stop(self) -> int:
        """SIGTERM, as an operator's service manager does; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def start_warden(engine_url: str, model: str, data_dir: Path, *, max_num_seqs: int) -> WardenProcess:
    """Start a warden in front of a running vLLM; returns when it can serve.

    Raises:
        RuntimeError: it ended or was not ready in time; the text has its output.
    """
    return start_configured_warden(["--engine", engine_url, "--max-num-seqs", str(max_num_seqs)], model, data_dir)


def start_configured_warden(arguments: list[str], model: str, data_dir: Path) -> WardenProcess:
    """Start a warden with these arguments of ``lmwarden serve``, on free ports; returns when it can serve.

    Raises:
        RuntimeError: it ended or was not ready in time; the text has its output.
    """
    log = data_dir / "warden.log"
    ports = ["--port", "0", "--console-port", "0", "--data-dir", str(data_dir)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "lmwarden", "serve", *arguments, *ports],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=data_dir,
            env={**os.environ, "PYTHONPATH": str(_SOURCES)},
        )
    for _ in range(START_TIMEOUT_S * 5):
        with suppress(subprocess.TimeoutExpired):
            status = process.wait(timeout=0.2)
            raise RuntimeError(f"the warden ended with status {status}:\n{log.read_text()[-4000:]}")
        said = addresses(log)
        with suppress(OSError):
            if said is not None:
                _get(f"{said[0]}/readyz")
                return WardenProcess(*said, model, data_dir, process)
    process.kill()
    process.wait()
    raise RuntimeError(f"the warden was not ready within {START_TIMEOUT_S} s:\n{log.read_text()[-4000:]}")


def engine_counted(engine_url: str) -> dict[int, TokenSums]:
    """vLLM's own counters of each rank, from its ``/metrics``."""
    families = {
        "vllm:prompt_tokens_total": "prompt",
        "vllm:prompt_tokens_cached_total": "cached",
        "vllm:generation_tokens_total": "completion",
    }
    ranks: dict[int, dict[str, int]] = {}
    for line in _get(f"{engine_url}/metrics").decode().splitlines():
        series, _, value = line.rpartition(" ")
        name, _, labels = series.partition("{")
        if name in families:
            rank = int(labels.split('engine="')[1].split('"')[0])
            ranks.setdefault(rank, {})[families[name]] = round(float(value))
    return {rank: TokenSums(**sums) for rank, sums in ranks.items()}


def engine_running(engine_url: str) -> int:
    """Requests that vLLM holds, running and waiting, on all ranks."""
    return sum(
        round(float(line.rpartition(" ")[2]))
        for line in _get(f"{engine_url}/metrics").decode().splitlines()
        if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
    )


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as response:
        body: bytes = response.read()
    return body
