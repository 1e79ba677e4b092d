"""The one configuration: ``lmwarden.toml`` over ``defaults.toml``, checked, frozen.

How it works. ``defaults.toml`` (shipped beside this module) holds every default with its reason. A user's
file is merged over it section by section; each ``[[models]]`` is merged over ``[model]``. Then come the
command line's flags. The result is converted into the structs of ``config_sections``; nothing else in the project has a
default of its own for these keys.

A mistake is one :class:`ConfigError` whose text is one line: the file or flag, the key, what is allowed
(``config_errors`` words it). Unknown keys are mistakes. The file is checked by itself first, so that a flag never hides
a mistake in it.
"""

from __future__ import annotations

import copy
import ipaddress
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from lmwarden.config_engine import HIDDEN as HIDDEN
from lmwarden.config_engine import EngineConfig as EngineConfig
from lmwarden.config_engine import LaunchConfig as LaunchConfig
from lmwarden.config_engine import Section, check_engine, check_launched_names
from lmwarden.config_engine import arguments_without_secrets as arguments_without_secrets
from lmwarden.config_engine import variables_without_secrets as variables_without_secrets
from lmwarden.config_errors import ConfigError as ConfigError
from lmwarden.config_errors import Flag as Flag
from lmwarden.config_errors import Origin as Origin
from lmwarden.config_errors import Tables, describe, keys_in
from lmwarden.config_errors import shown as shown
from lmwarden.config_sections import ClientConfig as ClientConfig
from lmwarden.config_sections import ConsoleConfig as ConsoleConfig
from lmwarden.config_sections import LedgerConfig as LedgerConfig
from lmwarden.config_sections import ModelConfig as ModelConfig
from lmwarden.config_sections import RoutingConfig as RoutingConfig
from lmwarden.config_sections import StorageConfig as StorageConfig
from lmwarden.config_sections import WatchConfig as WatchConfig
from lmwarden.config_sections import address_of as address_of
from lmwarden.config_sections import is_loopback as is_loopback


class _File(Section, frozen=True, kw_only=True):
    """The tables of the file."""

    client: ClientConfig
    console: ConsoleConfig
    storage: StorageConfig
    ledger: LedgerConfig
    watch: WatchConfig
    launch: LaunchConfig
    models: tuple[ModelConfig, ...]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration."""

    client: ClientConfig
    console: ConsoleConfig
    storage: StorageConfig
    ledger: LedgerConfig
    watch: WatchConfig
    launch: LaunchConfig
    models: tuple[ModelConfig, ...]
    """At least one."""
    origin: Origin = Origin()
    """For messages: where each key was given."""

    def engine_place(self, number: int, key: str) -> str:
        """Where ``[models.engine]`` of model ``number`` has a key, or would have it: a flag if engines are flags."""
        if any(flag.path == ("models",) for flag in self.origin.flags):
            return f"--{key.replace('_', '-')}"
        return self.origin.place("models", number, "engine", key)


class EngineUrl(NamedTuple):
    """A parsed engine URL."""

    host: str
    port: int
    base_path: str
    """Before ``/v1/...``; no trailing slash."""
    tls: bool


def load(path: Path | None = None, flags: Sequence[Flag] = (), *, platform: str = sys.platform) -> Config:
    """Read, merge and check.

    Args:
        path: the user's file; None: only defaults and flags.
        flags: what the command line overrides, applied in order.
        platform: ``sys.platform``: what can be launched depends on it.

    Raises:
        ConfigError: with one line that names file (or flag), key and what is allowed.
    """
    file, origin = _given(path, flags)
    _convert(file, msgspec.structs.replace(origin, flags=()))
    given = _with_flags(file, flags)
    tables = _convert(given, origin)
    if not tables.models:
        raise ConfigError(
            f"{origin.source}: models: no engine given; use --engine URL, or [[models]] with [models.engine] attach"
            " or launch"
        )
    config = Config(**msgspec.structs.asdict(tables), origin=origin)
    _check(config)
    _check_engines(config, keys_in(given), platform)
    return config


def load_storage(path: Path | None = None, flags: Sequence[Flag] = ()) -> tuple[StorageConfig, Origin]:
    """``[storage]`` alone and where its keys were given, for commands that need no engine.

    Raises:
        ConfigError: as ``load``.
    """
    file, origin = _given(path, flags)
    _convert_storage(file, msgspec.structs.replace(origin, flags=()))
    return _convert_storage(_with_flags(file, flags), origin), origin


def parse_engine_url(text: str) -> EngineUrl:
    """Parse ``http://host:port[/prefix]``; a trailing ``/v1`` is dropped.

    Raises:
        ConfigError: another form. The text begins with the URL; the caller says whose it is.
    """
    allowed = "expected http://host:port or https://host:port, with an optional path"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ConfigError(f"{text!r:.100}: {allowed}") from None
    plain = not (parts.query or parts.fragment or parts.username or parts.password)
    plain = plain and not re.search(r"[\x00-\x20\x7f]", text)
    if parts.scheme not in ("http", "https") or not parts.hostname or not _resolvable(parts.hostname) or not plain:
        raise ConfigError(f"{text!r:.100}: {allowed}")
    tls = parts.scheme == "https"
    base_path = parts.path.rstrip("/").removesuffix("/v1")
    return EngineUrl(parts.hostname, port if port is not None else (443 if tls else 80), base_path, tls)


def is_pattern(name: str) -> bool:
    """Whether an alias stands for many names."""
    return re.search(r"[*?\[]", name) is not None


def _given(path: Path | None, flags: Sequence[Flag]) -> tuple[dict[str, Any], Origin]:
    """The user's file as it stands, and where keys come from."""
    file = {} if path is None else _read(path)
    source = {} if path is None else {"source": str(path)}
    return file, Origin(flags=tuple(flags), in_file=keys_in(file), **source)


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


