"""What traffic leaves behind is freed at once: no connection, request or answer waits for Python's collector.

A warden collects what is old next to never (``daemon.py``), because that stops every stream. So nothing that comes and
goes with traffic may be in a cycle.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.gateway.conftest import SceneMaker, chat, post
from tests.stub_engine import CHAT, STREAM_HEAD, chunk, raw, silence, stream, whole
from tests.waiting import until


@contextmanager
def left_in_cycles() -> Iterator[Counter[str]]:
    """Counts, at the end of the block, what only the collector finds, by type."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        for garbage in gc.garbage:
            kind = type(garbage)
            if kind.__module__.startswith("lmwarden."):
                found[f"{kind.__module__}.{kind.__name__}"] += 1
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
ENDS = {
    "an answer": whole(CHAT),
    "a stream": stream([EVENT, b"data: [DONE]\n\n"]),
    "an error": whole(b"{}", 500),
    "a reset in the stream": raw(STREAM_HEAD + chunk(EVENT), then="reset"),
    "no answer": raw(b"", then="close"),
    "no HTTP": raw(b"HTTP/1.1 200 X\r\nContent-Length: x\r\n\r\n"),
}


async def test_nothing_of_a_request_waits_for_the_collector(make_scene: SceneMaker) -> None:
    """Whichever way it ends: by its engine, by its own mistake, by a client that leaves."""
    async with make_scene(verdict_s=0.01, sweep_s=0.01) as scene:
        with left_in_cycles() as found:
            for act in ENDS.values():
                scene.engine.script.append(act)
                await scene.ask(post("/v1/chat/completions", chat(stream=True)))
                scene.engine.script.clear()
            for body in (b"{", b'{"model": "other"}'):
                await scene.ask(post("/v1/chat/completions", body))
            await scene.ask(b"no HTTP\r\n\r\n")
            scene.engine.script.append(silence(STREAM_HEAD + chunk(EVENT)))
            client = await scene.connect()
            await client.send(post("/v1/chat/completions", chat(stream=True)))
            await client.until(EVENT)
            client.leave()
            await scene.at_rest()
            await until(lambda: not scene.gateway.connections)
        assert not found
