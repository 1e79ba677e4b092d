"""``[models.engine]`` with ``launch``, and ``[launch]``: what is taken, and the one line that is said of a mistake."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lmwarden.config import Config, ConfigError, Flag, load

SIMULATED = 'launch = "simulated"\nmodel = "m"\n'


@pytest.fixture
def vllm(tmp_path: Path) -> str:
    """The lines of a launch of vLLM."""
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    return f'launch = "vllm"\nmodel = "org/m"\nexecutable = "{program}"\n'


def write(tmp_path: Path, engine: str, model: str = "") -> Path:
    path = tmp_path / "lmwarden.toml"
    path.write_text(f"[[models]]\n{model}[models.engine]\n{engine}", encoding="utf-8")
    return path


def read(tmp_path: Path, engine: str, model: str = "") -> Config:
    return load(write(tmp_path, engine, model))


def mistake(path: Path, *flags: Flag, platform: str = "linux") -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, flags, platform=platform)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{path}: ") or flags
    return text.removeprefix(f"{path}: ")


def test_what_is_not_said_comes_from_the_defaults(tmp_path: Path, vllm: str) -> None:
    model = read(tmp_path, vllm).models[0]
    engine = model.engine
    assert (engine.launched, engine.replicas, engine.tensor_parallel_size, engine.gpus) == (True, 1, 1, None)
    assert (engine.layout, engine.kv_offload_gib, engine.args, engine.env) == ("isolated", 0, (), {})
    assert (engine.on_exit, engine.engine_count, engine.attach) == ("stop", 1, ())
    assert (model.name, model.served_name) == (None, "org/m")
    assert read(tmp_path, vllm, 'name = "n"\n').models[0].served_name == "n"


def test_all_keys(tmp_path: Path, vllm: str) -> None:
    text = (
        'replicas = 4\ntensor_parallel_size = 1\ngpus = [0, 1, "GPU-8f2c", "MIG-1/2"]\nlayout = "shared"\n'
        'max_num_seqs = 32\nkv_offload_gib = 0.5\nargs = ["--max-model-len", "32768", "-cc", "{}"]\n'
        'env = { HF_HOME = "/models" }\non_exit = "keep"\n'
    )
    engine = read(tmp_path, vllm + text).models[0].engine
    assert engine.gpus == (0, 1, "GPU-8f2c", "MIG-1/2")
    assert (engine.engine_count, engine.kv_offload_gib, engine.env) == (1, 0.5, {"HF_HOME": "/models"})
    isolated = read(tmp_path, vllm + "replicas = 4\n").models[0].engine
    assert isolated.engine_count == 4
    attached = load(None, [Flag("--engine", ("models",), [{"engine": {"attach": ["http://e:1", "http://e:2"]}}])])
    assert (attached.models[0].engine.engine_count, attached.models[0].served_name) == (2, None)


def test_a_simulated_engine_needs_no_program(tmp_path: Path) -> None:
    engine = read(tmp_path, SIMULATED + 'replicas = 4\nargs = ["--speed", "10"]\n').models[0].engine
    assert (engine.launch, engine.engine_count) == ("simulated", 4)
    load(write(tmp_path, SIMULATED + "replicas = 4\n"), platform="darwin")


def test_the_program_is_found_by_path_on_the_path_or_beside_our_python(
    tmp_path: Path, vllm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = read(tmp_path, vllm).models[0].engine
    assert engine.executable_path() == tmp_path / "vllm"
    bare = vllm.replace(f'"{tmp_path}/vllm"', '"vllm"')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read(tmp_path, bare).models[0].engine.executable_path() == tmp_path / "vllm"
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert read(tmp_path, bare).models[0].engine.executable_path() == tmp_path / "vllm"
    monkeypatch.setenv("HOME", str(tmp_path))
    home = vllm.replace(f"{tmp_path}/vllm", "~/vllm")
    assert read(tmp_path, home).models[0].engine.executable_path() == tmp_path / "vllm"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "models[0].engine.model: missing; launch needs the model to load, a folder or a repository's name"),
        ('model = "-m"', "models[0].engine.model: '-m' must not begin with '-', because vLLM takes it for a flag"),
        ('model = "m"\nattach = ["http://e:1"]', "models[0].engine: give attach or launch, not both: attach = ["),
        (
            'model = "m"\ndata_parallel_size = 4',
            "models[0].engine.data_parallel_size: does not go with launch; use rep",
        ),
        ('model = "m"\nreplicas = 0', "models[0].engine.replicas: must be an integer from 1 to 1024, not 0"),
        ('model = "m"\nlayout = "both"', 'models[0].engine.layout: must be "isolated" or "shared", not \'both\''),
        ('model = "m"\non_exit = "kill"', 'models[0].engine.on_exit: must be "keep" or "stop", not \'kill\''),
        (
            'model = "m"\nkv_offload_gib = -1',
            "models[0].engine.kv_offload_gib: must be a number from 0 to 65536, not -1",
        ),
        (
            'model = "m"\nkv_offload_gib = nan',
            "models[0].engine.kv_offload_gib: must be a number from 0 to 65536, not nan",
        ),
        ('model = "m"\ngpus = 0', "models[0].engine.gpus: must be a list of numbers or texts, not 0"),
        (
            'model = "m"\ngpus = [-1]',
            "models[0].engine.gpus[0]: must be an integer from 0 to 1023 or a text of 1 to 256",
        ),
        ('model = "m"\ngpus = [0, 1]', "models[0].engine.gpus: must be 1 (replicas 1 × tensor_parallel_size 1), not 2"),
        (
            'model = "m"\nreplicas = 2\ntensor_parallel_size = 2\ngpus = [0, 1]',
            "models[0].engine.gpus: must be 4 (replicas 2 × tensor_parallel_size 2), not 2",
        ),
        ('model = "m"\nreplicas = 2\ngpus = [1, 1]', "models[0].engine.gpus: 1 is given twice; two replicas cannot"),
        ('model = "m"\ngpus = ["0,1"]', "models[0].engine.gpus: '0,1' is not a GPU's number or id"),
        ('model = "m"\nenv = { A = 1 }', "models[0].engine.env: must be a table of texts, e.g. { NAME ="),
        ('model = "m"\nenv = ["A"]', "models[0].engine.env: must be a table of texts, e.g. { NAME ="),
        ('model = "m"\nenv = { "A B" = "1" }', "models[0].engine.env: 'A B' is not the name of a variable"),
        ('model = "m"\nenv = { A = "\\u0000" }', "models[0].engine.env.A: must not hold a zero character"),
        (
            'model = "m"\nenv = { CUDA_VISIBLE_DEVICES = "1" }',
            "env.CUDA_VISIBLE_DEVICES: is set by the warden; use gpus",
        ),
        ('model = "m"\nenv = { LMWARDEN_ENGINE = "1" }', "env.LMWARDEN_ENGINE: is set by the warden"),
        ('model = "m"\nenv = { VLLM_API_KEY = "k" }', "env.VLLM_API_KEY: is set by the warden; use api_key_file"),
        ('model = "m"\nenv = { VLLM_USE_RUST_FRONTEND = "1" }', "env.VLLM_USE_RUST_FRONTEND: would start another"),
        (
            'model = "m"\nenv = { VLLM_DEBUG_LOG_API_SERVER_RESPONSE = "1" }',
            "would write answers into the engine's log",
        ),
        ('model = "m"\nargs = "--x"', "models[0].engine.args: must be a list of texts, e.g. [\"--x\"], not '--x'"),
        (
            'model = "m"\nargs = "--x 5"',
            'models[0].engine.args: must be a list of texts, e.g. ["--x", "5"], not \'--x 5\'',
        ),
        (
            'model = "m"\nargs = ["--max-model-len 65536"]',
            "models[0].engine.args[0]: '--max-model-len 65536' is one word for vLLM; give each its own, e.g."
            ' ["--max-model-len", "65536"]',
        ),
        ('model = "m"\nargs = ["a", "\\u0000"]', "models[0].engine.args[1]: must not hold a zero character"),
        (
            'model = "m"\ntypo = 1',
            "models[0].engine.typo: unknown key; allowed here: attach, launch, model, max_num_seqs",
        ),
        (
            'model = "m"\nexecutable = "/nowhere/vllm"',
            "engine.executable: '/nowhere/vllm' is not a program that can be run",
        ),
        (
            'model = "m"\nexecutable = "no-such-vllm"',
            "engine.executable: 'no-such-vllm' is not a program that can be run",
        ),
        ('model = "m"\napi_key_file = "/nowhere/key"', "models[0].engine.api_key_file: /nowhere/key: No such file"),
    ],
)
def test_mistakes_of_a_launch(tmp_path: Path, vllm: str, text: str, says: str) -> None:
    executable = "" if "executable" in text else vllm.splitlines()[2]
    assert says in mistake(write(tmp_path, f'launch = "vllm"\n{executable}\n{text}\n'))


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--port", "is set by the warden"),
        ("--port=8000", "'--port=8000' is set by the warden"),
        ("--host", "is set by the warden"),
        ("--served_model_name", "is set by the warden"),
        ("--served", "is set by the warden"),
        ("--max-num-seqs=4", "is set by the warden; use max_num_seqs"),
        ("--max_num_seqs", "is set by the warden; use max_num_seqs"),
        ("-tp", "is set by the warden; use tensor_parallel_size"),
        ("-tp=2", "is set by the warden; use tensor_parallel_size"),
        ("--tensor-parallel-size", "use tensor_parallel_size"),
        ("-dp", "use replicas"),
        ("--data-parallel-size", "use replicas"),
        ("--data-parallel-rank", 'use replicas and layout = "shared"'),
        ("-dpl", 'use replicas and layout = "shared"'),
        ("--api-key", "use api_key_file"),
        ("--kv-offloading-size", "use kv_offload_gib"),
        ("--no-enable-prefix-caching", "is set by the warden"),
        ("--api-server-count", "is set by the warden"),
        ("--ssl-keyfile", "is set by the warden"),
        ("--root-path", "is set by the warden"),
        ("--uds", "is set by the warden"),
        ("--headless", "is set by the warden"),
        ("--model", "use model"),
        ("--enable-log-requests", "would write prompts into the engine's log"),
        ("--enable_log_requests", "would write prompts into the engine's log"),
        ("--enable-log", "would write prompts into the engine's log"),
        ("--enable-log-outputs", "would write answers into the engine's log"),
        ("--disable-log-stats", "would switch off the figures that routing needs"),
        ("--config", "give its arguments here"),
        ("--pipeline-parallel-size", "start such a server yourself and attach it"),
        ("-n", "start such a server yourself and attach it"),
    ],
)
def test_arguments_that_the_warden_sets_are_refused_in_every_spelling(
    tmp_path: Path, vllm: str, word: str, says: str
) -> None:
    said = mistake(write(tmp_path, f'{vllm}args = ["--enforce-eager", "{word}"]\n'))
    assert said.startswith("models[0].engine.args[1]: ")
    assert says in said


def test_arguments_of_one_s_own(tmp_path: Path, vllm: str) -> None:
    words = (
        "--max-num-batched-tokens", "8192", "--config-format", "auto", "--enable-log-deltas",
        "--no-enable-log-requests", "-ep", "--enable-auto-tool-choice", "--host-is-no-flag-of-ours", "port", "-1",
    )  # fmt: skip
    quoted = ", ".join(f'"{word}"' for word in words)
    assert read(tmp_path, f"{vllm}args = [{quoted}]\n").models[0].engine.args == words


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tensor_parallel_size = 1", 'models[0].engine.tensor_parallel_size: does not go with launch = "simulated"'),
        ("gpus = [0]", 'models[0].engine.gpus: does not go with launch = "simulated"'),
        ('args = ["--port", "1"]', "models[0].engine.args[0]: '--port' is set by the warden"),
        (
            'args = ["--cpu-cache-tokens", "5"]',
            "models[0].engine.args[0]: '--cpu-cache-tokens' is set by the warden; use cpu_cache_tokens",
        ),
        ('args = ["--replicas=3"]', "models[0].engine.args[0]: '--replicas=3' is set by the warden; use replicas"),
    ],
)
def test_mistakes_of_a_simulated_launch(tmp_path: Path, text: str, says: str) -> None:
    assert mistake(write(tmp_path, f"{SIMULATED}{text}\n")).startswith(says)


@pytest.mark.parametrize(
    "text",
    [
        "replicas = 1", "tensor_parallel_size = 1", "gpus = [0]", 'layout = "shared"', "kv_offload_gib = 0",
        "args = []", "env = {}", 'on_exit = "stop"', 'executable = "vllm"',
    ],
)  # fmt: skip
def test_keys_of_a_launch_do_not_go_with_attach(tmp_path: Path, text: str) -> None:
    key = text.split(" =")[0]
    said = mistake(write(tmp_path, f'attach = ["http://e:1"]\n{text}\n'))
    assert said == f"models[0].engine.{key}: does not go with attach; use the server's own settings"


def test_keys_of_a_file_do_not_count_for_engines_of_the_command_line(tmp_path: Path, vllm: str) -> None:
    engine = Flag("--engine", ("models",), [{"engine": {"attach": ["http://e:1"]}}])
    assert load(write(tmp_path, vllm + "replicas = 2\n"), [engine]).models[0].engine.attach == ("http://e:1",)
    both = Flag("--max-num-seqs", ("models", 0, "engine", "max_num_seqs"), 4)
    assert load(write(tmp_path, vllm), [both]).models[0].engine.max_num_seqs == 4


@pytest.mark.parametrize("key", ["replicas", "tensor_parallel_size"])
def test_a_mac_serves_one_replica(tmp_path: Path, vllm: str, key: str) -> None:
    path = write(tmp_path, f"{vllm}{key} = 2\n")
    load(path)
    assert mistake(path, platform="darwin") == (
        f"models[0].engine.{key}: replica routing is for Linux with NVIDIA GPUs; a Mac serves one replica, so tensor"
        " and data parallelism are refused here: must be 1, not 2"
    )
    load(write(tmp_path, vllm), platform="darwin")
    load(write(tmp_path, 'attach = ["http://e:1"]\ndata_parallel_size = 4\n'), platform="darwin")


def test_names_of_a_launched_model(tmp_path: Path, vllm: str) -> None:
    def says(model: str, engine: str = vllm) -> str:
        return mistake(write(tmp_path, engine, model))

    assert says('aliases = ["--port"]\n').startswith("models[0].aliases: '--port' must not begin with '-'")
    assert says('name = "-m"\n').startswith("models[0].name: '-m' must not begin with '-'")
    pattern = vllm.replace("org/m", "/models/[a]")
    assert says("", pattern) == "models[0].engine.model: '/models/[a]' looks like a pattern; give the model a name"
    load(write(tmp_path, pattern, 'name = "a"\n'))


def test_two_models_share_neither_name_nor_gpu(tmp_path: Path, vllm: str) -> None:
    path = tmp_path / "lmwarden.toml"
    first = f"[[models]]\n[models.engine]\n{vllm}gpus = [0]\n"
    path.write_text(first + first)
    assert mistake(path) == "models[1].engine.model: 'org/m' is given twice; names must differ"
    second = first.replace("[[models]]", '[[models]]\nname = "n"')
    path.write_text(first + second)
    assert mistake(path) == "models[1].engine.gpus: 0 belongs to another model already; two models cannot share one"
    path.write_text(first + second.replace("gpus = [0]\n", ""))
    says = "models[1].engine.gpus: missing; with several launched models each must say which GPUs are its own"
    assert mistake(path) == says
    path.write_text(first + second.replace("gpus = [0]", "gpus = [1]"))
    assert len(load(path).models) == 2


def test_how_launched_engines_are_supervised_can_be_set(tmp_path: Path) -> None:
    path = tmp_path / "lmwarden.toml"
    path.write_text(f"[launch]\nfailed_after = 2\n[[models]]\n[models.engine]\n{SIMULATED}")
    launch = load(path).launch
    assert (launch.failed_after, launch.start_backoff_s, launch.max_backoff_s) == (2, 1.0, 60.0)
    path.write_text(f"[launch]\nfailed_after = 0\n[[models]]\n[models.engine]\n{SIMULATED}")
    assert mistake(path) == "launch.failed_after: must be an integer from 1 to 1000000000000000, not 0"
