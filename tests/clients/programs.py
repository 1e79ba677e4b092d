"""The real clients as child processes, set up with nothing but what ``lmwarden connect`` prints.

A program gets an empty home, an environment with no more than a ``PATH`` and what is named here, and what
``connect`` printed, used as its text says: pasted into the shell that starts it, or put into its configuration
file. A program that does not end in time is killed with everything that it started.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.clients.terminal import Terminal

RUN_TIMEOUT_S = 90
NOWHERE = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
"""Nobody listens on port 9: what does not go to the warden goes nowhere."""
ClientT = TypeVar("ClientT", bound="Client")
SOURCES = Path(__file__).resolve().parents[2] / "src"


@dataclass(frozen=True)
class Finished:
    """A program that ended."""

    status: int
    output: str
    errors: str

    @property
    def json(self) -> dict[str, Any]:
        """Its output, if that is one JSON object."""
        decoded: dict[str, Any] = json.loads(self.output)
        return decoded

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its output, if each line is one."""
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]


async def run(arguments: list[str], *, environment: Mapping[str, str], folder: Path, text: str = "") -> Finished:
    """Run a program to its end.

    Args:
        arguments: program and arguments.
        environment: the whole of it.
        folder: where it runs.
        text: its standard input.

    Raises:
        AssertionError: it did not end within ``RUN_TIMEOUT_S``.
    """
    process = await asyncio.create_subprocess_exec(
        *arguments,
        env=dict(environment),
        cwd=folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    output = errors = b""
    try:
        async with asyncio.timeout(RUN_TIMEOUT_S):
            output, errors = await process.communicate(text.encode())
    except TimeoutError:
        raise AssertionError(f"{arguments[:4]} did not end within {RUN_TIMEOUT_S} s") from None
    finally:
        # Whatever it started and left behind; and the program itself, if the test was cancelled.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    assert process.returncode is not None
    return Finished(process.returncode, output.decode(), errors.decode())


async def lmwarden(*arguments: str, folder: Path) -> str:
    """What a command of the product prints; it must end well."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCES)}
    done = await run([sys.executable, "-m", "lmwarden", *arguments], environment=environment, folder=folder)
    assert done.status == 0, done.errors
    return done.output


@dataclass
class Client:
    """One installed program with a home and a working folder of its own."""

    program: Path
    home: Path
    work: Path
    settings: str = ""
    """Shell text that is evaluated in front of it."""
    environment: dict[str, str] = field(default_factory=dict)

    async def run(self, *arguments: str, text: str = "") -> Finished:
        """Run it to its end."""
        return await run(self._shell(arguments), environment=self._whole_environment(), folder=self.work, text=text)

    async def open_terminal(self, *arguments: str) -> Terminal:
        """Start it on a pseudo-terminal."""
        return await Terminal.open(self._shell(arguments), environment=self._whole_environment(), folder=self.work)

    def _shell(self, arguments: Sequence[str]) -> list[str]:
        return ["/bin/sh", "-c", f'{self.settings}\nexec "$@"', "sh", str(self.program), *arguments]

    def _whole_environment(self) -> dict[str, str]:
        path = os.environ.get("PATH", "/usr/bin:/bin")
        return {"PATH": path, "HOME": str(self.home), **NOWHERE, **self.environment}


class ClaudeCode(Client):
    """Claude Code."""

    async def say(self, prompt: str, *options: str) -> Finished:
        """One headless run; it may use the tools Bash, Read and Agent."""
        tools = ("--allowedTools", "Bash", "Read", "Agent")
        return await self.run("-p", "--output-format", "json", *options, *tools, "--", prompt)

    def skip_the_welcome(self) -> None:
        """What a person clicks away at the first interactive start."""
        trusted = {str(self.work): {"hasTrustDialogAccepted": True}}
        state = {"hasCompletedOnboarding": True, "theme": "dark", "projects": trusted}
        (self.home / ".claude.json").write_text(json.dumps(state))


@dataclass(frozen=True)
class Clients:
    """The installed clients."""

    environment: Path
    folder: Path
    """Homes and working folders are made in it."""

    async def claude_code(self, url: str, *connect_options: str, user: str = "user") -> ClaudeCode:
        """Claude Code, set up by pasting what ``connect`` prints into the shell that starts it."""
        client = self._program(ClaudeCode, "@anthropic-ai/claude-code-linux-x64/claude", user)
        client.settings = await self.connect("claude-code", url, *connect_options)
        return client

    async def codex(self, url: str, *, user: str = "user") -> Client:
        """Codex, with what ``connect`` prints as its configuration file."""
        program = "codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"
        client = self._program(Client, program, user)
        configuration = client.home / ".codex/config.toml"
        configuration.parent.mkdir(exist_ok=True)
        configuration.write_text(await self.connect("codex", url))
        return client

    async def opencode(self, url: str, *, user: str = "user") -> Client:
        """OpenCode, with what ``connect`` prints as its configuration file."""
        client = self._program(Client, "opencode-linux-x64/bin/opencode", user)
        client.environment |= {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
        (client.work / "opencode.json").write_text(await self.connect("opencode", url))
        return client

    async def connect(self, client: str, url: str, *options: str) -> str:
        """What ``lmwarden connect`` prints."""
        return await lmwarden("connect", client, "--url", url, *options, folder=self.folder)

    async def python_script(self, name: str, *arguments: str) -> Finished:
        """Run a script that stands beside this file, with the SDKs."""
        return await self._python(str(Path(__file__).with_name(name)), *arguments)

    async def python_text(self, text: str) -> Finished:
        """Run a program text, with the SDKs."""
        return await self._python("-c", text)

    async def _python(self, *arguments: str) -> Finished:
        program = self.environment / "venv/bin/python"
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), **NOWHERE}
        return await run([str(program), *arguments], environment=environment, folder=self.folder)

    def _program(self, kind: type[ClientT], name: str, user: str) -> ClientT:
        """A program with the home of ``user`` and that user's working folder."""
        home, work = self.folder / user / "home", self.folder / user / "work"
        home.mkdir(parents=True, exist_ok=True)
        work.mkdir(exist_ok=True)
        return kind(self.environment / "npm/node_modules" / name, home, work)