def _with_flags(file: Mapping[str, Any], flags: Sequence[Flag]) -> dict[str, Any]:
    """A copy of the (checked) file's table in which the flags' keys are set."""
    table = copy.deepcopy(dict(file))
    for flag in flags:
        here: Any = table
        for step, following in zip(flag.path, flag.path[1:], strict=False):
            empty: Any = [] if isinstance(following, int) else {}
            if isinstance(step, int):
                here.extend({} for _ in range(step + 1 - len(here)))
                here = here[step]
            else:
                here = here.setdefault(step, empty)
        here[flag.path[-1]] = copy.deepcopy(flag.value)
    return table


def _merge(defaults: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(defaults)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


_TABLES: Tables = {
    (): _File,
    ("client",): ClientConfig,
    ("console",): ConsoleConfig,
    ("storage",): StorageConfig,
    ("ledger",): LedgerConfig,
    ("watch",): WatchConfig,
    ("launch",): LaunchConfig,
    ("models",): ModelConfig,
    ("models", "engine"): EngineConfig,
    ("models", "routing"): RoutingConfig,
}


def _convert(user: Mapping[str, Any], origin: Origin) -> _File:
    """Merge what a user gave over the defaults and check it."""
    defaults = _defaults()
    model_defaults = defaults.pop("model")
    models = user.get("models", [])
    if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
        raise ConfigError(f"{origin.source}: models: expected [[models]] tables")
    merged = _merge(defaults, user) | {"models": [_merge(model_defaults, model) for model in models]}
    try:
        return msgspec.convert(merged, _File)
    except msgspec.ValidationError as error:
        raise ConfigError(describe(error, merged, origin, _TABLES)) from None


def _convert_storage(user: Mapping[str, Any], origin: Origin) -> StorageConfig:
    merged = _merge({"storage": _defaults()["storage"]}, {"storage": user.get("storage", {})})
    try:
        return msgspec.convert(merged["storage"], StorageConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(describe(error, merged, origin, _TABLES, above=("storage",))) from None


def _check(config: Config) -> None:
    """What types cannot say."""
    client, origin = config.client, config.origin
    if (client.tls_cert is None) != (client.tls_key is None):
        raise ConfigError(f"{origin.source}: client.tls_cert, client.tls_key: give both or none")
    if client.max_buffered_bytes < client.max_body_bytes:
        place = origin.place("client", "max_buffered_bytes")
        raise ConfigError(f"{place}: must be at least max_body_bytes ({client.max_body_bytes})")
    for section, host in (("client", client.host), ("console", config.console.host)):
        if not _resolvable(host):
            raise ConfigError(f"{origin.place(section, 'host')}: {host!r} is not the name or address of a host")
    for header in client.session_headers:
        place = origin.place("client", "session_headers")
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", header):
            raise ConfigError(f"{place}: {header!r} is not a header name")
        if header.lower() in _NO_SESSION:
            raise ConfigError(f"{place}: {header!r} does not tell sessions apart: many have the same; name another")
    for host in config.console.allowed_hosts:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", host) and not _is_ipv6(host):
            place = origin.place("console", "allowed_hosts")
            raise ConfigError(
                f"{place}: {host!r} is not the name or address of a host; give it alone, without http:// and port"
            )
    _check_names(config)


_NO_SESSION = {
    "accept", "accept-encoding", "accept-language", "authorization", "connection", "content-encoding", "content-length",
    "content-type", "expect", "host", "origin", "referer", "transfer-encoding", "user-agent", "x-api-key",
}  # fmt: skip
"""Headers that all requests of a client have alike: its conversations would be one."""


def _resolvable(host: str) -> bool:
    """Whether a resolver takes it: no empty part between dots, none above 63 letters."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _check_names(config: Config) -> None:
    """Of models and their exact aliases, as far as the file has them; an engine may tell more at its attach."""
    for number, model in enumerate(config.models):
        for where, names in (("name", [model.name or ""]), ("aliases", model.aliases)):
            for name in names:
                if not name.isprintable():
                    place = config.origin.place("models", number, where)
                    raise ConfigError(f"{place}: {name!r} must be printable characters")
    seen: dict[str, int] = {}
    for number, model in enumerate(config.models):
        if model.served_name is None:
            continue
        key = ("name",) if model.name is not None else ("engine", "model")
        place = config.origin.place("models", number, *key)
        if is_pattern(model.served_name):
            instead = "patterns go into aliases" if model.name is not None else "give the model a name"
            raise ConfigError(f"{place}: {model.served_name!r} looks like a pattern; {instead}")
        if model.served_name in seen:
            raise ConfigError(f"{place}: {model.served_name!r} is given twice; names must differ")
        seen[model.served_name] = number
    for number, model in enumerate(config.models):
        for alias in model.aliases:
            if not is_pattern(alias) and seen.setdefault(alias, number) != number:
                place = config.origin.place("models", number, "aliases")
                raise ConfigError(f"{place}: {alias!r} already stands for models[{seen[alias]}]; names must differ")


def _check_engines(config: Config, given: frozenset[tuple[str | int, ...]], platform: str) -> None:
    seen: set[EngineUrl] = set()
    gpus: set[object] = set()
    for number, model in enumerate(config.models):
        here = ("models", number, "engine")
        keys = {path[3] for path in given if len(path) == 4 and path[:3] == here}
        check_engine(model.engine, [str(key) for key in keys], partial(config.origin.place, *here), platform)
        place = config.origin.place(*here, "attach")
        for text in model.engine.attach:
            try:
                url = parse_engine_url(text)
            except ConfigError as error:
                raise ConfigError(f"{place}: {error}") from None
            if url in seen:
                raise ConfigError(f"{place}: {text} is given twice; an engine serves one model here")
            seen.add(url)
        if model.engine.launched:
            aliases = config.origin.place("models", number, "aliases")
            names = [(aliases, alias) for alias in model.aliases]
            check_launched_names([(config.origin.place("models", number, "name"), model.name or ""), *names])
        others = [other for other in config.models if other is not model and other.engine.launch == "vllm"]
        if model.engine.launch == "vllm" and model.engine.gpus is None and others:
            where = config.origin.place(*here, "gpus")
            raise ConfigError(f"{where}: missing; with several launched models each must say which GPUs are its own")
        for gpu in model.engine.gpus or ():
            if gpu in gpus:
                where = config.origin.place(*here, "gpus")
                raise ConfigError(f"{where}: {gpu} belongs to another model already; two models cannot share one")
            gpus.add(gpu)
