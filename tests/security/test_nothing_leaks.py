"""Nothing that a user typed and nothing secret is kept or repeated: a session of all kinds of requests, each full of
markers, and then a search for the markers in everything that the warden wrote, shows or says.

Searched are its log (at debug level), ``/metrics``, every route of the console, every error of its own, the traces of
crashes, and every file of the data folder, SQLite's journal included. Not searched, because it is not the warden's:
what an engine itself writes into its log (``docs/security.md``), and what an engine answers, which goes to the client
that asked and to nobody else.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import logging
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from starlette.routing import Route
from tests.security.house import (
    ACT,
    ENGINE_KEY,
    MODEL,
    PASSWORD,
    SIGNED_IN,
    House,
    ObedientEngine,
    echo,
    events,
    house,
    large,
    never_ending,
    request,
    streamed,
)
from tests.stub_engine import raw, whole
from tests.waiting import PATIENCE_S, until
from tests.whole.launched import addresses

from lmwarden.routing.identity import Asker

MARK = "MARKER"
PROMPT, COMPLETION, TOOL, USER, SESSION, UNKNOWN_MODEL, HEADER, WRONG_KEY, QUERY, RESPONSE = (
    f"{MARK}-{what}-7f3a"
    for what in (
        "prompt", "completion", "tool", "user", "session", "model", "header", "wrong-key", "query", "response"
    )
)  # fmt: skip
TYPED = (PROMPT, COMPLETION, TOOL, USER, SESSION, UNKNOWN_MODEL, HEADER, WRONG_KEY, QUERY, RESPONSE)
HASHES = (hashlib.sha256, hashlib.sha1, hashlib.md5, hashlib.blake2b, hashlib.blake2s)
_SHORT_HASH = 12
"""Hexadecimal digits by which an unkeyed hash would still be found where it is cut."""


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that is logged, by us and by libraries, at debug level."""
    text = io.StringIO()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(text),
        cache_logger_on_first_use=False,
    )
    handler, root = logging.StreamHandler(text), logging.getLogger()
    level = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(handler)
    yield text
    root.removeHandler(handler)
    root.setLevel(level)


def hashes_of(secret: str) -> list[str]:
    """Unkeyed hashes, as somebody might have kept them."""
    plain = [make(secret.encode()).hexdigest() for make in HASHES]
    plain += [hashlib.blake2b(secret.encode(), digest_size=size).hexdigest() for size in (8, 12, 16, 32)]
    return [digest[:_SHORT_HASH] for digest in plain]


class Search:
    """For markers, the secrets and their hashes."""

    def __init__(self, *secrets: str) -> None:
        self._words = [MARK, *secrets, *(text for secret in (*secrets, *TYPED) for text in hashes_of(secret))]
        self._places = 0

    def nothing_in(self, what: str, text: str | bytes) -> None:
        self._places += 1
        data = text.encode() if isinstance(text, str) else text
        for word in self._words:
            at = data.find(word.encode())
            assert at < 0, f"{what} holds {data[max(0, at - 80) : at + 80]!r}"

    def nothing_in_files(self, folder: Path) -> None:
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert any(path.name.endswith("-wal") for path in files) or any(path.suffix == ".sqlite3" for path in files)
        for path in files:
            self.nothing_in(str(path.relative_to(folder)), path.read_bytes())


MESSAGES: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 8,
    "system": f"You are {PROMPT}.",
    "metadata": {"user_id": f"user_{USER}_account__session_{SESSION}"},
    "tools": [{"name": TOOL, "description": TOOL, "input_schema": {"type": "object", "title": TOOL}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": PROMPT * 40}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": TOOL, "name": TOOL, "input": {TOOL: TOOL}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": TOOL, "content": TOOL}]},
    ],
}
CHAT: dict[str, Any] = {
    "model": MODEL,
    "user": USER,
    "prompt_cache_key": SESSION,
    "messages": [{"role": "system", "content": PROMPT}, {"role": "user", "content": PROMPT * 40}],
}
ANSWER_EVENTS = events(
    {"type": "message_start", "message": {"id": RESPONSE, "usage": {"input_tokens": 9, "output_tokens": 1}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": COMPLETION}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": f'{{"{TOOL}"'}},
)


