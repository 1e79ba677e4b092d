"""``[models.engine]`` and ``[launch]``: which engines serve a model, running ones or ones that the warden starts.

A model's engines are *attached* (``attach``: they run already, somebody else starts and stops them) or *launched*
(``launch``: the warden starts, supervises and ends them), never both. Most keys belong to one of the two, and a key of
the other kind is a mistake, because it would have no effect: the table :data:`ATTACH_KEYS`, :data:`LAUNCH_KEYS` says
which is which. What types cannot say of a launch is checked here, so that a mistake ends the start at once with one
line, and not after a minute with a trace of vLLM's in a log file.

A launched engine is given its place (host, port, names, GPUs) and what routing needs (usage details, prefix caching)
by the warden. The same flags among ``args`` would contradict it, so they are refused by name, in every
spelling that vLLM's parser takes. So is whatever makes vLLM write prompts into its log.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from lmwarden.config_errors import ConfigError

PositiveInt: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
"""Numbers have an upper bound, so that none is infinite: neither timers nor SQLite take such."""
SecondsOrZero: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Gpu: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1023)] | Name
"""A number as nvidia-smi shows it, or an id (``GPU-…``, ``MIG-…``)."""
Place: TypeAlias = Callable[[str], str]
"""Key of ``[models.engine]`` to where the operator gave it, or would."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file. Fields without a default get theirs from ``defaults.toml``."""


class LaunchConfig(Section, frozen=True, kw_only=True):
    """``[launch]``: how launched engines are supervised."""

    start_backoff_s: Seconds
    max_backoff_s: Seconds
    failed_after: PositiveInt
    steady_s: Seconds
    stop_grace_s: SecondsOrZero
    kill_grace_s: Seconds
    log_max_bytes: Annotated[int, msgspec.Meta(ge=65_536, le=10**15)]
    log_files: PositiveInt


class EngineConfig(Section, frozen=True, kw_only=True):
    """``[models.engine]``: the vLLM servers of one model."""

    attach: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)] = ()
    """URLs of running servers; empty: they are launched."""
    launch: Literal["vllm", "simulated"] | None = None
    model: Name | None = None
    """Attached: the engine's name for the model. Launched: what vLLM loads, a folder or a repository's name."""
    max_num_seqs: PositiveInt | None = None
    api_key_file: str | None = None
    data_parallel_size: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    cpu_cache_tokens: PositiveInt | None = None
    """What the CPU tier of one replica holds, where the engine does not tell."""
    drop_billing_line: bool
    """Take Claude Code's billing line out of prompts: the engine does not do it itself."""
    executable: Name
    replicas: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    tensor_parallel_size: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    gpus: tuple[Gpu, ...] | None = None
    layout: Literal["isolated", "shared"]
    kv_offload_gib: Annotated[float, msgspec.Meta(ge=0, le=65_536)]
    """CPU tier of each replica."""
    args: tuple[str, ...]
    env: dict[str, str]
    on_exit: Literal["stop", "keep"]

    @property
    def launched(self) -> bool:
        """The warden starts these engines itself."""
        return self.launch is not None

    @property
    def engine_count(self) -> int:
        """Servers: one per URL, or per replica of an isolated launch."""
        if not self.launched:
            return len(self.attach)
        return self.replicas if self.layout == "isolated" else 1

    def api_key(self) -> str | None:
        """The engine's own key; None: it has none.

        Raises:
            ConfigError: the file cannot be read, or does not hold a key. The text begins with the file.
        """
        if self.api_key_file is None:
            return None
        path = Path(self.api_key_file).expanduser().absolute()
        try:
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise ConfigError(f"{path}: {reason}") from None
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(f"{path}: must hold one key in printable ASCII")
        return key

    def executable_path(self) -> Path | None:
        """The absolute path of what is started; None: there is no such program.

        A bare name is looked up on ``PATH``, then beside the Python that runs the warden (one environment for both).
        """
        if "/" in self.executable:
            path = Path(self.executable).expanduser().absolute()
            return path if shutil.which(path) else None
        found = shutil.which(self.executable) or shutil.which(self.executable, path=str(Path(sys.executable).parent))
        return Path(found).absolute() if found else None


ATTACH_KEYS = ("data_parallel_size",)
LAUNCH_KEYS = (
    "executable", "replicas", "tensor_parallel_size", "gpus", "layout", "kv_offload_gib", "args", "env", "on_exit",
)  # fmt: skip
NOT_SIMULATED = ("executable", "tensor_parallel_size", "gpus", "kv_offload_gib", "api_key_file")
"""Keys that mean nothing to a simulated engine."""

MAC_SENTENCE = (
    "replica routing is for Linux with NVIDIA GPUs; a Mac serves one replica, so tensor and data parallelism are"
    " refused here: must be 1"
)

