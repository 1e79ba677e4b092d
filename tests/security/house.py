"""A whole warden under attack: an engine that answers as the request tells it to, real sockets on both ports, a folder
of its own. The engine's key, the client's key and the console's password are all set."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from tests.engine.fake_vllm import page
from tests.stub_engine import CHAT, MESSAGE, STREAM_HEAD, Act, Peer, Seen, StubEngine, chunk, head, whole
from tests.waiting import PATIENCE_S, until

from lmwarden.access.keys import Authenticator, KeyStore
from lmwarden.access.secrets import load_secrets
from lmwarden.config import Config, Flag, load
from lmwarden.console.app import make_app
from lmwarden.serve import Warden

MODEL = "qwen3-4b"
PASSWORD = "MARKER-password-2b9e"
ENGINE_KEY = "MARKER-engine-key-51cc"
BIG = "qwen3-235b"
"""The second model, where there are two."""
ACT = "X-Act"
"""Names how the engine shall answer; it goes on to the engine like any header that the warden does not know."""
SIGNED_IN = {"Authorization": "Basic " + base64.b64encode(f"lmwarden:{PASSWORD}".encode()).decode()}


def events(*data: Any) -> bytes:
    """Server-sent events."""
    return b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in data)


class ObedientEngine(StubEngine):
    """Serves the model and its probes. A generation is answered as ``X-Act`` says, or with a small answer."""

    def __init__(self, model: str = MODEL) -> None:
        super().__init__()
        self.model = model
        self.acts: dict[str, Act] = {}
        self.default = self._answer
        self.generations: list[Seen] = []
        """What came that is no probe."""

    async def _answer(self, peer: Peer, seen: Seen) -> None:
        path = seen.line.split(b" ")[1].partition(b"?")[0].decode()
        act = self._probe(path)
        if act is None:
            self.generations.append(seen)
            named = seen.values(ACT)
            act = self.acts[named[0].decode()] if named else whole(MESSAGE if "messages" in path else CHAT)
        await act(peer, seen)

    def _probe(self, path: str) -> Act | None:
        card = {"id": self.model, "root": self.model, "max_model_len": 32768, "owned_by": "vllm"}
        probes: dict[str, Act] = {
            "/health": whole(b""),
            "/version": whole({"version": "0.26.0"}),
            "/v1/models": whole({"object": "list", "data": [card]}),
            "/metrics": whole(page(ranks=1).encode(), content_type="text/plain"),
        }
        return probes.get(path)


def echo(status: int, *, content_type: str = "application/json") -> Act:
    """An error that repeats the whole request, as vLLM's validation errors do."""

    async def act(peer: Peer, seen: Seen) -> None:
        text = seen.body.decode("latin-1") + seen.head.decode("latin-1")
        await whole({"error": {"message": text, "code": status}}, status, content_type=content_type)(peer, seen)

    return act


def streamed(pieces: Sequence[bytes], end: bytes = b"0\r\n\r\n") -> Act:
    """Events, and then the end of the body or of the connection."""

    async def act(peer: Peer, seen: Seen) -> None:
        await peer.send(STREAM_HEAD + b"".join(map(chunk, pieces)) + end)
        if not end:
            peer.close()

    return act


def never_ending(begin: bytes) -> Act:
    """Begin a stream and wait for the client to leave."""

    async def act(peer: Peer, seen: Seen) -> None:
        await peer.send(STREAM_HEAD + chunk(begin))
        await peer.gone()

    return act


