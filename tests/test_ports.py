"""Ports and TLS files: opened, or one line that blames the right setting where it was given."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from lmwarden.config import Config, ConfigError, Flag, load
from lmwarden.engine.port_hold import PortHold
from lmwarden.ports import PortError, client_port, listen_for_console, tls_context

ATTACH = '[[models]]\n[models.engine]\nattach = ["http://h:1"]\n'


def from_file(tmp_path: Path, text: str, flags: Sequence[Flag] = ()) -> tuple[Config, str]:
    path = tmp_path / "w.toml"
    path.write_text(text + ATTACH)
    return load(path, flags), str(path)


def from_flags(**values: object) -> Config:
    paths = {
        "--host": ("client", "host"),
        "--port": ("client", "port"),
        "--console-port": ("console", "port"),
        "console host": ("console", "host"),
    }
    given = {"--port": 0, "--console-port": 0} | {
        name if " " in name else f"--{name.replace('_', '-')}": value for name, value in values.items()
    }
    flags = [Flag(name, paths[name], value) for name, value in given.items()]
    return load(None, [Flag("--engine", ("models",), [{"engine": {"attach": ["http://h:1"]}}]), *flags])


def refusal(config: Config) -> str:
    with pytest.raises(PortError) as caught:
        listen_for_console(config).close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_free_ports_are_opened() -> None:
    with listen_for_console(from_flags()) as console:
        assert console.getsockname()[1] > 0


def test_a_port_in_use_is_blamed_on_the_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        in_use = f"cannot listen on 127.0.0.1 port {port}: Address already in use; choose another"
        assert refusal(from_flags(port=port)) == f"--port: {in_use}"
        assert refusal(from_flags(console_port=port)) == f"--console-port: {in_use}"
        config, path = from_file(tmp_path, f"[client]\nport = 0\n[console]\nport = {port}\n")
        assert refusal(config) == f"{path}: console.port: {in_use}"
        config, path = from_file(
            tmp_path, f"[client]\nport = {port}\n", [Flag("--console-port", ("console", "port"), 0)]
        )
        assert refusal(config) == f"{path}: client.port: {in_use}"


def test_our_own_two_ports_must_differ() -> None:
    hold = PortHold()  # it is free for us and for nobody else
    port = hold.port
    said = refusal(from_flags(port=port, console_port=port))
    assert said == f"--port, --console-port: both are port {port}; give one of them another number"
    said = refusal(from_flags(host="0.0.0.0", port=port, console_port=port))
    assert "both are port" in said
    hold.close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "198.51.100.7"])
def test_a_host_that_is_not_here_is_blamed_on_the_host(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def without_network(name: str, *arguments: int, **more: int) -> object:
        if name.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(name, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", without_network)
    assert refusal(from_flags(host=host)).startswith(
        f"--host: {host!r} cannot be resolved" if "no" in host else "--host: 198"
    )
    config, path = from_file(tmp_path, f'[client]\nport = 0\n[console]\nhost = "{host}"\nport = 0\n')
    assert refusal(config).startswith(f"{path}: console.host: ")


def test_tls_files_are_named_by_key_and_path(tmp_path: Path) -> None:
    absent, bad = tmp_path / "absent.pem", tmp_path / "bad.pem"
    bad.write_text("nothing")

    def said(cert: Path, key: Path) -> str:
        config, path = from_file(tmp_path, f'[client]\ntls_cert = "{cert}"\ntls_key = "{key}"\n')
        with pytest.raises(ConfigError) as caught:
            tls_context(config)
        return str(caught.value).replace(path, "w.toml")

    assert said(absent, bad) == f"w.toml: client.tls_cert: {absent}: No such file or directory"
    assert said(bad, absent) == f"w.toml: client.tls_key: {absent}: No such file or directory"
    assert said(bad, bad) == (
        f"w.toml: client.tls_cert: {bad} and {bad} (tls_key) are not a certificate and its key in PEM form,"
        " without a password"
    )


def test_without_tls_files_there_is_no_tls() -> None:
    assert tls_context(from_flags()) is None
    assert client_port(from_flags(host="::1")).host == "::1"
