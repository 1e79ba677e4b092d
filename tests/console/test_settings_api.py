"""The effective configuration: each key with where it was set, and no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tests.console.made_up import model, snapshot, view
from tests.console.scene import Console

from lmwarden.config import Config, Flag, load
from lmwarden.console.settings_api import settings_of
from lmwarden.control import Snapshot
from lmwarden.types import RoutingSettings

FILE = """
[client]
port = 9000
[[models]]
name = "org/model"
[models.engine]
launch = "vllm"
executable = "/bin/true"
model = "org/weights"
gpus = [0]
args = ["--hf-token", "x_secret1", "--seed", "7", "--other-key=x_secret2"]
env = { HF_TOKEN = "x_secret3", NCCL_DEBUG = "INFO" }
[models.routing]
spill_threshold = 5
"""


def shown(config: Config, taken: Snapshot | None = None) -> dict[str, tuple[Any, str]]:
    return {item.key: (item.value, item.source) for item in settings_of(config, taken or snapshot()).items}


def configured(tmp_path: Path, text: str, *flags: Flag) -> Config:
    path = tmp_path / "lmwarden.toml"
    path.write_text(text)
    return load(path, flags, platform="linux")


def test_each_key_says_where_it_was_set(tmp_path: Path) -> None:
    config = configured(tmp_path, FILE, Flag("--console-port", ("console", "port"), 9001))
    file = str(tmp_path / "lmwarden.toml")
    items = shown(config)
    assert items["client.port"] == (9000, file)
    assert items["client.host"] == ("127.0.0.1", "default")
    assert items["console.port"] == (9001, "--console-port")
    assert items["console.password_file"] == (None, "default")
    assert items["models[0].name"] == ("org/model", file)
    assert items["models[0].engine.replicas"] == (1, "default")
    assert settings_of(config, snapshot()).file == file
    # Everything that the configuration has.
    assert {"storage.retention_days", "watch.interval_s", "launch.log_files", "models[0].routing.affinity"} < set(items)


def test_what_the_command_line_gave(tmp_path: Path) -> None:
    engines = [{"engine": {"attach": ["http://h:1"], "max_num_seqs": 32}}]
    config = load(None, [Flag("--engine", ("models",), engines), Flag("--model", ("models", 0, "name"), "m")])
    items = shown(config)
    assert items["models[0].engine.attach"] == (("http://h:1",), "--engine")
    assert items["models[0].engine.max_num_seqs"] == (32, "--engine")
    assert items["models[0].engine.on_exit"][1] == "default"
    assert items["models[0].name"] == ("m", "--model")
    assert settings_of(config, snapshot()).file is None


def test_what_the_console_changed(tmp_path: Path) -> None:
    changed = RoutingSettings(affinity=False, spill_threshold=None)
    taken = snapshot(model(view=view(settings=changed)))
    items = shown(configured(tmp_path, FILE), taken)
    assert items["models[0].routing.affinity"] == (False, "console")
    assert items["models[0].routing.spill_threshold"] == ("auto", "console")
    assert items["models[0].routing.placement"] == ("least-loaded", "default")
    # A model that is not there has what the file says.
    other = snapshot(model(name="another", view=view(settings=changed)))
    assert shown(configured(tmp_path, FILE), other)["models[0].routing.affinity"] == (True, "default")


def test_what_sounds_secret_is_hidden(tmp_path: Path) -> None:
    config = configured(tmp_path, FILE)
    items = shown(config)
    assert items["models[0].engine.args"][0] == ["--hf-token", "***", "--seed", "7", "--other-key=***"]
    assert items["models[0].engine.env"][0] == {"HF_TOKEN": "***", "NCCL_DEBUG": "INFO"}
    assert b"x_secret" not in msgspec.json.encode(settings_of(config, snapshot()))


async def test_the_answer(whole_console: Console) -> None:
    answer = await whole_console.get("/api/settings")
    assert answer["file"] is None
    items = {item["key"]: item for item in answer["items"]}
    assert items["client.port"] == {"key": "client.port", "value": 0, "source": "--port"}
    await whole_console.patch({"affinity": False}, 200)
    items = {item["key"]: item for item in (await whole_console.get("/api/settings"))["items"]}
    assert items["models[0].routing.affinity"]["source"] == "console"
