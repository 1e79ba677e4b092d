"""The one configuration: ``lmwarden.toml`` over ``defaults.toml``, checked, frozen.

How it works. ``defaults.toml`` (shipped beside this module) holds every default with its reason. A user's
file is merged over it section by section; each ``[[models]]`` is merged over ``[model]``. Then come the
command line's flags. The result is converted into the structs below; nothing else in the project has a
default of its own for these keys.

A mistake is one :class:`ConfigError` whose text is one line: the file or flag, the key, what is allowed.
Unknown keys are mistakes. Keys that belong to later versions are known and refused with a plain sentence.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec
import msgspec.inspect

from lmwarden.types import RoutingSettings

Port: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65535)]
"""0: the system chooses a free one."""
PositiveInt: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
PositiveFloat: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
SpillThreshold: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class ConfigError(Exception):
    """The configuration is unusable. ``str()`` is one line for a person."""

    exit_status = 2


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file. Fields without a default get theirs from ``defaults.toml``."""


class ClientConfig(_Section, frozen=True, kw_only=True):
    """``[client]``: the port that agents talk to."""

    host: Name
    port: Port
    tls_cert: str | None = None
    tls_key: str | None = None
    max_body_bytes: PositiveInt
    max_buffered_bytes: PositiveInt
    require_key: bool | Literal["auto"]
    session_headers: tuple[Name, ...]
    stream_silence_s: PositiveFloat
    answer_silence_s: PositiveFloat
    drain_s: Annotated[float, msgspec.Meta(ge=0)]

    @property
    def key_required(self) -> bool:
        """Whether a request must carry an API key (``auto``: unless bound to loopback)."""
        return not is_loopback(self.host) if self.require_key == "auto" else self.require_key


class ConsoleConfig(_Section, frozen=True, kw_only=True):
    """``[console]``: the port that operators talk to."""

    host: Name
    port: Port
    allowed_hosts: tuple[Name, ...]


class StorageConfig(_Section, frozen=True, kw_only=True):
    """``[storage]``: what is kept on disk, and how much of it."""

    dir: str | None = None
    retention_days: PositiveFloat
    max_rows: PositiveInt
    max_queued_rows: PositiveInt

    @property
    def path(self) -> Path:
        """The data folder; not created here."""
        if self.dir is not None:
            return Path(self.dir).expanduser()
        base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return Path(base).expanduser() / "lmwarden"


class WatchConfig(_Section, frozen=True, kw_only=True):
    """``[watch]``: how engines are observed."""

    interval_s: PositiveFloat
    probe_timeout_s: PositiveFloat
    silent_down_s: PositiveFloat
    attach_retry_s: PositiveFloat