def set_acts(engine: ObedientEngine) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    engine.acts = {
        "answer": whole({"id": RESPONSE, "choices": [{"message": {"content": COMPLETION}}], "usage": usage}),
        "stream": streamed([ANSWER_EVENTS, events({"type": "message_stop"})]),
        "breaks": streamed([ANSWER_EVENTS], end=b""),
        "error-inside": streamed([events({"error": {"message": PROMPT, "code": 500}}), b"data: [DONE]\n\n"]),
        "400": echo(400),
        "422": echo(422),
        "500": echo(500),
        "502": echo(502, content_type="text/html"),
        "503": echo(503),
        "garbage": raw(COMPLETION.encode() + b"\r\n\r\n" + PROMPT.encode(), then="close"),
        "bad-head": raw(b"HTTP/1.1 200 OK\r\n" + COMPLETION.encode() + b"\r\n\r\n", then="close"),
        "reset": raw(b"", then="reset"),
        "endless": never_ending(ANSWER_EVENTS),
        "large": large(8 << 20, PROMPT.encode()),
    }


def relayed_requests(of: House) -> list[bytes]:
    """Requests whose answer is the engine's own word, which only the asker gets."""
    ids = (f"X-Claude-Code-Session-Id: {SESSION}", f"X-Note: {HEADER}", f"User-Agent: {HEADER}/1", f"Cookie: {HEADER}")
    streaming = {"stream": True}
    found = [
        of.post("/v1/messages", MESSAGES | streaming, f"{ACT}: {act}", *ids)
        for act in ("stream", "breaks", "error-inside")
    ]
    found += [
        of.post(path, body, f"{ACT}: {act}", *ids)
        for path, body in (("/v1/messages", MESSAGES), ("/v1/chat/completions", CHAT))
        for act in ("answer", "400", "422", "500", "502", "503", "large")
    ]
    found += [
        of.post("/v1/messages/count_tokens?beta=" + QUERY, MESSAGES, *ids),
        of.post("/v1/completions", {"model": MODEL, "prompt": PROMPT, "user": USER}, f"{ACT}: answer"),
        of.post("/v1/embeddings", {"model": MODEL, "input": PROMPT}, f"{ACT}: 400"),
        of.post("/tokenize", {"model": MODEL, "prompt": PROMPT}, f"{ACT}: answer"),
        of.post("/v1/responses", {"model": MODEL, "input": PROMPT, "previous_response_id": RESPONSE}, f"{ACT}: answer"),
        of.post("/v1/messages", MESSAGES | {"metadata": {"user_id": f'{{"session_id":"{SESSION}"'}}, f"{ACT}: answer"),
        of.post("/v1/messages", MESSAGES | {"model": f"claude-{UNKNOWN_MODEL}"}, f"{ACT}: answer"),
    ]
    return found


def refused_requests(of: House) -> list[bytes]:
    """Requests that the warden answers itself."""
    wrong = WRONG_KEY
    post = of.post
    many_wrong = [{"role": 3, "content": {PROMPT: PROMPT}}] * 5000
    return [
        post("/v1/messages", f'{{"model": "{MODEL}", "messages": [{{"{PROMPT}'.encode()),
        post("/v1/messages", [PROMPT]),
        post("/v1/messages", {"model": {PROMPT: 1}, "messages": many_wrong}),
        post("/v1/messages", MESSAGES | {"model": UNKNOWN_MODEL}),
        post("/v1/chat/completions", CHAT | {"model": UNKNOWN_MODEL}),
        post("/v1/chat/completions", CHAT, f"X-data-parallel-rank: {HEADER}"),
        post("/v1/chat/completions", CHAT, f"X-LMWarden-Replica: {HEADER}"),
        post("/v1/messages", MESSAGES, key=wrong),
        post("/v1/messages", MESSAGES, key=wrong + "é" * 50),
        post("/v1/messages", MESSAGES, f"x-api-key: {wrong}"),
        post("/v1/messages", MESSAGES, "Content-Encoding: " + HEADER),
        post("/v1/messages", MESSAGES, "Content-Encoding: gzip"),
        post("/v1/messages", MESSAGES, "Expect: " + HEADER),
        post(f"/{QUERY}", MESSAGES),
        post(f"/v1/{QUERY}?{QUERY}", MESSAGES, f"{QUERY}: {HEADER}"),
        post("/v1/responses", {"model": MODEL, "input": PROMPT, "previous_response_id": 3}, f"{ACT}: garbage"),
        post("/v1/chat/completions", CHAT, f"{ACT}: garbage"),
        post("/v1/chat/completions", CHAT, f"{ACT}: bad-head"),
        post("/v1/chat/completions", CHAT, f"{ACT}: reset"),
        f"GET /{QUERY} {HEADER}\r\n\r\n".encode(),
        f"POST /v1/messages HTTP/1.1\r\nHost: a\r\n{HEADER} : x\r\n\r\n".encode(),
        f"POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Length: {HEADER}\r\n\r\n".encode(),
        b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nX: " + HEADER.encode() * 20_000 + b"\r\n\r\n",
    ]