def large(nbytes: int, text: bytes) -> Act:
    """A long error that repeats a text."""

    async def act(peer: Peer, seen: Seen) -> None:
        await peer.send(head(400) + b"Content-Length: %d\r\n\r\n" % nbytes)
        piece = (text * (65536 // len(text) + 1))[:65536]
        for _ in range(nbytes // len(piece)):
            await peer.send(piece)

    return act


@dataclass
class House:
    """What is attacked."""

    warden: Warden
    engine: ObedientEngine
    key: str
    """The client's."""
    folder: Path
    """The data folder."""
    console: Starlette
    big: ObedientEngine
    """The engine of the second model."""

    def make_key(self, name: str, *models: str) -> str:
        """A key for these models (none named: all), made while the warden runs, by the console."""
        return self._keys.create(name, models or None)

    def revoke(self, name: str) -> None:
        """Likewise."""
        self._keys.revoke(name)

    @property
    def _keys(self) -> KeyStore:
        assert self.warden._gateway is not None
        authenticator = self.warden._gateway._authenticator
        assert isinstance(authenticator, Authenticator)
        return authenticator._store

    @property
    def client_port(self) -> int:
        """Its number."""
        return int(self.warden.client_url.rpartition(":")[2])

    @property
    def console_port(self) -> int:
        """Its number."""
        return int(self.warden.console_url.rpartition(":")[2])

    async def ask(self, request: bytes, *, console: bool = False) -> bytes:
        """Send bytes to a port, and take everything up to the end of the connection.

        The request should say ``Connection: close``, or be such that the warden closes.
        """
        where = urlsplit(self.warden.console_url if console else self.warden.client_url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        taken = bytearray()
        try:
            writer.write(request)
            async with asyncio.timeout(PATIENCE_S):
                while piece := await reader.read(1 << 20):
                    taken += piece
        except ConnectionError:
            pass
        finally:
            writer.close()
        return bytes(taken)

    def post(self, path: str, body: Any, *lines: str, key: str | None = None) -> bytes:
        """A request for the client port."""
        return request(
            "POST", path, body, f"Authorization: Bearer {self.key if key is None else key}", *lines, host="gateway"
        )

    async def settled(self) -> None:
        """Everything that was asked has ended and is written down."""

        def is_at_rest() -> bool:
            self.warden.control.take()
            return not self.warden.control.snapshot.models[0].view.in_flight

        await until(is_at_rest)
        assert await asyncio.to_thread(self.warden.ledger.flush, PATIENCE_S)


def request(method: str, path: str, body: Any, *lines: str, host: str) -> bytes:
    """A request's bytes, after whose answer the connection ends."""
    data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    beginning = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", f"Content-Length: {len(data)}"]
    return "\r\n".join((*beginning, *lines, "", "")).encode("latin-1", "replace") + data


def settings(folder: Path, engine: str, big: str, *more: Flag, password: bool) -> Config:
    """The warden's configuration, with everything secret that there is."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("password", PASSWORD), ("engine-key", ENGINE_KEY)):
        (folder / name).touch(0o600)
        (folder / name).write_text(f"{text}\n")
    attach = {"api_key_file": str(folder / "engine-key"), "max_num_seqs": 32}
    models = [
        {"name": MODEL, "engine": {"attach": [engine], **attach}, "aliases": ["claude-*", "small"]},
        {"name": BIG, "engine": {"attach": [big], **attach}, "aliases": ["opus"]},
    ]
    flags = [
        Flag("--engine", ("models",), models),
        Flag("--port", ("client", "port"), 0),
        Flag("--console-port", ("console", "port"), 0),
        Flag("--data-dir", ("storage", "dir"), str(folder / "data")),
        Flag("keys", ("client", "require_key"), True),
        Flag("traces", ("ledger", "record_traces"), True),
        Flag("pins", ("watch", "test_pins"), False),
        Flag("interval", ("watch", "interval_s"), 0.05),
    ]
    if password:
        flags.append(Flag("password", ("console", "password_file"), str(folder / "password")))
    return load(None, [*flags, *more])


@asynccontextmanager
async def house(folder: Path, *more: Flag, password: bool = True) -> AsyncIterator[House]:
    """A running one. ``password``: the console has one."""
    made: list[Starlette] = []
    with pytest.MonkeyPatch.context() as patch:

        def remember(*given: Any, **named: Any) -> Starlette:
            made.append(make_app(*given, **named))
            return made[-1]

        patch.setattr("lmwarden.serve.make_app", remember)
        engine, big = ObedientEngine(), ObedientEngine(BIG)
        async with engine, big:
            url, url_of_big = (f"http://127.0.0.1:{one.port}" for one in (engine, big))
            config = settings(folder, url, url_of_big, *more, password=password)
            data = folder / "data"
            key = KeyStore(data, load_secrets(data).keys).create("anna")
            warden = Warden(config)
            await warden.start()

            def all_were_looked_at() -> bool:
                warden.control.take()
                engines = [engine for model in warden.control.snapshot.models for engine in model.engines]
                return all(engine.scrape_age_s is not None for engine in engines)

            try:
                await until(all_were_looked_at)
                yield House(warden, engine, key, data, made[0], big)
            finally:
                await warden.stop(drain_s=0)
