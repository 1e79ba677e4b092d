"""Requests in the shapes that the real Claude Code client sends, built from ``tests/data/claude_code_shapes.json``.

The capture has no text: each text is its length and a short hash. Here a text is made from the two, so that equal
hashes give equal texts of the right length and a growing conversation stays a growing conversation. What the
routing depends on is kept to the byte: header names in their spelling and order, query strings, the ids of
sessions and agents, the order of JSON members, which connection carries a request, and what was open beside it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

API_KEY = "key-of-the-client"

_DATA = Path(__file__).parent / "data/claude_code_shapes.json"
_DEVICE_ID = hashlib.sha256(b"a device").hexdigest()


@dataclass(frozen=True)
class ShapedRequest:
    """One captured request."""

    start_s: float
    """When it reached the server, from the scenario's first request."""
    end_s: float
    """When its reply was complete."""
    connection: int
    """Which of the client's TCP connections carried it, numbered from 0."""
    method: str
    path: str
    """With its query."""
    headers: tuple[tuple[str, str], ...]
    """As sent, but for Content-Length, which is left out, and the credential, which is ``API_KEY``."""
    body: bytes
    captured_body_bytes: int
    reply: str
    """What the scripted server did: ``ok``, ``503``, ``cut rst n`` and so on."""

    def header(self, name: str) -> str | None:
        """The value of one header; ``name`` in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def session(self) -> str | None:
        """Claude Code's session id."""
        return self.header("x-claude-code-session-id")

    @property
    def agent(self) -> str | None:
        """Of a subagent: its id."""
        return self.header("x-claude-code-agent-id")

    @property
    def is_generation(self) -> bool:
        """Whether the model is asked to write something."""
        return self.method == "POST" and self.path.startswith("/v1/messages?")

    @property
    def is_title(self) -> bool:
        """Whether it only asks for a title of the conversation."""
        return "format" in self.members.get("output_config", {})

    @property
    def members(self) -> dict[str, Any]:
        """The decoded body, empty if there is none."""
        decoded: dict[str, Any] = json.loads(self.body) if self.body else {}
        return decoded


@cache
def scenarios() -> dict[str, tuple[ShapedRequest, ...]]:
    """All captured scenarios by name, each in order of arrival."""
    data = json.loads(_DATA.read_text())
    pairs = [(name, value.replace("<redacted>", API_KEY)) for name, value in data["pairs"]]
    parts = [_fill(part) for part in data["parts"]]
    return {name: tuple(_request(row, pairs, parts) for row in rows) for name, rows in data["scenarios"].items()}


def _request(row: dict[str, Any], pairs: list[tuple[str, str]], parts: list[Any]) -> ShapedRequest:
    body = b""
    if "body" in row:
        members = {
            key: [parts[index] for index in value] if key in ("system", "tools", "messages") else _fill(value)
            for key, value in row["body"].items()
        }
        body = _dump(members).encode()
    return ShapedRequest(
        start_s=row["start_s"],
        end_s=row["end_s"],
        connection=row["connection"],
        method=row["method"],
        path=row["path"],
        headers=tuple(pairs[index] for index in row["headers"]),
        body=body,
        captured_body_bytes=row["body_bytes"],
        reply=row["reply"],
    )


def _fill(shape: Any) -> Any:
    """Replace every length and hash by a text."""
    if isinstance(shape, list):
        return [_fill(item) for item in shape]
    if isinstance(shape, str):
        prefix, _, rest = shape.partition("JSON string: ")
        return shape if prefix or not rest else _dump(json.loads(rest.replace("<64 hex>", _DEVICE_ID)))
    if not isinstance(shape, dict):
        return shape
    if shape.keys() == {"len", "sha8"}:
        return _text(shape["len"], shape["sha8"])
    if "json_len" in shape and "name" in shape:
        known = {key: value for key, value in shape.items() if key not in ("json_len", "sha8")}
        return _padded(known | {"input_schema": {"type": "object"}}, shape["json_len"], shape["sha8"])
    if "json_len" in shape:
        known = dict.fromkeys(shape["keys"] or (), "")
        return _padded(known, shape["json_len"], "input")
    if "schema_len" in shape:
        return {"type": shape["type"], "schema": _padded({"type": "object"}, shape["schema_len"], "schema")}
    return {key: _fill(value) for key, value in shape.items()}


def _padded(known: dict[str, Any], length: int, seed: str) -> dict[str, Any]:
    """``known`` with a description that brings its JSON to ``length`` characters, where that is possible."""
    described = known | {"description": ""}
    return known | {"description": _text(max(0, length - len(_dump(described))), seed)}


def _text(length: int, seed: str) -> str:
    return (f"{seed} " * (length // (len(seed) + 1) + 1))[:length]


def _dump(value: Any) -> str:
    """As JavaScript's ``JSON.stringify`` writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
