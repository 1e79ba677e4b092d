"""From a request body to what the engine must do: prompt, output length, stream options, or vLLM's refusal.

Output length: ``max_tokens`` (or its synonyms), at most what is left of the model's context, and at most
``max_answer_tokens``, where the simulated model would end by itself; ``ignore_eos`` and ``min_tokens`` lift that last
bound. Without a limit an answer has 256 tokens, completions 16 (vLLM's default there). A limit above the whole context
is refused, as vLLM 0.32 does; the imitation of 0.26 cuts it. A tool call at the end of an answer takes no token, so
that sizes are the same with tools and without.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lmwarden.simulation.options import SimulatedEngineOptions
from lmwarden.simulation.prompts import (
    BadRequestError,
    anthropic_prompt,
    chat_prompt,
    completion_prompt,
    responses_prompt,
)
from lmwarden.simulation.protocol import Api, FinishReason

DEFAULT_ANSWER_TOKENS = 256

_PROMPTS = {
    "chat": chat_prompt,
    "completions": completion_prompt,
    "messages": anthropic_prompt,
    "responses": responses_prompt,
}
_LENGTH_FIELDS = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "completions": ("max_tokens",),
    "messages": ("max_tokens",),
    "responses": ("max_output_tokens",),
}


class RequestError(Exception):
    """A refusal with a status of its own; ``kind`` is the error's type, None: the status' usual one."""

    def __init__(self, status: int, message: str, kind: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted request."""

    api: Api
    model: str | None
    """As the client wrote it; None: it named none."""
    tokens: list[int]
    """The prompt."""
    output_tokens: int
    finish: FinishReason
    tool: str
    """Name of the tool that the answer calls; empty: none."""
    stream: bool
    include_usage: bool
    continuous_usage: bool


def parse_generation(
    api: Api, body: Mapping[str, object], options: SimulatedEngineOptions, max_model_len: int
) -> Generation:
    """Check and read one request.

    Raises:
        RequestError: unknown model.
        BadRequestError: a bad shape, or a prompt that leaves no room for an answer.
    """
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise BadRequestError("model must be a string")
    if api == "messages" and model is None:
        raise BadRequestError("model: Field required")
    if model is not None and model != options.model:
        raise RequestError(404, f"The model `{model}` does not exist.")
    if _integer(body, "n") not in (None, 1):
        raise BadRequestError("the simulated engine generates one choice: n must be 1")
    tokens = _PROMPTS[api](body)
    if not options.legacy:
        _refuse_above_context(api, body, max_model_len)
    output_tokens, finish = _output_length(api, body, options, max_model_len - len(tokens))
    if output_tokens < 1:
        raise BadRequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains"
            f" {len(tokens)} input tokens, which exceeds this limit even without any output tokens."
            " Please reduce the length of the input prompt."
        )
    tool = _called_tool(api, body, always=options.tool_calls)
    stream_options = body.get("stream_options")
    usage = stream_options if isinstance(stream_options, Mapping) else {}
    include_usage = bool(usage.get("include_usage"))
    return Generation(
        api=api,
        model=model,
        tokens=tokens,
        output_tokens=output_tokens,
        finish="tool_calls" if tool else finish,
        tool=tool,
        stream=bool(body.get("stream")),
        include_usage=include_usage,
        continuous_usage=include_usage and bool(usage.get("continuous_usage_stats")),
    )


def _refuse_above_context(api: Api, body: Mapping[str, object], max_model_len: int) -> None:
    for field in _LENGTH_FIELDS[api]:
        limit = _integer(body, field)
        if limit is None:
            continue
        if limit > max_model_len:
            # vLLM serves messages as chat, and names the field of that request.
            name = "max_completion_tokens" if api == "messages" else field
            raise BadRequestError(
                f"{name}={limit} cannot be greater than max_model_len={max_model_len}."
                f" Please request fewer output tokens. (parameter={name}, value={limit})",
                param=name,
            )
        return


def _output_length(
    api: Api, body: Mapping[str, object], options: SimulatedEngineOptions, room_tokens: int
) -> tuple[int, FinishReason]:
    limit: int | None = None
    for field in _LENGTH_FIELDS[api]:
        limit = _integer(body, field)
        if limit is not None:
            if limit < 1:
                raise BadRequestError(f"{field} must be at least 1, got {limit}.")
            break
    if limit is None:
        if api == "messages":
            raise BadRequestError("max_tokens: Field required")
        wanted = 16 if api == "completions" else DEFAULT_ANSWER_TOKENS
        finish: FinishReason = "length" if api == "completions" else "stop"
    elif limit > options.max_answer_tokens and not body.get("ignore_eos"):
        wanted = max(options.max_answer_tokens, min(limit, _integer(body, "min_tokens") or 0))
        finish = "stop" if wanted < limit else "length"
    else:
        wanted, finish = limit, "length"
    return (wanted, finish) if wanted <= room_tokens else (room_tokens, "length")


def _called_tool(api: Api, body: Mapping[str, object], *, always: bool) -> str:
    """Name of the tool that the answer calls, or nothing.

    ``tool_choice`` as in the APIs: a word (chat), or an object with a ``type`` and perhaps a name. ``none`` forbids a
    call, ``auto`` leaves it to the model, which ``always`` calls or never; everything else demands one.
    """
    if api not in ("chat", "messages"):
        return ""
    tools = body.get("tools")
    names = [name for tool in tools if (name := _tool_name(tool))] if isinstance(tools, list) else []
    if not names:
        return ""
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if kind == "none" or (kind in (None, "auto") and not always):
        return ""
    return _tool_name(choice) or names[0]


def _tool_name(value: object) -> str:
    """Of a tool, or of a choice: it stands in the object itself (messages) or in its ``function`` (chat)."""
    if not isinstance(value, Mapping):
        return ""
    function = value.get("function")
    name = function.get("name") if isinstance(function, Mapping) else value.get("name")
    return name if isinstance(name, str) else ""


def _integer(body: Mapping[str, object], field: str) -> int | None:
    value = body.get(field)
    if value is None:
        return None
    if type(value) is not int:
        raise BadRequestError(f"{field} must be an integer")
    return value
