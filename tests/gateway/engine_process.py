"""A stub engine in a process of its own, so that it can be killed.

``python -m tests.gateway.engine_process silent|lively`` prints its port. A request that asks for ``stream`` gets its
``pieces`` numbered events: the first at once, the others after SIGUSR1, a moment between two. One that names another
``mode`` gets nothing from the silent engine: not a byte (``silent``), or no more than a head (``head``); from a lively
one it gets its stream.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from functools import partial

from tests.stub_engine import STREAM_HEAD, Peer, Seen, StubEngine, chunk, silence

_PAUSE_S = 0.02
"""Between two events, so that streams overlap. No test measures it."""
DONE = b"data: [DONE]\n\n"


def event(name: str, number: int) -> bytes:
    """One event of the stream that belongs to the request of this name."""
    return b'data: {"choices":[{"delta":{"content":"%s-%d"},"finish_reason":null}]}\n\n' % (name.encode(), number)


async def answer(silent: bool, go_on: asyncio.Event, peer: Peer, seen: Seen) -> None:
    """Act on one request."""
    wanted = json.loads(seen.body)
    if silent and wanted["mode"] != "stream":
        await silence(STREAM_HEAD if wanted["mode"] == "head" else b"")(peer, seen)
        return
    await peer.send(STREAM_HEAD)
    for number in range(wanted["pieces"]):
        await peer.send(chunk(event(wanted["name"], number)))
        await go_on.wait()
        await asyncio.sleep(_PAUSE_S)
    await peer.send(chunk(DONE) + b"0\r\n\r\n")


async def main() -> None:
    """Serve until killed."""
    go_on = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, go_on.set)
    async with StubEngine() as engine:
        engine.default = partial(answer, sys.argv[1] == "silent", go_on)
        sys.stdout.write(f"{engine.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