class EngineConfig(_Section, frozen=True, kw_only=True):
    """``[models.engine]``: the running vLLM servers of one model."""

    attach: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)]
    model: Name | None = None
    data_parallel_size: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    max_num_seqs: PositiveInt | None = None
    api_key_file: str | None = None

    def api_key(self) -> str | None:
        """The engine's own key.

        Raises:
            ConfigError: the file cannot be read, or is empty.
        """
        if self.api_key_file is None:
            return None
        try:
            key = Path(self.api_key_file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise ConfigError(f"models.engine.api_key_file: {self.api_key_file}: {reason}") from None
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(
                f"models.engine.api_key_file: {self.api_key_file}: must hold one key in printable ASCII"
            )
        return key


class RoutingConfig(_Section, frozen=True, kw_only=True):
    """``[models.routing]``: the settings a model starts with; the console changes them at run time."""

    affinity: bool
    placement: Literal["least-loaded", "hash"]
    spill_threshold: SpillThreshold | Literal["auto"]
    live_minutes: PositiveFloat
    max_conversations: Annotated[int, msgspec.Meta(ge=1000)]

    def settings(self) -> RoutingSettings:
        """The same as the router takes it."""
        return RoutingSettings(
            affinity=self.affinity,
            placement=self.placement,
            spill_threshold=None if self.spill_threshold == "auto" else self.spill_threshold,
            live_s=self.live_minutes * 60,
            max_conversations=self.max_conversations,
        )


class ModelConfig(_Section, frozen=True, kw_only=True):
    """One ``[[models]]``."""

    name: Name | None = None
    aliases: tuple[Name, ...]
    engine: EngineConfig
    routing: RoutingConfig


class Config(_Section, frozen=True, kw_only=True):
    """The whole configuration."""

    client: ClientConfig
    console: ConsoleConfig
    storage: StorageConfig
    watch: WatchConfig
    models: Annotated[tuple[ModelConfig, ...], msgspec.Meta(min_length=1)]


class Flag(NamedTuple):
    """A command-line flag that overrides a key: errors name the flag instead of the file."""

    name: str
    """``--port``"""
    path: tuple[str | int, ...]
    """``("client", "port")``; an integer is an index into ``[[models]]``."""
    value: object


class EngineUrl(NamedTuple):
    """A parsed engine URL."""

    host: str
    port: int
    base_path: str
    """Before ``/v1/...``; no trailing slash."""
    tls: bool


_LATER = {
    "launch": "starting engines is not in this version; attach = [\"http://host:port\"] takes running ones",
    "replicas": "starting engines is not in this version; attach = [\"http://host:port\"] takes running ones",
    "tensor_parallel_size": "starting engines is not in this version; give it to the vLLM server itself",
    "gpus": "starting engines is not in this version; give CUDA_VISIBLE_DEVICES to the vLLM server itself",
    "layout": "starting engines is not in this version; attach takes either layout",
    "kv_offload_gib": "starting engines is not in this version; give it to the vLLM server itself",
    "args": "starting engines is not in this version; give them to the vLLM server itself",
    "env": "starting engines is not in this version; give them to the vLLM server itself",
    "on_exit": "starting engines is not in this version; attached engines always outlive the warden",
    "admission": "the waiting room is not in this version",
    "prefer": "the waiting room is not in this version",
    "max_wait_s": "the waiting room is not in this version",
    "password_file": "console sign-in is not in this version; changes are accepted from this machine only",
}
"""Keys of later versions, and what to do meanwhile."""


def load(path: Path | None = None, flags: Sequence[Flag] = ()) -> Config:
    """Read, merge and check.

    Args:
        path: the user's file; None: only defaults and flags.
        flags: what the command line overrides, applied in order.

    Raises:
        ConfigError: with one line that names file (or flag), key and what is allowed.
    """
    user, source = _user_table(path, flags)
    defaults = _defaults()
    model_defaults = defaults.pop("model")
    models = user.pop("models", [])
    if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
        raise ConfigError(f"{source}: models: expected [[models]] tables")
    if not models:
        raise ConfigError(
            f"{source}: models: no engine given; use --engine URL, or [[models]] with [models.engine] attach"
        )
    merged = _merge(defaults, user)
    merged["models"] = [_merge(model_defaults, model) for model in models]
    try:
        config = msgspec.convert(merged, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_describe(error, merged, source, flags)) from None
    _check(config, source)
    return config


def load_storage(path: Path | None = None, flags: Sequence[Flag] = ()) -> StorageConfig:
    """``[storage]`` alone, for commands that need no engine.

    Raises:
        ConfigError: as ``load``.
    """
    user, source = _user_table(path, flags)
    merged = _merge({"storage": _defaults()["storage"]}, {"storage": user.get("storage", {})})
    try:
        return msgspec.convert(merged["storage"], StorageConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(_describe(error, merged, source, flags, above="storage")) from None


def parse_engine_url(text: str) -> EngineUrl:
    """Parse ``http://host:port[/prefix]``; a trailing ``/v1`` is dropped.

    Raises:
        ConfigError: another form.
    """
    allowed = "expected http://host:port or https://host:port, with an optional path"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ConfigError(f"engine URL {text!r}: {allowed}") from None
    plain = not (parts.query or parts.fragment or parts.username or parts.password)
    plain = plain and not re.search(r"[\x00-\x20\x7f]", text)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise ConfigError(f"engine URL {text!r}: {allowed}")
    tls = parts.scheme == "https"
    base_path = parts.path.rstrip("/").removesuffix("/v1")
    return EngineUrl(parts.hostname, port if port is not None else (443 if tls else 80), base_path, tls)


def is_loopback(host: str) -> bool:
    """Whether a bound host is reachable from this machine only."""
    if host.lower() in ("localhost", "ip6-localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _user_table(path: Path | None, flags: Sequence[Flag]) -> tuple[dict[str, Any], str]:
    """What the user gave, and where it stands."""
    user = {} if path is None else _read(path)
    for flag in flags:
        _set(user, flag)
    return user, "command line" if path is None else str(path)


def _defaults() -> dict[str, Any]:
    shipped = resources.files("lmwarden").joinpath("defaults.toml")
    return tomllib.loads(shipped.read_text(encoding="utf-8"))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; a TOML file is expected") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _set(table: dict[str, Any], flag: Flag) -> None:
    """Set one nested key, making the tables on the way."""
    here: Any = table
    for step, following in zip(flag.path, flag.path[1:], strict=False):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(step, int):
            while len(here) <= step:
                here.append({})
            here = here[step]
        else:
            here = here.setdefault(step, empty)
        if not isinstance(here, dict | list):
            raise ConfigError(f"{flag.name}: {'.'.join(map(str, flag.path[:-1]))} is not a table in the file")
    here[flag.path[-1]] = flag.value


def _merge(defaults: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(defaults)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _describe(
    error: msgspec.ValidationError, merged: Any, source: str, flags: Sequence[Flag], above: str = ""
) -> str:
    """One line: where, which key, what is allowed. ``above``: the table that was converted, if not all."""
    message, _, location = str(error).partition(" - at `$")
    location = f".{above}{location}" if above else location
    path = re.sub(r"\[(\d+)\]", r".\1", location.rstrip("`")).strip(".")
    steps = tuple(int(step) if step.isdigit() else step for step in path.split(".")) if path else ()
    flags_above = [flag for flag in flags if flag.path == steps[: len(flag.path)]]
    if flags_above:
        nearest = max(flags_above, key=lambda flag: len(flag.path))
        return f"{nearest.name}: {_expected(merged, steps)}"
    shown = re.sub(r"\.(\d+)", r"[\1]", path)
    field = re.search(r"field `(.*)`", message)
    where = ".".join(filter(None, (shown, field[1] if field else "")))
    if field is None:
        return f"{source}: {where}: {_expected(merged, steps)}"
    if message.startswith("Object missing"):
        return f"{source}: {where}: missing; {_expected(merged, (*steps, field[1]), show_value=False)}"
    if field[1] in _LATER:
        return f"{source}: {where}: {_LATER[field[1]]}"
    return f"{source}: {where}: unknown key; allowed here: {', '.join(_table_at(steps).__struct_fields__)}"


_TABLES: dict[tuple[str, ...], type[_Section]] = {
    (): Config,
    ("client",): ClientConfig,
    ("console",): ConsoleConfig,
    ("storage",): StorageConfig,
    ("watch",): WatchConfig,
    ("models",): ModelConfig,
    ("models", "engine"): EngineConfig,
    ("models", "routing"): RoutingConfig,
}


def _table_at(steps: tuple[str | int, ...]) -> type[_Section]:
    return _TABLES[tuple(step for step in steps if isinstance(step, str))]


def _expected(merged: Any, steps: tuple[str | int, ...], *, show_value: bool = True) -> str:
    """``must be an integer from 0 to 65535, not 99999``, from the type of the key at ``steps``."""
    named = tuple(step for step in steps if isinstance(step, str))
    if named in _TABLES and named[-1:] != ("models",):
        return "must be a table"
    types = {field.name: field.type for field in _struct_info(_TABLES[named[:-1]]).fields}
    allowed = f"must be {_words(types[named[-1]])}"
    if not show_value:
        return allowed
    value = merged
    for step in steps:
        value = value[step]
    return f"{allowed}, not {value!r:.100}"


def _struct_info(table: type[_Section]) -> msgspec.inspect.StructType:
    info = msgspec.inspect.type_info(table)
    assert isinstance(info, msgspec.inspect.StructType)
    return info


def _words(kind: msgspec.inspect.Type) -> str:
    """A type for a person."""
    match kind:
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            noun = "an integer" if isinstance(kind, msgspec.inspect.IntType) else "a number"
            if kind.ge is not None and kind.le is not None:
                return f"{noun} from {kind.ge} to {kind.le}"
            above = f" above {kind.gt}" if kind.gt is not None else ""
            return noun + (f" of at least {kind.ge}" if kind.ge is not None else above)
        case msgspec.inspect.StrType():
            return "a text"
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.LiteralType():
            return " or ".join(f'"{value}"' for value in kind.values)
        case msgspec.inspect.VarTupleType():
            return "a list of texts"
        case msgspec.inspect.UnionType():
            parts = [part for part in kind.types if not isinstance(part, msgspec.inspect.NoneType)]
            return " or ".join(_words(part) for part in parts)
    return "another value"


def _check(config: Config, source: str) -> None:
    """What types cannot say."""
    client = config.client
    if (client.tls_cert is None) != (client.tls_key is None):
        raise ConfigError(f"{source}: client.tls_cert, client.tls_key: give both or none")
    if client.max_buffered_bytes < client.max_body_bytes:
        raise ConfigError(
            f"{source}: client.max_buffered_bytes: must be at least max_body_bytes ({client.max_body_bytes})"
        )
    for header in client.session_headers:
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", header):
            raise ConfigError(f"{source}: client.session_headers: {header!r} is not a header name")
    seen_urls: set[EngineUrl] = set()
    seen_names: set[str] = set()
    for model in config.models:
        for text in model.engine.attach:
            try:
                url = parse_engine_url(text)
            except ConfigError as error:
                raise ConfigError(f"{source}: models.engine.attach: {error}") from None
            if url in seen_urls:
                raise ConfigError(
                    f"{source}: models.engine.attach: {text} is given twice; an engine serves one model here"
                )
            seen_urls.add(url)
        if model.name is not None and model.name in seen_names:
            raise ConfigError(f"{source}: models.name: {model.name!r} is given twice; names must differ")
        if model.name is not None:
            seen_names.add(model.name)