def console_requests() -> list[bytes]:
    """Requests for the console that are wrong in some way."""
    signed = f"Authorization: {SIGNED_IN['Authorization']}"
    as_json = "Content-Type: application/json"
    routing = f"/api/models/{MODEL}/routing"
    return [
        request("POST", "/api/session", {"password": WRONG_KEY}, as_json, host="localhost"),
        request("POST", "/api/session", {WRONG_KEY: WRONG_KEY}, as_json, host="localhost"),
        request("GET", "/api/models", b"", f"Authorization: Basic {WRONG_KEY}", host="localhost"),
        request("GET", "/api/models", b"", f"Cookie: lmwarden-session={WRONG_KEY}", host="localhost"),
        request("GET", "/api/models", b"", host=f"{HEADER}.test"),
        request("GET", f"/{QUERY}?{QUERY}", b"", signed, host="localhost"),
        request("PATCH", routing, {QUERY: QUERY}, signed, as_json, host="localhost"),
        request("PATCH", routing, QUERY.encode(), signed, as_json, host="localhost"),
        request("PATCH", routing, {"affinity": True}, signed, f"Content-Type: {HEADER}", host="localhost"),
        request("PATCH", routing, {"affinity": True}, signed, as_json, f"Origin: http://{HEADER}", host="localhost"),
        f"GET /{QUERY} {HEADER}\r\n\r\n".encode(),
    ]


PATH_VALUES = {"name": MODEL, "engine": "e0", "rank": "0", "command": "drain"}


async def console_pages(of: House) -> dict[str, bytes]:
    """What every route of the console shows, to who is signed in."""
    signed = f"Authorization: {SIGNED_IN['Authorization']}"

    async def get(path: str) -> bytes:
        return await of.ask(request("GET", path, b"", signed, host="localhost"), console=True)

    listed = json.loads((await get(f"/api/models/{MODEL}/conversations")).partition(b"\r\n\r\n")[2])
    assert listed["items"], "the requests must have made conversations"
    values = PATH_VALUES | {"id": listed["items"][0]["id"]}
    shown: dict[str, bytes] = {}
    for route in of.console.routes:
        assert isinstance(route, Route)
        if route.methods is None or "GET" not in route.methods or route.path == "/api/events":
            continue
        path = re.sub(r"{(\w+)(?::\w+)?}", lambda found: str(values[found[1]]), route.path)
        for query in (f"?model={MODEL}", "", "?window=1h"):
            answer = await get(path + query)
            shown[path + query] = answer
            if query.startswith("?model"):
                launched_only = path.endswith("/logs")
                assert answer.startswith(b"HTTP/1.1 404" if launched_only else b"HTTP/1.1 200"), answer[:200]
    assert len(shown) > 30
    return shown


async def a_stream_that_its_client_leaves(of: House) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(of.warden.client_url.rpartition(":")[2]))
    writer.write(of.post("/v1/messages", MESSAGES | {"stream": True}, f"{ACT}: endless"))
    await reader.readuntil(COMPLETION.encode())
    writer.close()


async def test_no_marker_anywhere(tmp_path: Path, log: io.StringIO) -> None:
    asyncio.get_running_loop().set_debug(True)
    async with house(tmp_path) as of:
        set_acts(of.engine)
        search = Search(of.key, ENGINE_KEY, PASSWORD)
        told = b""
        for asked in relayed_requests(of):
            told += await of.ask(asked)
        assert COMPLETION.encode() in told, "the engine's answers must have come through"
        assert of.key.encode() not in told
        assert ENGINE_KEY.encode() not in b"".join(of.engine.generations[0].values("x-note"))
        for number, asked in enumerate(refused_requests(of)):
            answer = await of.ask(asked)
            assert answer[9:10] in (b"4", b"5"), (number, answer[:80])
            search.nothing_in(f"the answer to refused request {number}", answer)
        await a_stream_that_its_client_leaves(of)
        for number, asked in enumerate(console_requests()):
            answer = await of.ask(asked, console=True)
            assert answer.startswith(b"HTTP/1.1 4"), (number, answer)
            # An operator is told which word of his was wrong; a password, right or wrong, nobody is.
            assert not any(secret.encode() in answer for secret in (WRONG_KEY, PASSWORD, of.key)), (number, answer)
        await of.settled()
        for path, shown in (await console_pages(of)).items():
            search.nothing_in(path, shown)
        search.nothing_in_files(of.folder)
        engine_keys = {value for seen in of.engine.generations for value in seen.values("authorization")}
        assert engine_keys == {f"Bearer {ENGINE_KEY}".encode()}
        assert not any(of.key.encode() in seen.head for seen in of.engine.generations)
    assert list((of.folder / "traces").iterdir()), "traces must have been recorded"
    search.nothing_in_files(of.folder)
    search.nothing_in("the log", log.getvalue())
    assert "a wrong password was given" in log.getvalue()


