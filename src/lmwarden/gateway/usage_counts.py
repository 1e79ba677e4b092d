"""What an answer's usage object and its reason to end say, in the shapes of all three APIs.

Later values replace earlier ones and absent ones replace nothing; "not reported" stays apart from 0.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lmwarden.types import Usage

MOST_TOKENS = 1_000_000_000


class EngineAbortedError(Exception):
    """The engine aborted the generation although nobody asked for it."""


class UsageDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class UsageShape(msgspec.Struct, gc=False):
    """The members of all three APIs' usage objects. Their names do not overlap in meaning."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: UsageDetails | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: UsageDetails | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Choice(msgspec.Struct, gc=False):
    finish_reason: str | None = None


class ChatShape(msgspec.Struct, gc=False):
    usage: UsageShape | None = None
    choices: list[Choice] | None = None
    error: msgspec.Raw = msgspec.Raw(b"")


class DeltaShape(msgspec.Struct, gc=False):
    stop_reason: str | None = None


class MessageShape(msgspec.Struct, gc=False):
    usage: UsageShape | None = None


class MessagesShape(msgspec.Struct, gc=False):
    type: str = ""
    usage: UsageShape | None = None
    message: MessageShape | None = None
    delta: DeltaShape | None = None
    stop_reason: str | None = None


class IncompleteShape(msgspec.Struct, gc=False):
    reason: str | None = None


class ResponseShape(msgspec.Struct, gc=False):
    id: str | None = None
    usage: UsageShape | None = None
    status: str | None = None
    incomplete_details: IncompleteShape | None = None


class ResponsesShape(msgspec.Struct, gc=False):
    type: str = ""
    response: ResponseShape | None = None


decode_chat = msgspec.json.Decoder(ChatShape).decode
decode_messages = msgspec.json.Decoder(MessagesShape).decode
decode_responses_event = msgspec.json.Decoder(ResponsesShape).decode
decode_response = msgspec.json.Decoder(ResponseShape).decode
UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class Counts(msgspec.Struct, eq=False, gc=False):
    """What has been learned; later values replace earlier ones, and absent ones replace nothing."""

    prompt: int | None = None
    uncached_input: int | None = None
    """Anthropic's ``input_tokens``: the prompt without what the two cache fields count."""
    cached: int | None = None
    cache_creation: int | None = None
    completion: int | None = None
    finish_reason: str | None = None
    failed: bool = False
    response_made: Callable[[str], None] | None = None
    """Is told the id of the response that the engine makes. Must not lead back to the exchange: a tap is not tracked
    by the garbage collector."""

    def take(self, usage: UsageShape) -> None:
        """OpenAI's shapes: the prompt's count includes its cached part."""
        prompt = usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens
        if prompt is not None:
            self.prompt = prompt
        completion = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
        if completion is not None:
            self.completion = completion
        details = usage.prompt_tokens_details or usage.input_tokens_details
        if details is not None and details.cached_tokens is not None:
            self.cached = details.cached_tokens

    def take_messages(self, usage: UsageShape, *, begins: bool = False) -> None:
        """Anthropic's shape: the prompt is the sum of three parts, given in one event or spread over two.

        vLLM's ``message_start`` has the whole prompt as ``input_tokens`` and ``message_delta`` the split, so
        the later values replace the earlier ones and are not added to them. What ``message_start`` (``begins``) says
        of the output is 0 or 1 whatever comes, and no count.
        """
        if usage.input_tokens is not None:
            self.uncached_input = usage.input_tokens
        if usage.cache_read_input_tokens is not None:
            self.cached = usage.cache_read_input_tokens
        if usage.cache_creation_input_tokens is not None:
            self.cache_creation = usage.cache_creation_input_tokens
        if usage.output_tokens is not None and not begins:
            self.completion = usage.output_tokens
        if self.uncached_input is not None:
            self.prompt = self.uncached_input + (self.cached or 0) + (self.cache_creation or 0)

    def usage(self) -> Usage:
        """The counts. One that no engine can mean is a reporting fault and counts as unknown: below 0, beyond any
        context, or a cached part larger than the prompt."""
        prompt, cached, completion = self.prompt, self.cached, self.completion
        if prompt is not None and not 0 <= prompt <= MOST_TOKENS:
            prompt = None
        if cached is not None and not 0 <= cached <= (MOST_TOKENS if prompt is None else prompt):
            cached = None
        if completion is not None and not 0 <= completion <= MOST_TOKENS:
            completion = None
        return Usage(prompt, cached, completion, self.finish_reason)


def take_choices(counts: Counts, choices: list[Choice] | None) -> None:
    for choice in choices or ():
        if choice.finish_reason is not None:
            counts.finish_reason = choice.finish_reason
            if choice.finish_reason == "abort":
                raise EngineAbortedError
            if choice.finish_reason == "error":
                counts.failed = True


def take_response(counts: Counts, response: ResponseShape) -> None:
    note_response(counts, response)
    if response.usage is not None:
        counts.take(response.usage)
    counts.finish_reason = response.status
    if response.incomplete_details is not None and response.incomplete_details.reason is not None:
        counts.finish_reason = response.incomplete_details.reason
    if response.status == "failed":
        counts.failed = True
    if response.status == "cancelled":  # vLLM's word for an abort, where it has one
        raise EngineAbortedError


def note_response(counts: Counts, response: ResponseShape) -> None:
    if response.id and counts.response_made is not None:
        counts.response_made(response.id)
