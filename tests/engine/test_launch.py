"""Command lines of launched engines."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from lmwarden.config import EngineConfig, load
from lmwarden.engine.launch import MARK, LaunchPlan, plan_engines

NO_GPUS: dict[str, str] = {}


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    program = tmp_path / "bin with space" / "vllm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    return program


def config(tmp_path: Path, vllm: Path | None, text: str) -> EngineConfig:
    path = tmp_path / "lmwarden.toml"
    what = 'launch = "simulated"' if vllm is None else f'launch = "vllm"\nexecutable = "{vllm}"'
    path.write_text(f'[[models]]\n[models.engine]\n{what}\nmodel = "org/qwen3"\n{text}')
    return load(path).models[0].engine


def plans(engine: EngineConfig, *aliases: str, first: int = 0, environ: dict[str, str] = NO_GPUS) -> list[LaunchPlan]:
    return plan_engines(engine, name="qwen", aliases=aliases, first_number=first, environ=environ)


def test_isolated_is_a_server_per_replica_with_gpus_of_its_own(tmp_path: Path, vllm: Path) -> None:
    text = "replicas = 2\ntensor_parallel_size = 2\ngpus = [4, 5, 6, 7]\nmax_num_seqs = 32\nkv_offload_gib = 8\n"
    text += 'args = ["--max-model-len", "32768"]\n'
    first, second = plans(config(tmp_path, vllm, text), "haiku", "claude-*", "qwen", first=3)
    assert (first.engine, second.engine, first.ranks, first.model) == ("e3", "e4", 1, "qwen")
    assert first.command(8123, "owner/e3").argv == (
        *(str(vllm), "serve", "org/qwen3", "--host", "127.0.0.1", "--served-model-name", "qwen", "haiku"),
        *("--tensor-parallel-size", "2", "--max-num-seqs", "32", "--kv-offloading-size", "8"),
        *("--enable-prefix-caching", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
        *("--port", "8123", "--max-model-len", "32768"),
    )
    assert (first.env["CUDA_VISIBLE_DEVICES"], second.env["CUDA_VISIBLE_DEVICES"]) == ("4,5", "6,7")
    assert first.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert first.identity != second.identity
    assert first.max_num_seqs == 32


def test_shared_is_one_server_with_all_ranks(tmp_path: Path, vllm: Path) -> None:
    (plan,) = plans(config(tmp_path, vllm, 'replicas = 4\nlayout = "shared"\nkv_offload_gib = 0.5\n'))
    words = " ".join(plan.command(1, "m").argv)
    assert "--data-parallel-size 4 --api-server-count 1 --kv-offloading-size 0.5" in words
    assert (plan.ranks, plan.env["CUDA_VISIBLE_DEVICES"]) == (4, "0,1,2,3")


@pytest.mark.parametrize(
    ("visible", "gpus"), [(None, "0,1"), ("", "0,1"), ("3,2,1", "3,2"), ("GPU-a,GPU-b", "GPU-a,GPU-b"), ("7", "0,1")]
)
def test_without_gpus_the_first_visible_ones_are_taken(
    tmp_path: Path, vllm: Path, visible: str | None, gpus: str
) -> None:
    engine = config(tmp_path, vllm, "tensor_parallel_size = 2\n")
    (plan,) = plans(engine, environ={} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert plan.env["CUDA_VISIBLE_DEVICES"] == gpus


def test_a_simulated_engine_is_our_own_command(tmp_path: Path) -> None:
    first, second = plans(config(tmp_path, None, 'replicas = 2\nmax_num_seqs = 32\nargs = ["--speed", "50"]\n'))
    assert second.command(5, "m").argv == (
        *(sys.executable, "-m", "lmwarden", "simulated-engine", "--model", "qwen", "--replicas", "1"),
        *("--max-num-seqs", "32", "--port", "5", "--speed", "50"),
    )
    assert "CUDA_VISIBLE_DEVICES" not in first.env
    (shared,) = plans(config(tmp_path, None, 'replicas = 2\nlayout = "shared"\n'))
    assert shared.ranks == 2
    assert shared.head[-1] == "2"


def test_the_users_environment_comes_last_and_the_warden_s_own_stays_behind(
    tmp_path: Path, vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "PYTHONPATH", "LMWARDEN_SECRET", "HF_HOME"):
        monkeypatch.setenv(name, "warden")
    (plan,) = plans(config(tmp_path, vllm, 'env = { CUDA_DEVICE_ORDER = "FASTEST_FIRST", OMP_NUM_THREADS = "1" }\n'))
    env = plan.command(1, "owner/e0").env
    assert env["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
    assert (env["OMP_NUM_THREADS"], env["SPT_NOENV"], env["HF_HOME"], env[MARK]) == ("1", "1", "warden", "owner/e0")
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "PYTHONPATH", "LMWARDEN_SECRET"} & set(env)


def test_what_is_shown_can_be_pasted_into_a_shell_and_hides_secrets(tmp_path: Path, vllm: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-engine\n")
    text = (
        f'api_key_file = "{key}"\nargs = ["--chat-template", "a b; rm -rf $HOME", "--hf-token", "hf_1", "--x-key=k2"]\n'
    )
    (plan,) = plans(config(tmp_path, vllm, text + 'env = { HF_TOKEN = "hf_2", NOTE = "it\'s" }\n'), "it's; a name")
    command = plan.command(8000, "owner/e0")
    assert command.env["VLLM_API_KEY"] == "sk-engine"
    for secret in ("sk-engine", "hf_1", "hf_2", "k2", "owner/e0"):
        assert secret not in command.shown
        assert secret not in repr(command) + repr(plan)
    words = shlex.split(command.shown)
    assert words[words.index(str(vllm)) :] == [
        "--x-key=***" if word == "--x-key=k2" else "***" if word == "hf_1" else word for word in command.argv
    ]
    assert "NOTE=it's" in words


def test_a_fingerprint_tells_commands_apart_but_not_ports(tmp_path: Path, vllm: Path) -> None:
    def fingerprint(text: str, secret: bytes = b"s") -> str:
        return plans(config(tmp_path, vllm, text))[0].fingerprint(secret)

    same = fingerprint("")
    assert fingerprint("") == same
    changed = ['args = ["--enforce-eager"]', "max_num_seqs = 3", 'env = { A = "1" }', "gpus = [1]", 'args = ["a", "b"]']
    others = [fingerprint(text) for text in changed] + [fingerprint("", b"t"), fingerprint('args = ["ab"]')]
    assert len({same, *others}) == len(others) + 1
