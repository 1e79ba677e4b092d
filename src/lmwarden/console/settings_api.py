"""``/api/settings``: the effective configuration, and where each key was set. No secrets.

Values are shown as they are in force: where a routing setting was changed on the console, the changed one. Of
engines' variables and arguments, those that sound like secrets are hidden. Files that hold secrets are named, never
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lmwarden.config import Config, Origin, arguments_without_secrets, shown, variables_without_secrets
from lmwarden.console.answers import encode, json_answer
from lmwarden.control import Control, Snapshot
from lmwarden.control.commands import ROUTING_KEYS

Path: TypeAlias = tuple[str | int, ...]
"""Of a key: ``("models", 0, "name")``."""

DEFAULT, CONSOLE = "default", "console"


class SettingItem(msgspec.Struct, frozen=True, kw_only=True):
    """One key."""

    key: str
    """As in the file: ``client.port``, ``models[0].routing.affinity``."""
    value: Any
    """null: unset."""
    source: str
    """``default``, the file, the flag of the command line, or ``console``."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    file: str | None
    items: list[SettingItem]


def routes(control: Control, config: Config) -> list[Route]:
    """``/api/settings``."""

    async def show(request: Request) -> Response:
        return json_answer(encode(settings_of(config, control.snapshot)))

    return [Route("/api/settings", show)]


def settings_of(config: Config, snapshot: Snapshot) -> Settings:
    """The configuration as it is in force."""
    changed = _changed(config, snapshot)
    items = []
    for path, value in _walk(config):
        source = _source(config.origin, path)
        if path in changed:
            value, source = changed[path], CONSOLE
        items.append(SettingItem(key=shown(path), value=_public(path, value), source=source))
    file = config.origin.source if config.origin.in_file else None
    return Settings(file=file, items=items)


def _walk(config: Config) -> Iterator[tuple[Path, Any]]:
    """Every key and its value; tables are entered, lists of values are values."""

    def walk(thing: msgspec.Struct, above: Path) -> Iterator[tuple[Path, Any]]:
        for name in thing.__struct_fields__:
            value, path = getattr(thing, name), (*above, name)
            if isinstance(value, msgspec.Struct):
                yield from walk(value, path)
            elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
                for index, one in enumerate(value):
                    yield from walk(one, (*path, index))
            else:
                yield path, value

    for name in config.__struct_fields__:
        if name != "origin":
            section = getattr(config, name)
            if isinstance(section, tuple):
                for index, one in enumerate(section):
                    yield from walk(one, (name, index))
            else:
                yield from walk(section, (name,))


def _changed(config: Config, snapshot: Snapshot) -> Mapping[Path, Any]:
    """Routing settings that are not what the configuration says."""
    changed: dict[Path, Any] = {}
    for index, model in enumerate(config.models):
        names = [model.served_name] if model.served_name is not None else [one.name for one in snapshot.models]
        found = [one for one in snapshot.models if one.name in names]
        if len(found) != 1:
            continue  # one [[models]] without a name can stand for several models, each with settings of its own
        configured, now = model.routing.settings(), found[0].view.settings
        for key in ROUTING_KEYS:
            value = getattr(now, key)
            if value != getattr(configured, key):
                changed["models", index, "routing", key] = "auto" if value is None else value
    return changed


def _source(origin: Origin, path: Path) -> str:
    for flag in reversed(origin.flags):
        if path[: len(flag.path)] == flag.path and _holds(flag.value, path[len(flag.path) :]):
            return flag.name
    return origin.source if path in origin.in_file else DEFAULT


def _holds(value: Any, steps: Sequence[str | int]) -> bool:
    """Whether a flag's value has this key."""
    for step in steps:
        if isinstance(step, int):
            if not (isinstance(value, list) and step < len(value)):
                return False
        elif not (isinstance(value, Mapping) and step in value):
            return False
        value = value[step]
    return True


def _public(path: Path, value: Any) -> Any:
    if path[-1] == "env":
        return variables_without_secrets(value)
    return list(arguments_without_secrets(value)) if path[-1] == "args" else value