_SET_HERE = {
    "host": "", "port": "", "uds": "", "root-path": "", "grpc": "", "grpc-port": "", "served-model-name": "",
    "headless": "", "ssl-keyfile": "", "ssl-certfile": "", "ssl-ca-certs": "", "ssl-cert-reqs": "", "ssl-ciphers": "",
    "enable-ssl-refresh": "", "enable-prompt-tokens-details": "", "no-enable-prompt-tokens-details": "",
    "enable-prefix-caching": "", "no-enable-prefix-caching": "", "api-server-count": "", "asc": "",
    "model": "model", "tensor-parallel-size": "tensor_parallel_size", "tp": "tensor_parallel_size",
    "max-num-seqs": "max_num_seqs", "kv-offloading-size": "kv_offload_gib", "api-key": "api_key_file",
    "data-parallel-size": "replicas", "dp": "replicas",
}  # fmt: skip
"""Flags of vLLM that the warden sets, without dashes, and the key to use instead."""

_REFUSED = {
    "enable-log-requests": "would write prompts into the engine's log",
    "enable-log-outputs": "would write answers into the engine's log",
    "disable-log-stats": "would switch off the figures that routing needs",
    "config": "a file could set what the warden sets; give its arguments here",
    "pipeline-parallel-size": "is not launched by the warden; start such a server yourself and attach it",
    "pp": "is not launched by the warden; start such a server yourself and attach it",
    "nnodes": "several machines are not launched by the warden; start such a server yourself and attach it",
    "n": "several machines are not launched by the warden; start such a server yourself and attach it",
    "node-rank": "several machines are not launched by the warden; start such a server yourself and attach it",
    "r": "several machines are not launched by the warden; start such a server yourself and attach it",
}
_REFUSED_FAMILIES = {
    "data-parallel-": 'is set by the warden; use replicas and layout = "shared"',
    "dp": 'is set by the warden; use replicas and layout = "shared"',
}
_SIMULATED_SET_HERE = {
    "port": "", "model": "model", "replicas": "replicas", "max-num-seqs": "max_num_seqs",
    "cpu-cache-tokens": "cpu_cache_tokens",
}  # fmt: skip
_ENV_SET_HERE = {
    "CUDA_VISIBLE_DEVICES": "gpus",
    "VLLM_API_KEY": "api_key_file",
    "SPT_NOENV": "",
}
_REFUSED_ENV = {
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": "would write answers into the engine's log",
    "VLLM_USE_RUST_FRONTEND": "would start another server than the one that the warden knows",
    "VLLM_RUST_FRONTEND_PATH": "would start another server than the one that the warden knows",
}


def check_engine(engine: EngineConfig, given: Collection[str], place: Place, platform: str) -> None:
    """What types cannot say of one ``[models.engine]``.

    Args:
        engine: the section.
        given: the keys that the operator gave.
        place: where.
        platform: ``sys.platform``.

    Raises:
        ConfigError: with one line.
    """
    if bool(engine.attach) == engine.launched:
        what = "give attach or launch, not both" if engine.attach else "give attach or launch"
        where = place("attach").removesuffix(".attach")
        raise ConfigError(
            f'{where}: {what}: attach = ["http://host:port"] takes running servers, launch = "vllm" starts them'
        )
    others = ATTACH_KEYS if engine.launched else LAUNCH_KEYS
    for key in others:
        if key in given:
            kind, instead = ("launch", "replicas") if engine.launched else ("attach", "the server's own settings")
            raise ConfigError(f"{place(key)}: does not go with {kind}; use {instead}")
    try:
        engine.api_key()
    except ConfigError as error:
        raise ConfigError(f"{place('api_key_file')}: {error}") from None
    if engine.launched:
        _check_launch(engine, given, place, platform)


def check_launched_names(names: Sequence[tuple[str, str]]) -> None:
    """Names that become words of a command line.

    Args:
        names: (where it was given, name).

    Raises:
        ConfigError: one of them would be taken for a flag.
    """
    for where, name in names:
        if name.startswith("-") or "\0" in name:
            raise ConfigError(f"{where}: {name!r:.100} must not begin with '-', because vLLM takes it for a flag")


def _check_launch(engine: EngineConfig, given: Collection[str], place: Place, platform: str) -> None:
    if engine.model is None:
        raise ConfigError(f"{place('model')}: missing; launch needs the model to load, a folder or a repository's name")
    check_launched_names([(place("model"), engine.model)])
    if engine.launch == "simulated":
        for key in NOT_SIMULATED:
            if key in given:
                raise ConfigError(f'{place(key)}: does not go with launch = "simulated"; use args, e.g. "--hardware"')
    else:
        _check_hardware(engine, place, platform)
        if engine.executable_path() is None:
            raise ConfigError(
                f"{place('executable')}: {engine.executable!r:.200} is not a program that can be run; install vLLM,"
                " or give the path, e.g. /opt/vllm/bin/vllm"
            )
    for number, word in enumerate(engine.args):
        _check_argument(engine, word, f"{place('args')}[{number}]")
    for name, value in engine.env.items():
        _check_variable(name, value, place("env"))


