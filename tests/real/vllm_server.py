"""One real vLLM server on the CPU, as a child process with a process group of its own.

vLLM with two data-parallel ranks is six processes (API server, coordinator, two engine cores, two workers) that
do not all end when their parent is killed. So ``stop`` ends the whole group.

The cache is made small on purpose: 159 usable blocks of 32 tokens per rank, so that a test of some hundred
short requests evicts blocks all the time. ``ROOM_FOR_AGENTS`` is the other size: a real agent's prompt alone has
20,000 tokens.
"""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lmwarden.engine.port_hold import PortHold

MODEL = "tiny"
RANKS = 2
BLOCK_SIZE_TOKENS = 32
BLOCKS_PER_RANK = 160
MAX_MODEL_LEN_TOKENS = 4096
MAX_NUM_SEQS = 32
MAX_NUM_BATCHED_TOKENS = 2048


@dataclass(frozen=True)
class Size:
    """Of the model and its cache."""

    max_model_len_tokens: int = MAX_MODEL_LEN_TOKENS
    blocks_per_rank: int = BLOCKS_PER_RANK
    recipe: tuple[str, ...] = ()
    """Further arguments of ``tiny_model.py``."""
    flags: tuple[str, ...] = ()
    """Further flags of ``vllm serve``."""


SMALL = Size()
ROOM_FOR_AGENTS = Size(
    max_model_len_tokens=131_072,
    blocks_per_rank=5_000,
    recipe=("--vocabulary-tokens", "8192", "--max-positions", "131072", "--stop-every", "64"),
    flags=("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--seed", "1"),
)

START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 20

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    # A start is six imports of 3,000 modules: with compiled ones at hand it takes half as long. They are not written
    # where this is set, as it is in many a container.
    "PYTHONDONTWRITEBYTECODE": "",
}
"""Of every vLLM here, launched by the warden or not."""
_DEVELOPMENT = {
    # For /reset_prefix_cache, by which each test starts from an empty cache.
    "VLLM_SERVER_DEV_MODE": "1",
}


@dataclass(frozen=True)
class VllmServer:
    """A started server. ``url`` has no trailing slash; ``log`` is the file with its whole output."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]
    hold: PortHold
    """It imports for a minute before it listens: nobody else may have its port meanwhile."""

    def stop(self) -> None:
        """End every process of the group, first gently, then not."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=STOP_TIMEOUT_S)
        self.process.wait()
        self.hold.close()


def start_vllm(environment: Path, directory: Path, size: Size = SMALL) -> VllmServer:
    """Serve the tiny model with two ranks, with its log in ``directory``; returns when it answers.

    Raises:
        RuntimeError: it ended, or did not answer within ``START_TIMEOUT_S``; the text has the end of its log.
        subprocess.CalledProcessError: the model could not be made.
    """
    model = tiny_model(environment, size)
    hold = PortHold()
    log = directory / "vllm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [environment / "bin/vllm", "serve", model, *_flags(hold.port, size)],
            env={**os.environ, **ENVIRONMENT, **_DEVELOPMENT},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = VllmServer(url=f"http://127.0.0.1:{hold.port}", log=log, process=process, hold=hold)
    try:
        _wait_until_ready(server)
    except BaseException:
        server.stop()
        raise
    return server


def tiny_model(environment: Path, size: Size = SMALL) -> Path:
    """Make the tiny model of that size, once for all runs: beside vLLM, where it is found again.

    Raises:
        subprocess.CalledProcessError: it could not be made.
    """
    folder = environment / "models" / "-".join(["tiny", *(part.lstrip("-") for part in size.recipe)])
    recipe = Path(__file__).with_name("tiny_model.py")
    making = [str(part) for part in (environment / "bin/python", recipe, folder, *size.recipe)]
    subprocess.run(making, check=True, timeout=300, capture_output=True, env={**os.environ, **ENVIRONMENT})
    return folder


def engine_cores(server: VllmServer) -> dict[int, int]:
    """Process ids of the engine cores by rank, from the titles that vLLM gives its processes."""
    cores: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title = (process / "cmdline").read_bytes()
            group = os.getpgid(int(process.name))
        except (OSError, ProcessLookupError):
            continue
        for rank in range(RANKS):
            if group == server.process.pid and b"EngineCore_DP%d" % rank in title:
                cores[rank] = int(process.name)
    assert sorted(cores) == list(range(RANKS)), f"found only {cores}"
    return cores


def _flags(port: int, size: Size) -> list[str]:
    flags: dict[str, object] = {
        "--served-model-name": MODEL,
        "--host": "127.0.0.1",
        "--port": port,
        "--data-parallel-size": RANKS,
        "--api-server-count": 1,
        "--max-num-seqs": MAX_NUM_SEQS,
        "--max-num-batched-tokens": MAX_NUM_BATCHED_TOKENS,
        "--max-model-len": size.max_model_len_tokens,
        "--block-size": BLOCK_SIZE_TOKENS,
        "--num-gpu-blocks-override": size.blocks_per_rank,
    }
    pairs = [str(part) for pair in flags.items() for part in pair]
    return [*pairs, "--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details", *size.flags]


def _wait_until_ready(server: VllmServer) -> None:
    # Waiting for the end of the process is at once the pause between two probes and the notice of a crash.
    for _ in range(START_TIMEOUT_S):
        with suppress(subprocess.TimeoutExpired):
            status = server.process.wait(timeout=1)
            raise RuntimeError(f"vLLM ended with status {status} while it started:\n{_tail(server.log)}")
        with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"{server.url}/health", timeout=5).close()
            return
    raise RuntimeError(f"vLLM did not answer within {START_TIMEOUT_S} s:\n{_tail(server.log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-25:])
