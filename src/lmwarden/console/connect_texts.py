"""What to set in a client so that it talks to the warden, as text to paste: for ``lmwarden connect`` and the console.

The texts hold no placeholders. Where a key is wanted but not given, the text reads it from ``LMWARDEN_KEY`` and stops
with a plain sentence if that is not set. Each client sends a session id by itself or is told how to; that id is what
keeps its conversation on one replica.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Literal, NamedTuple

Client = Literal["claude-code", "codex", "opencode", "openai", "curl"]

KEY_VARIABLE = "LMWARDEN_KEY"
_HOW_TO_GET_A_KEY = "set it to a key made with: lmwarden keys create NAME"
_CLAUDE_CODE_OUTPUT_TOKENS = 32_000
"""What Claude Code asks for with every request, unless it is told otherwise."""
_CLAUDE_CODE_LEAST_CONTEXT_TOKENS = 33_000
_OPENCODE_OUTPUT_TOKENS = 32_000
"""What OpenCode asks for with every request, unless it is told otherwise."""


class Settings(NamedTuple):
    """What a client must know."""

    url: str
    model: str
    key: str | None
    key_needed: bool | None
    """None: the warden could not be asked."""
    max_model_len: int | None
    """Context of the model in tokens; None: not known."""

    @property
    def key_of_shell(self) -> str:
        """The key as a word of the shell."""
        if self.key is not None:
            return shlex.quote(self.key)
        if self.key_needed is None:
            return f'"${{{KEY_VARIABLE}:-unused}}"'
        return f'"${{{KEY_VARIABLE}:?{_HOW_TO_GET_A_KEY}}}"' if self.key_needed else "unused"

    @property
    def key_hint(self) -> str:
        """How the variable gets its value, for clients that read it from the environment."""
        if self.key is not None:
            return f"export {KEY_VARIABLE}={shlex.quote(self.key)}"
        if self.key_needed:
            return f"{KEY_VARIABLE} must hold a key; one is made with: lmwarden keys create NAME"
        return f"export {KEY_VARIABLE}=unused"


def _claude_code(settings: Settings) -> str:
    url, model, context = shlex.quote(settings.url), shlex.quote(settings.model), settings.max_model_len
    lines = [
        '# Claude Code: put these into the shell that starts it (or under "env" in ~/.claude/settings.json).',
        f"export ANTHROPIC_BASE_URL={url}",
    ]
    if settings.key is None and settings.key_needed is False:
        lines.append("# This warden wants no key, but Claude Code wants to send one.")
    lines += [
        f"export ANTHROPIC_AUTH_TOKEN={settings.key_of_shell}",
        "# All the names that it may ask for lead to this model.",
        f"export ANTHROPIC_MODEL={model}",
        f"export ANTHROPIC_DEFAULT_OPUS_MODEL={model}",
        f"export ANTHROPIC_DEFAULT_SONNET_MODEL={model}",
        f"export ANTHROPIC_DEFAULT_HAIKU_MODEL={model}",
        f"export CLAUDE_CODE_SUBAGENT_MODEL={model}",
        "# A changing line at the head of the system prompt would make the engine read the whole history anew.",
        "export CLAUDE_CODE_ATTRIBUTION_HEADER=0",
        "# Says which call is a subagent's, a title, a compaction.",
        "export CLAUDE_CODE_GATEWAY_HINT_HEADERS=1",
    ]
    if context is not None:
        lines += [
            "# The context that the engine really has: then it compacts in time.",
            f"export CLAUDE_CODE_MAX_CONTEXT_TOKENS={context}",
        ]
    if context is not None and context < _CLAUDE_CODE_LEAST_CONTEXT_TOKENS:
        lines += [
            f"# Warning: a context of {context} tokens is small. Claude Code asks for {_CLAUDE_CODE_OUTPUT_TOKENS}"
            " output tokens, and vLLM refuses a request",
            "# that asks for more than the whole context; so it is told to ask for a quarter of it.",
            f"export CLAUDE_CODE_MAX_OUTPUT_TOKENS={max(1, context // 4)}",
        ]
    lines += [
        "# Tools that come and go change the prompt's beginning, and the cache is lost.",
        "export ENABLE_TOOL_SEARCH=false",
        "export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
        "# Its session id is sent by itself. On a terminal start it with: claude --permission-mode default",
        "# (the mode auto, its own default, has a server of Anthropic check what tools do; here nothing checks it).",
    ]
    return "\n".join(lines) + "\n"


def _codex(settings: Settings) -> str:
    without_key = settings.key is None and settings.key_needed is False
    lines = [
        "# Codex: put this into ~/.codex/config.toml."
        + ("" if without_key else f" The key goes into the shell:  {settings.key_hint}"),
        f"model = {json.dumps(settings.model)}",
        'model_provider = "lmwarden"',
        *([] if settings.max_model_len is None else [f"model_context_window = {settings.max_model_len}"]),
        "",
        "[model_providers.lmwarden]",
        'name = "LM Warden"',
        f"base_url = {json.dumps(settings.url + '/v1')}",
        *([] if without_key else [f'env_key = "{KEY_VARIABLE}"']),
        'wire_api = "responses"',
        "# Codex sends its session id by itself (session-id). It speaks /v1/responses, where a vLLM server with",
        "# several data-parallel ranks ignores the choice of a rank: run one vLLM server per card to keep its",
        "# conversations in place.",
    ]
    return "\n".join(lines) + "\n"


def _opencode(settings: Settings) -> str:
    without_key = settings.key is None and settings.key_needed is False
    key = "unused" if without_key else f"{{env:{KEY_VARIABLE}}}"
    model: dict[str, object] = {"name": settings.model}
    if settings.max_model_len is not None:
        output_tokens = max(1, min(_OPENCODE_OUTPUT_TOKENS, settings.max_model_len // 4))
        model["limit"] = {"context": settings.max_model_len, "output": output_tokens}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "LM Warden",
        "options": {"baseURL": f"{settings.url}/v1", "apiKey": key},
        "models": {settings.model: model},
    }
    config = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"lmwarden/{settings.model}",
        "provider": {"lmwarden": provider},
    }
    hint = "" if without_key else f" The key goes into the shell:  {settings.key_hint}"
    return (
        f"// OpenCode: merge this into opencode.json.{hint}\n"
        f"{json.dumps(config, indent=2, ensure_ascii=False)}\n"
        "// OpenCode sends its session id by itself (x-session-id). A release that does not is recognised by how its\n"
        "// conversation begins: the same system prompt, tools and first message.\n"
    )


def _openai(settings: Settings) -> str:
    imports, hint, key = "", "", json.dumps(settings.key or "unused")
    if settings.key is None and settings.key_needed is not False:
        imports = "import os\n\n"
        key = f'os.environ.get("{KEY_VARIABLE}", "unused")'
        if settings.key_needed:
            hint, key = f"# {settings.key_hint}\n", f'os.environ["{KEY_VARIABLE}"]'
    return f"""\
