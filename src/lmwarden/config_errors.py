"""What is said of a mistake in the configuration: one line with the place, the key and what is allowed.

The place is where the user wrote the value: ``--port`` if it came from the command line, else the file and the
key in it (``lmwarden.toml: client.port``). :class:`Origin` knows which. What is allowed is put into words from the
type of the key, so that it cannot differ from what is checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec
import msgspec.inspect

Path: TypeAlias = tuple[str | int, ...]
"""``("client", "port")``; an integer is an index into a list, as in ``("models", 0, "name")``."""


class ConfigError(Exception):
    """The configuration is unusable. ``str()`` is one line for a person."""

    exit_status = 2


class Flag(NamedTuple):
    """A command-line flag that overrides a key: errors name the flag instead of the file."""

    name: str
    """``--port``"""
    path: Path
    value: object


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where each key of a configuration was given."""

    source: str = "command line"
    """The file, or these words where there is none."""
    flags: tuple[Flag, ...] = ()
    in_file: frozenset[Path] = frozenset()
    """All keys that the file has."""

    def place(self, *path: str | int, default: str | None = None) -> str:
        """Where a person would look for the key.

        Args:
            path: the key.
            default: the flag to name where nobody gave the key; None: name the key all the same.
        """
        above = [flag for flag in self.flags if flag.path == path[: len(flag.path)]]
        if above:
            return max(above, key=lambda flag: len(flag.path)).name
        if default is not None and path not in self.in_file:
            return default
        return f"{self.source}: {shown(path)}"


def keys_in(table: Mapping[str, Any]) -> frozenset[Path]:
    """Every key of a table, at any depth."""

    def walk(value: Any, path: Path) -> Iterator[Path]:
        if path:
            yield path
        steps = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for step, below in steps:
            yield from walk(below, (*path, step))

    return frozenset(walk(table, ()))


def shown(path: Path) -> str:
    """``models[0].engine.attach``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


Tables: TypeAlias = Mapping[tuple[str, ...], type[msgspec.Struct]]
"""The struct of each table, by its name's steps without indexes: ``("models", "engine")``."""


def describe(error: msgspec.ValidationError, merged: Any, origin: Origin, tables: Tables, above: Path = ()) -> str:
    """Put an error of the conversion into words.

    Args:
        error: as msgspec raised it.
        merged: what was converted, from the root on.
        origin: where the keys were given.
        tables: the structs.
        above: the table that was converted, if not all.
    """
    message, _, location = str(error).partition(" - at `$")
    path = (*above, *_path(location.rstrip("`")))
    field = re.search(r"field `(.*)`", message)
    if field is None:
        return f"{origin.place(*path)}: {_expected(merged, path, tables)}"
    place = origin.place(*path, field[1])
    if message.startswith("Object missing"):
        return f"{place}: missing; must be {_words(_kind((*path, field[1]), tables))}"
    return f"{place}: unknown key; allowed here: {', '.join(tables[_names(path)].__struct_fields__)}"


def _path(location: str) -> Path:
    """``.models[0].name`` as steps."""
    return tuple(int(index) if index else name for name, index in re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", location))


def _names(path: Path) -> tuple[str, ...]:
    return tuple(step for step in path if isinstance(step, str))


def _expected(merged: Any, path: Path, tables: Tables) -> str:
    """``must be an integer from 0 to 65535, not 99999``."""
    if _names(path) in tables and path[-1:] != ("models",):
        return "must be a table"
    kind = _kind(path, tables)
    if isinstance(kind, msgspec.inspect.DictType):
        return f"must be {_words(kind)}"  # without the values: an environment may hold secrets
    value = merged
    for step in path:
        value = value[step]
    is_text_for_a_list = isinstance(value, str) and isinstance(kind, msgspec.inspect.VarTupleType)
    example = f", e.g. {json.dumps(value.split())}" if is_text_for_a_list and value.strip() else ""
    return f"must be {_words(kind)}{example}, not {value!r:.100}"


def _kind(path: Path, tables: Tables) -> msgspec.inspect.Type:
    """The type of a key, or of an element of its list."""
    *above, name = _names(path)
    info = msgspec.inspect.type_info(tables[tuple(above)])
    assert isinstance(info, msgspec.inspect.StructType)
    kind = next(field.type for field in info.fields if field.name == name)
    if not isinstance(path[-1], int):
        return kind
    options = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
    return next((option.item_type for option in options if isinstance(option, msgspec.inspect.VarTupleType)), kind)


def _words(kind: msgspec.inspect.Type) -> str:
    """A type for a person."""
    match kind:
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            noun = "an integer" if isinstance(kind, msgspec.inspect.IntType) else "a number"
            span = f"from {kind.ge} to" if kind.ge is not None else f"above {kind.gt}, at most"
            return f"{noun} {span} {kind.le}"
        case msgspec.inspect.StrType():
            bounded = kind.min_length is not None and kind.max_length is not None
            return f"a text of {kind.min_length} to {kind.max_length} characters" if bounded else "a text"
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.LiteralType():
            return " or ".join(f'"{value}"' for value in kind.values)
        case msgspec.inspect.VarTupleType():
            items = "texts" if isinstance(kind.item_type, msgspec.inspect.StrType) else "numbers or texts"
            return f"a list of one or more {items}" if kind.min_length else f"a list of {items}"
        case msgspec.inspect.DictType():
            return 'a table of texts, e.g. { NAME = "value" }'
        case msgspec.inspect.UnionType():
            parts = [part for part in kind.types if not isinstance(part, msgspec.inspect.NoneType)]
            return " or ".join(_words(part) for part in parts)
    return "another value"