async def test_a_crash_of_ours_tells_no_text(tmp_path: Path, log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of ours fails with a request in its hands."""
    async with house(tmp_path) as of:
        search = Search(of.key, ENGINE_KEY, PASSWORD)

        def fail(*given: Any, **named: Any) -> None:
            raise RuntimeError("a mistake of ours")

        with monkeypatch.context() as patch:
            patch.setattr(Asker, "identify", fail)
            search.nothing_in("the answer", await of.ask(of.post("/v1/messages", MESSAGES, f"X-Note: {HEADER}")))
        assert b" 200 " in await of.ask(of.post("/v1/messages", MESSAGES))
        with monkeypatch.context() as patch:
            patch.setattr(of.warden.ledger.reader, "ask", fail)
            signed = f"Authorization: {SIGNED_IN['Authorization']}"
            path = f"/api/requests?model={QUERY}"
            answer = await of.ask(request("GET", path, b"", signed, host="localhost"), console=True)
            assert answer.startswith(b"HTTP/1.1 500 ")
            search.nothing_in("the console's answer", answer)
    assert log.getvalue().count("a mistake of ours") >= 2
    search.nothing_in("the log", log.getvalue())


async def test_the_last_words_of_a_process_that_is_killed_hold_no_text(tmp_path: Path) -> None:
    """SIGABRT, as systemd's watchdog sends it, in the middle of a stream: where each thread stood, and no values."""
    engine = ObedientEngine()
    async with engine:
        engine.acts = {"endless": never_ending(ANSWER_EVENTS)}
        command = [
            sys.executable, "-m", "lmwarden", "serve", "--engine", f"http://127.0.0.1:{engine.port}",
            "--port", "0", "--console-port", "0", "--data-dir", str(tmp_path / "data"),
        ]  # fmt: skip
        output = tmp_path / "stderr"
        with output.open("wb") as stderr:
            # Without a core: that would hold everything, which is why the unit forbids it (LimitCORE=0).
            warden = await asyncio.create_subprocess_exec("prlimit", "--core=0", *command, stderr=stderr)
        writer = None
        try:
            reader, writer = await connected(output)
            body = json.dumps(MESSAGES | {"stream": True}).encode()
            lines = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\n{ACT}: endless\r\nX-Note: {HEADER}\r\n"
            writer.write(lines.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            async with asyncio.timeout(PATIENCE_S):
                await reader.readuntil(COMPLETION.encode())
            warden.send_signal(signal.SIGABRT)
            async with asyncio.timeout(PATIENCE_S):
                status = await warden.wait()
        finally:
            if writer is not None:
                writer.close()
            if warden.returncode is None:
                warden.kill()
                await warden.wait()
    # The frames of threads that run on meanwhile are read without a lock, which can end in a second signal.
    assert status in (-signal.SIGABRT, -signal.SIGSEGV)
    said = output.read_text()
    assert "Fatal Python error: Aborted" in said
    search = Search()
    search.nothing_in("stderr", said)
    search.nothing_in_files(tmp_path / "data")


async def connected(output: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a warden that writes to ``output``, as soon as it serves and knows an engine."""
    port = 0

    async def is_ready() -> bool:
        nonlocal port
        urls = addresses(output)
        if urls is None:
            return False
        port = int(urls[0].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.readuntil(b"}")
        writer.close()
        return b" 200 " in answer

    await until(is_ready, output.read_text)
    return await asyncio.open_connection("127.0.0.1", port)


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    search = Search("a secret")
    for text in (f"x{PROMPT}", "a secret", hashlib.sha256(b"a secret").hexdigest(), hashes_of(SESSION)[0]):
        with pytest.raises(AssertionError, match="holds"):
            search.nothing_in("it", text)
    (tmp_path / "ledger.sqlite3-wal").write_bytes(b"\x00" + PROMPT.encode())
    with pytest.raises(AssertionError, match="holds"):
        search.nothing_in_files(tmp_path)
