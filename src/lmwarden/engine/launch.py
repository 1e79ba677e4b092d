"""How an engine is started: a command line and an environment, nothing else.

One :class:`LaunchPlan` per server. ``isolated`` makes one server per replica, each with GPUs of its own; ``shared``
makes one server with all replicas as its data-parallel ranks. A plan knows everything but the port, which is reserved
when the engine is about to be started or taken over.

What the warden sets stands first, what the user wrote in ``args`` last, each word a word of its own: nothing passes
a shell. The names that clients may use (the model's name and its exact aliases) become served names of vLLM, so that
the reply to an alias carries the alias. Usage details and prefix caching are always on, because routing needs both.

**The environment** is the warden's own without what concerns the warden only: its systemd sockets, and the Python paths
that would let a vLLM of another environment import our packages. A *mark* (:data:`MARK`) is added: the kernel hands it
down to every descendant, so that processes of an engine are recognised even if they left their group, or if the
warden was killed before it could note them. vLLM renames its processes, which by default overwrites the memory in which
the kernel shows their environment; ``SPT_NOENV`` makes the library that does it keep its hands off.

``kv_offload_gib`` is the CPU tier of one replica. vLLM's ``--kv-offloading-size`` is the sum over the tensor-parallel
ranks of one replica, each data-parallel rank having its own (it is divided by a world size that leaves data
parallelism out), so the number is passed as it is in both layouts.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

import lmwarden
from lmwarden.config import HIDDEN, EngineConfig, arguments_without_secrets, is_pattern, variables_without_secrets

HOST = "127.0.0.1"
"""Launched engines listen here only: vLLM's port also carries its administration."""
MARK = "LMWARDEN_ENGINE"
"""Variable that says whose engine a process belongs to."""

_OURS_ALONE = (
    "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES",
    "JOURNAL_STREAM", "CREDENTIALS_DIRECTORY", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE",
    "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "COVERAGE_PROCESS_START",
)  # fmt: skip


