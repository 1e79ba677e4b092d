"""Requests as clients send them, for the tests of who asks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from threading import Thread
from types import FrameType
from typing import Any

from lmwarden.routing.fields import decode_fields
from lmwarden.routing.identity import Asker, Identity

S1 = "6b2cf2f0-7d39-4d3c-9a0e-0f1f6f0c8a11"
S2 = "0d4a8f5e-5a5e-4a7c-8c62-b2a5ac3c0d22"
SECRET = b"s" * 32
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def who_sends(header: str, value: str) -> Identity:
    """Identity of a request with one header, its name as in ``who``."""
    headers: dict[str, Any] = {header: value}
    return who(**headers)


def who(
    body: dict[str, Any] | None = None,
    *,
    model: str = "m",
    key_digest: bytes = b"",
    operator: tuple[bytes, ...] = (),
    **headers: str,
) -> Identity:
    """Identity of a request; header names are written with underscores for hyphens (``session_id`` stays itself)."""
    names = {
        name.replace("__", "\0").replace("_", "-").replace("\0", "_").encode(): value.encode()
        for name, value in headers.items()
    }
    fields = decode_fields(json.dumps(HELLO if body is None else body).encode())
    asker = Asker(names, secret=SECRET, model=model, key_digest=key_digest, operator_headers=operator)
    return asker.identify(fields)


def steps_of(work: Callable[[], object]) -> int:
    """How many lines of Python and calls it takes: counted, where seconds would tell of the machine."""
    steps = 0

    def line(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal steps
        steps += 1
        return line

    def call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps
        steps += event == "c_call"

    def counted() -> None:
        sys.setprofile(call)
        sys.settrace(line)
        work()

    thread = Thread(target=counted)  # with a trace of its own: ours is what measures the coverage
    thread.start()
    thread.join()
    return steps