# OpenAI SDK (Python); any other SDK likewise. One id per conversation keeps it on its replica.
{imports}from openai import OpenAI

{hint}client = OpenAI(base_url={json.dumps(settings.url + "/v1")}, api_key={key})
answer = client.chat.completions.create(
    model={json.dumps(settings.model)},
    messages=[{{"role": "user", "content": "Hello"}}],
    extra_headers={{"X-Session-Id": "one-id-per-conversation"}},
)
"""


def _curl(settings: Settings) -> str:
    message = {"role": "user", "content": "Hello"}
    body = json.dumps({"model": settings.model, "messages": [message], "max_tokens": 64}, ensure_ascii=False)
    lines = [
        "# curl; -i shows X-LMWarden-Replica and X-LMWarden-Decision.",
        f"curl -i {shlex.quote(settings.url + '/v1/chat/completions')} \\",
        "  -H 'Content-Type: application/json' \\",
        "  -H 'X-Session-Id: one-id-per-conversation' \\",
        f"  -d {shlex.quote(body)}",
    ]
    if settings.key is not None or settings.key_needed is not False:
        lines.insert(2, f"  -H 'Authorization: Bearer '{settings.key_of_shell} \\")
    return "\n".join(lines) + "\n"


TEXTS: dict[Client, Callable[[Settings], str]] = {
    "claude-code": _claude_code,
    "codex": _codex,
    "opencode": _opencode,
    "openai": _openai,
    "curl": _curl,
}
"""By client."""
