"""``lmwarden serve``: which configuration its arguments make. (What it then does: tests/test_daemon.py.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lmwarden.cli.errors import UsageError
from lmwarden.cli.serve import load_config
from lmwarden.config import Config, ConfigError

FILE = """
[client]
port = 9000
[[models]]
name = "from-file"
[models.engine]
attach = ["http://file:1"]
"""


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(path: Path | None = None, **flags: Any) -> Config:
    none = dict.fromkeys(("host", "port", "console_port", "data_dir", "model", "data_parallel_size", "max_num_seqs"))
    return load_config(path, **{**none, "engines": [], **flags})


def test_engines_alone_are_enough() -> None:
    config = made(engines=["http://a:1", "http://b:2"], max_num_seqs=32, model="m", data_parallel_size=4)
    (model,) = config.models
    assert model.engine.attach == ("http://a:1", "http://b:2")
    assert (model.engine.max_num_seqs, model.engine.model, model.engine.data_parallel_size) == (32, "m", 4)
    assert config.client.port == 8080


def test_the_file_here_is_read_unless_engines_are_given(tmp_path: Path) -> None:
    (tmp_path / "lmwarden.toml").write_text(FILE)
    assert (made().models[0].name, made().client.port) == ("from-file", 9000)
    assert made(port=9001).client.port == 9001
    given = made(engines=["http://a:1"])
    assert (given.models[0].name, given.client.port) == (None, 8080)


def test_engines_replace_the_models_of_a_named_file(tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    path.write_text(FILE)
    config = made(path, engines=["http://a:1"])
    assert (config.client.port, config.models[0].engine.attach) == (9000, ("http://a:1",))


def test_all_places_can_be_set(tmp_path: Path) -> None:
    config = made(engines=["http://a:1"], host="::1", port=1, console_port=2, data_dir=str(tmp_path))
    assert (config.client.host, config.client.port, config.console.port) == ("::1", 1, 2)
    assert config.storage.path == tmp_path


def test_what_describes_an_engine_needs_one() -> None:
    for flag in ("model", "data_parallel_size", "max_num_seqs"):
        flags: dict[str, Any] = {flag: 3}
        says = rf"--{flag.replace('_', '-')}: goes with --engine; .* models\.engine\.{flag}"
        with pytest.raises(UsageError, match=says):
            made(None, **flags)
    with pytest.raises(ConfigError, match="no engine given"):
        made()
