"""One call by the OpenAI SDK, told as one JSON object.

Run by the Python of the clients' environment, never imported by the test suite::

    <clients env>/venv/bin/python tests/clients/sdk_openai.py CALL URL KEY MODEL

The SDK is loaded by name, because the environment in which this file is checked does not have it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

openai: Any = import_module("openai")

SESSION = {"X-Session-Id": "a-conversation-of-the-sdk-1"}
QUESTION = "How many tests fail, and why? Answer in a word. " * 8
MAX_TOKENS = 12


def _messages() -> list[dict[str, str]]:
    return [{"role": "system", "content": "You are a coding agent."}, {"role": "user", "content": QUESTION}]


def _ask_chat(client: Any, model: str, **more: Any) -> Any:
    return client.chat.completions.create(
        model=model, messages=_messages(), max_tokens=MAX_TOKENS, temperature=0, extra_headers=SESSION, **more
    )


def chat(client: Any, model: str) -> dict[str, Any]:
    """Not streamed."""
    answer = _ask_chat(client, model)
    return {"text": answer.choices[0].message.content, "usage": answer.usage.model_dump(), "model": answer.model}


def _read_chat_stream(stream: Any) -> dict[str, Any]:
    chunks = list(stream)
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    usages = [chunk.usage.model_dump() for chunk in chunks if chunk.usage is not None]
    without_choice = sum(not chunk.choices for chunk in chunks)
    return {"text": "".join(texts), "usages": usages, "chunks_without_choice": without_choice}


def chat_stream(client: Any, model: str) -> dict[str, Any]:
    """Streamed, without asking for usage."""
    return _read_chat_stream(_ask_chat(client, model, stream=True))


def chat_stream_with_usage(client: Any, model: str) -> dict[str, Any]:
    """Streamed, with usage in the last chunk."""
    return _read_chat_stream(_ask_chat(client, model, stream=True, stream_options={"include_usage": True}))


def chat_stream_cancelled(client: Any, model: str) -> dict[str, Any]:
    """Streamed, and left after the first words."""
    with _ask_chat(client, model, stream=True) as stream:
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                return {"text": chunk.choices[0].delta.content}
    return {"text": None}


def _ask_responses(client: Any, model: str, **more: Any) -> Any:
    return client.responses.create(
        model=model,
        instructions="You are a coding agent.",
        input=QUESTION,
        max_output_tokens=MAX_TOKENS,
        prompt_cache_key=SESSION["X-Session-Id"],
        **more,
    )


def responses(client: Any, model: str) -> dict[str, Any]:
    """``/v1/responses``, not streamed; the session is told in the body."""
    answer = _ask_responses(client, model)
    return {"text": answer.output_text, "usage": answer.usage.model_dump()}


def responses_stream(client: Any, model: str) -> dict[str, Any]:
    """``/v1/responses``, streamed."""
    text, usage = "", None
    for event in _ask_responses(client, model, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
        elif event.type == "response.completed":
            usage = event.response.usage.model_dump()
    return {"text": text, "usage": usage}


def models(client: Any, model: str) -> dict[str, Any]:
    """The listing."""
    return {"models": [card.id for card in client.models.list()]}


CALLS: dict[str, Callable[[Any, str], dict[str, Any]]] = {
    function.__name__: function
    for function in (
        chat,
        chat_stream,
        chat_stream_with_usage,
        chat_stream_cancelled,
        responses,
        responses_stream,
        models,
    )
}


def main(arguments: list[str]) -> int:
    """Make the call; an exception of the SDK is told by its class."""
    call, url, key, model = arguments
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
    try:
        told = CALLS[call](client, model)
    except openai.APIError as error:
        told = {"error": type(error).__name__, "status": getattr(error, "status_code", None), "body": error.body}
    json.dump(told, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
