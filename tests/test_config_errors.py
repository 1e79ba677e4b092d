"""Where a key was given, and how a path is shown."""

from __future__ import annotations

import pytest

from lmwarden.config_errors import Flag, Origin, keys_in, shown


def test_paths_are_shown_as_in_the_file() -> None:
    assert shown(("models", 0, "engine", "attach", 1)) == "models[0].engine.attach[1]"
    assert shown(("client", "port")) == "client.port"


def test_all_keys_of_a_table_are_found_at_any_depth() -> None:
    table = {"client": {"port": 1}, "models": [{"name": "m", "aliases": []}]}
    assert keys_in(table) == {
        ("client",),
        ("client", "port"),
        ("models",),
        ("models", 0),
        ("models", 0, "name"),
        ("models", 0, "aliases"),
    }


@pytest.mark.parametrize(
    ("path", "default", "place"),
    [
        (("client", "port"), "--port", "--client-port"),
        (("models", 0, "engine", "attach"), None, "--engine"),
        (("models", 0, "engine", "model"), None, "--model"),
        (("storage", "dir"), "--data-dir", "w.toml: storage.dir"),
        (("console", "port"), "--console-port", "--console-port"),
        (("console", "host"), None, "w.toml: console.host"),
    ],
)
def test_the_place_of_a_key(path: tuple[str | int, ...], default: str | None, place: str) -> None:
    origin = Origin(
        source="w.toml",
        flags=(
            Flag("--client-port", ("client", "port"), 1),
            Flag("--engine", ("models",), []),
            Flag("--model", ("models", 0, "engine", "model"), "m"),
        ),
        in_file=frozenset({("client", "port"), ("storage", "dir")}),
    )
    assert origin.place(*path, default=default) == place
