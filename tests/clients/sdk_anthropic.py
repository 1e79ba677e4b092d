"""One call by the Anthropic SDK, told as one JSON object.

Run by the Python of the clients' environment, never imported by the test suite::

    <clients env>/venv/bin/python tests/clients/sdk_anthropic.py CALL URL KEY MODEL

The SDK is loaded by name, because the environment in which this file is checked does not have it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

anthropic: Any = import_module("anthropic")

SESSION = {"X-Session-Id": "a-conversation-of-the-sdk-2"}
QUESTION = "How many tests fail, and why? Answer in a word. " * 8
MAX_TOKENS = 12


def _request(model: str) -> dict[str, Any]:
    return {
        "model": model,
        "max_tokens": MAX_TOKENS,
        "system": "You are a coding agent.",
        "messages": [{"role": "user", "content": QUESTION}],
        "extra_headers": SESSION,
    }


def _told(message: Any) -> dict[str, Any]:
    text = "".join(block.text for block in message.content if block.type == "text")
    return {"text": text, "usage": message.usage.model_dump(), "stop_reason": message.stop_reason}


def messages(client: Any, model: str) -> dict[str, Any]:
    """Not streamed."""
    return _told(client.messages.create(**_request(model)))


def messages_stream(client: Any, model: str) -> dict[str, Any]:
    """Streamed; the SDK puts the message together."""
    with client.messages.stream(**_request(model)) as stream:
        return _told(stream.get_final_message())


def messages_stream_cancelled(client: Any, model: str) -> dict[str, Any]:
    """Streamed, and left after the first words."""
    with client.messages.stream(**_request(model)) as stream:
        for text in stream.text_stream:
            return {"text": text}
    return {"text": None}


def count_tokens(client: Any, model: str) -> dict[str, Any]:
    """Only counted."""
    request = _request(model)
    del request["max_tokens"]
    return {"input_tokens": client.messages.count_tokens(**request).input_tokens}


CALLS: dict[str, Callable[[Any, str], dict[str, Any]]] = {
    function.__name__: function for function in (messages, messages_stream, messages_stream_cancelled, count_tokens)
}


def main(arguments: list[str]) -> int:
    """Make the call; an exception of the SDK is told by its class."""
    call, url, key, model = arguments
    client = anthropic.Anthropic(base_url=url, api_key=key)
    try:
        told = CALLS[call](client, model)
    except anthropic.APIError as error:
        told = {"error": type(error).__name__, "status": getattr(error, "status_code", None), "body": error.body}
    json.dump(told, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