class Command(msgspec.Struct, frozen=True):
    """What is executed."""

    argv: tuple[str, ...]
    """The first is an absolute path."""
    env: dict[str, str]
    """The whole environment."""
    shown: str
    """One line for a shell, to look at and to copy; secrets are hidden, the mark is left out."""

    def __repr__(self) -> str:
        return f"Command({self.shown})"


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One server to be started."""

    engine: str
    """Short name, ``e0``."""
    model: str
    """The name by which it serves the model."""
    ranks: int
    head: tuple[str, ...]
    """Words before ``--port N``."""
    tail: tuple[str, ...]
    """Words after it."""
    env: dict[str, str]
    """What is added to the environment."""
    identity: str
    """What must be equal for a running engine to be taken over as this one: what it serves, on which GPUs."""
    max_num_seqs: int | None = None
    gpus_per_replica: int = 1
    api_key: str | None = None
    on_exit: str = "stop"
    """``stop`` or ``keep``."""

    def __repr__(self) -> str:
        return f"LaunchPlan({self.engine} {self.identity})"

    def command(self, port: int, mark: str) -> Command:
        """The effective command.

        Args:
            port: where the engine shall listen.
            mark: value of :data:`MARK`.
        """
        argv = (*self.head, "--port", str(port), *self.tail)
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in _OURS_ALONE and not name.startswith("LMWARDEN_")
        }
        key = {} if self.api_key is None else {"VLLM_API_KEY": self.api_key}
        added = {**self.env, **key}
        return Command(argv=argv, env={**inherited, **added, MARK: mark}, shown=_shown(argv, added))

    def fingerprint(self, secret: bytes) -> str:
        """Tells whether a running engine was started by this very command, whatever its port.

        Args:
            secret: a key, because the environment may hold secrets and the result is stored.
        """
        parts = (self.head, self.tail, sorted(self.env.items()), self.api_key)
        return hashlib.blake2b(msgspec.json.encode(parts), key=secret, digest_size=16).hexdigest()


def plan_engines(
    config: EngineConfig,
    *,
    name: str,
    aliases: Sequence[str],
    first_number: int,
    environ: Mapping[str, str] = os.environ,
) -> list[LaunchPlan]:
    """The servers of one ``[[models]]`` with ``launch``.

    Args:
        config: its checked section.
        name: what clients ask for.
        aliases: further names; patterns among them are the gateway's business alone.
        first_number: of the short names: ``e0``, ``e1``, ...
        environ: where CUDA_VISIBLE_DEVICES says which GPUs are ours.

    Raises:
        ConfigError: the key file cannot be read.
    """
    shared = config.layout == "shared"
    servers, ranks = (1, config.replicas) if shared else (config.replicas, 1)
    names = [name, *(alias for alias in dict.fromkeys(aliases) if alias != name and not is_pattern(alias))]
    head = _simulated_head(config, name, ranks) if config.launch == "simulated" else _vllm_head(config, names, ranks)
    devices = _devices(config, environ)
    per_server = len(devices) // servers
    plans = []
    for index in range(servers):
        gpus = devices[index * per_server : (index + 1) * per_server]
        served = config.model if config.launch == "vllm" else "simulated"
        layout = f"{ranks} × tensor parallel {config.tensor_parallel_size}"
        plans.append(
            LaunchPlan(
                engine=f"e{first_number + index}",
                model=name,
                ranks=ranks,
                head=head,
                tail=config.args,
                env={**_environment(config, gpus), **config.env},
                identity=f"{name} from {served}, {layout}" + (f", GPU {','.join(gpus)}" if gpus else ""),
                max_num_seqs=config.max_num_seqs,
                gpus_per_replica=config.tensor_parallel_size,
                api_key=config.api_key(),
                on_exit=config.on_exit,
            )
        )
    return plans


def _vllm_head(config: EngineConfig, names: Sequence[str], ranks: int) -> tuple[str, ...]:
    executable = config.executable_path() or Path(config.executable)
    words = [str(executable), "serve", config.model or "", "--host", HOST, "--served-model-name", *names]
    words += ["--tensor-parallel-size", str(config.tensor_parallel_size)]
    if ranks > 1:
        # One API server: several would each balance for themselves what goes without a rank.
        words += ["--data-parallel-size", str(ranks), "--api-server-count", "1"]
    if config.max_num_seqs is not None:
        words += ["--max-num-seqs", str(config.max_num_seqs)]
    if config.kv_offload_gib:
        words += ["--kv-offloading-size", f"{config.kv_offload_gib:g}"]
    # Its access log would be two lines a second of our own questions, among which a crash is hard to find.
    return (*words, "--enable-prefix-caching", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log")


def _simulated_head(config: EngineConfig, name: str, ranks: int) -> tuple[str, ...]:
    words = [sys.executable, "-m", "lmwarden", "simulated-engine", "--model", name, "--replicas", str(ranks)]
    if config.max_num_seqs is not None:
        words += ["--max-num-seqs", str(config.max_num_seqs)]
    if config.cpu_cache_tokens is not None:
        words += ["--cpu-cache-tokens", str(config.cpu_cache_tokens)]
    return tuple(words)


def _devices(config: EngineConfig, environ: Mapping[str, str]) -> list[str]:
    """The GPUs in order; none for a simulated engine."""
    if config.launch == "simulated":
        return []
    if config.gpus is not None:
        return [str(gpu) for gpu in config.gpus]
    needed = config.replicas * config.tensor_parallel_size
    ours = [word.strip() for word in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    return ours[:needed] if len(ours) >= needed else [str(number) for number in range(needed)]


def _environment(config: EngineConfig, gpus: Sequence[str]) -> dict[str, str]:
    if config.launch == "simulated":
        # The child imports this very package, installed or not.
        return {"PYTHONPATH": str(Path(lmwarden.__file__).parent.parent)}
    # By the bus: the numbers are then nvidia-smi's, which CUDA's own order (fastest first) need not be.
    devices = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    return {**devices, "SPT_NOENV": "1"}


def _shown(argv: Sequence[str], env: Mapping[str, str]) -> str:
    shown = variables_without_secrets(env)
    variables = [f"{name}={value if value == HIDDEN else shlex.quote(value)}" for name, value in shown.items()]
    return " ".join([*variables, *map(shlex.quote, arguments_without_secrets(argv))])