def _check_hardware(engine: EngineConfig, place: Place, platform: str) -> None:
    if platform == "darwin":
        for key in ("replicas", "tensor_parallel_size"):
            if getattr(engine, key) > 1:
                raise ConfigError(f"{place(key)}: {MAC_SENTENCE}, not {getattr(engine, key)}")
    if not math.isfinite(engine.kv_offload_gib):
        raise ConfigError(f"{place('kv_offload_gib')}: must be a number of at least 0, not {engine.kv_offload_gib}")
    if engine.gpus is None:
        return
    needed = engine.replicas * engine.tensor_parallel_size
    if len(engine.gpus) != needed:
        raise ConfigError(
            f"{place('gpus')}: must be {needed} (replicas {engine.replicas} × tensor_parallel_size"
            f" {engine.tensor_parallel_size}), not {len(engine.gpus)}"
        )
    for gpu in engine.gpus:
        if engine.gpus.count(gpu) > 1:
            raise ConfigError(f"{place('gpus')}: {gpu} is given twice; two replicas cannot share one")
        if isinstance(gpu, str) and not re.fullmatch(r"[A-Za-z0-9./_-]+", gpu):
            raise ConfigError(f'{place("gpus")}: {gpu!r} is not a GPU\'s number or id, e.g. 0 or "GPU-8f2c…"')


def _check_argument(engine: EngineConfig, word: str, where: str) -> None:
    if "\0" in word:
        raise ConfigError(f"{where}: must not hold a zero character")
    if not word.startswith("-"):
        return
    # As vLLM's parser reads it: underscores are dashes, a value may follow "=", beginnings of a flag will do.
    name = word.split("=", 1)[0]
    if len(words := name.split()) > 1:
        example = json.dumps([words[0], word.split(None, 1)[1].strip()])
        raise ConfigError(f"{where}: {word!r:.100} is one word for vLLM; give each its own, e.g. {example:.100}")
    flag = name.lstrip("-").replace("_", "-")
    set_here = _SIMULATED_SET_HERE if engine.launch == "simulated" else _SET_HERE
    refused = {} if engine.launch == "simulated" else _REFUSED
    for name in (flag, *(long for long in {**set_here, **refused} if len(flag) > 2 and long.startswith(flag))):
        if name in refused:
            raise ConfigError(f"{where}: {word!r:.100}: {refused[name]}")
        if name in set_here:
            instead = f"; use {set_here[name]}" if set_here[name] else ""
            raise ConfigError(f"{where}: {word!r:.100} is set by the warden{instead}")
    if engine.launch == "vllm":
        for family, why in _REFUSED_FAMILIES.items():
            if flag.startswith(family) and (word.startswith("--") or family == "dp"):
                raise ConfigError(f"{where}: {word!r:.100} {why}")


def _check_variable(name: str, value: str, where: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ConfigError(f"{where}: {name!r:.100} is not the name of a variable (letters, digits, '_')")
    if "\0" in value:
        raise ConfigError(f"{where}.{name}: must not hold a zero character")
    if name in _ENV_SET_HERE or name.startswith("LMWARDEN_"):
        instead = _ENV_SET_HERE.get(name)
        raise ConfigError(f"{where}.{name}: is set by the warden{f'; use {instead}' if instead else ''}")
    if name in _REFUSED_ENV:
        raise ConfigError(f"{where}.{name}: {_REFUSED_ENV[name]}")


HIDDEN = "***"
"""Stands for what nobody shall see."""
_SECRET = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)


def variables_without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """Environment variables to show; the values of those that sound like secrets are hidden."""
    return {name: HIDDEN if _SECRET.search(name) else value for name, value in env.items()}


def arguments_without_secrets(argv: Sequence[str]) -> Iterator[str]:
    """Words of a command line; values of flags such as ``--hf-token`` are hidden."""
    hide_next = False
    for word in argv:
        is_flag = word.startswith("-")
        flag, equals, _ = word.partition("=")
        secret = is_flag and bool(re.search(r"(?:^|-)(?:key|token|secret|password)$", flag.replace("_", "-")))
        if hide_next and not is_flag:
            yield HIDDEN
        elif secret and equals:
            yield f"{flag}={HIDDEN}"
        else:
            yield word
        hide_next = secret and not equals
