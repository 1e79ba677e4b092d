"""``lmwarden connect``: what to set in a client so that it talks to the warden.

The text is printed, never written into anybody's files. Each client sends a session id by itself or is told
how to; that id is what keeps its conversation on one replica.
"""

from __future__ import annotations

from typing import Annotated, Literal

import cyclopts

Client = Literal["claude-code", "codex", "opencode", "openai", "curl"]

_CLAUDE_CODE = """\
# Claude Code: put these into the shell that starts it (or under "env" in ~/.claude/settings.json).
export ANTHROPIC_BASE_URL={url}
export ANTHROPIC_AUTH_TOKEN={key}
# All the names that it may ask for lead to the one model that is served here.
export ANTHROPIC_MODEL={model}
export ANTHROPIC_DEFAULT_OPUS_MODEL={model}
export ANTHROPIC_DEFAULT_SONNET_MODEL={model}
export ANTHROPIC_DEFAULT_HAIKU_MODEL={model}
export CLAUDE_CODE_SUBAGENT_MODEL={model}
# A changing line at the head of the system prompt would make the engine read the whole history anew.
export CLAUDE_CODE_ATTRIBUTION_HEADER=0
# Says which call is a subagent's, a title, a compaction.
export CLAUDE_CODE_GATEWAY_HINT_HEADERS=1
# The context that the engine really has: then it compacts in time.
export CLAUDE_CODE_MAX_CONTEXT_TOKENS={context}
# Tools that come and go change the prompt's beginning, and the cache is lost.
export ENABLE_TOOL_SEARCH=false
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
# Its session id is sent by itself. Do not use the permission mode "auto" with a self-hosted model.
"""

_CODEX = """\
# Codex: put this into ~/.codex/config.toml, and the key into the shell:  export LMWARDEN_KEY={key}
model = "{model}"
model_provider = "lmwarden"

[model_providers.lmwarden]
name = "LM Warden"
base_url = "{url}/v1"
env_key = "LMWARDEN_KEY"
wire_api = "responses"
# Codex sends its session id by itself (session-id). It speaks /v1/responses, where a vLLM server with several
# data-parallel ranks ignores the choice of a rank: run one vLLM server per replica to keep its conversations
# in place.
"""

_OPENCODE = """\
# OpenCode: merge this into opencode.json, and put the key into the shell:  export LMWARDEN_KEY={key}
{{
  "$schema": "https://opencode.ai/config.json",
  "model": "lmwarden/{model}",
  "provider": {{
    "lmwarden": {{
      "npm": "@ai-sdk/openai-compatible",
      "name": "LM Warden",
      "options": {{ "baseURL": "{url}/v1", "apiKey": "{{env:LMWARDEN_KEY}}" }},
      "models": {{ "{model}": {{ "name": "{model}" }} }}
    }}
  }}
}}
# Without a session header a conversation is recognised by its opening: the same system prompt, tools and first
# message. A plug-in that sends x-session-affinity makes it exact.
"""

_OPENAI = """\
# OpenAI SDK (Python); any other SDK likewise. One id per conversation keeps it on its replica.
from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="{key}")
answer = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Hello"}}],
    extra_headers={{"X-Session-Id": "one-id-per-conversation"}},
)
"""

_CURL = """\
# curl; -i shows X-LMWarden-Replica and X-LMWarden-Decision.
curl -i {url}/v1/chat/completions \\
  -H 'Authorization: Bearer {key}' \\
  -H 'Content-Type: application/json' \\
  -H 'X-Session-Id: one-id-per-conversation' \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 64}}'
"""

_TEXTS: dict[Client, str] = {
    "claude-code": _CLAUDE_CODE,
    "codex": _CODEX,
    "opencode": _OPENCODE,
    "openai": _OPENAI,
    "curl": _CURL,
}


def register(app: cyclopts.App) -> None:
    """Add the command."""
    app.command(connect)


def connect(
    client: Client,
    /,
    *,
    url: Annotated[str, cyclopts.Parameter(help="The warden's client port.")] = "http://127.0.0.1:8080",
    key: Annotated[str | None, cyclopts.Parameter(help="An API key.")] = None,
    model: Annotated[str | None, cyclopts.Parameter(help="Default: asked of the warden.")] = None,
) -> None:
    """Print what to set in a client.

    Parameters
    ----------
    client: str
        Which one.
    """
    from lmwarden.config import parse_engine_url

    base_url = url.rstrip("/").removesuffix("/v1")
    parse_engine_url(base_url)
    context = "<the model's context length>"
    if model is None:
        model, length = _ask(base_url, key)
        context = str(length) if length else context
    text = _TEXTS[client].format(url=base_url, key=key or "<your key>", model=model, context=context)
    print(text, end="")


def _ask(base_url: str, key: str | None) -> tuple[str, int | None]:
    """The first model of a running warden and its context length; a placeholder where nobody answers."""
    import http.client
    import urllib.error
    import urllib.request

    import msgspec

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{base_url}/v1/models", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=3) as response:
            cards = msgspec.json.decode(response.read(1_000_000))["data"]
        return str(cards[0]["id"]), cards[0].get("max_model_len")
    except (OSError, http.client.HTTPException, msgspec.DecodeError, LookupError, TypeError, AttributeError):
        return "<your model>", None
