"""``lmwarden connect``: what to set in a client so that it talks to the warden.

The text is printed, never written into anybody's files, and can be pasted as it is: it holds no placeholders. So
the warden is asked for its model, its context length and whether it wants a key. Where the key is wanted but was
not given, the text reads it from ``LMWARDEN_KEY`` and stops with a plain sentence if that is not set.

Each client sends a session id by itself or is told how to; that id is what keeps its conversation on one replica.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import cyclopts

from lmwarden.cli.errors import CheckFailedError, UsageError

Client = Literal["claude-code", "codex", "opencode", "openai", "curl"]

KEY_VARIABLE = "LMWARDEN_KEY"
_HOW_TO_GET_A_KEY = "set it to a key made with: lmwarden keys create NAME"
_CLAUDE_CODE_OUTPUT_TOKENS = 32_000
"""What Claude Code asks for with every request, unless it is told otherwise."""
_CLAUDE_CODE_LEAST_CONTEXT_TOKENS = 33_000
_QUESTION_TIMEOUT_S = 3.0


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
        "# All the names that it may ask for lead to the one model that is served here.",
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
        '# Its session id is sent by itself. Do not use the permission mode "auto" with a self-hosted model.',
    ]
    return "\n".join(lines) + "\n"


def _codex(settings: Settings) -> str:
    without_key = settings.key is None and settings.key_needed is False
    lines = [
        "# Codex: put this into ~/.codex/config.toml."
        + ("" if without_key else f" The key goes into the shell:  {settings.key_hint}"),
        f"model = {json.dumps(settings.model)}",
        'model_provider = "lmwarden"',
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
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "LM Warden",
        "options": {"baseURL": f"{settings.url}/v1", "apiKey": key},
        "models": {settings.model: {"name": settings.model}},
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
        "// Without a session header a conversation is recognised by its opening: the same system prompt, tools and\n"
        "// first message. A plug-in that sends x-session-affinity makes it exact.\n"
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


_TEXTS: dict[Client, Callable[[Settings], str]] = {
    "claude-code": _claude_code,
    "codex": _codex,
    "opencode": _opencode,
    "openai": _openai,
    "curl": _curl,
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
    """Print what to set in a client; it can be pasted as it is.

    Parameters
    ----------
    client: str
        Which one.
    """
    from lmwarden.config import ConfigError, parse_engine_url

    base_url = url.rstrip("/").removesuffix("/v1")
    try:
        parse_engine_url(base_url)
    except ConfigError:
        raise UsageError(f"--url: {url!r:.100}: expected http://host:port, the warden's client port") from None
    for flag, value in (("--key", key), ("--model", model)):
        if value is not None and not (value and value.isprintable()):
            raise UsageError(f"{flag}: must be a text of printable characters, not {value!r:.100}")
    print(_TEXTS[client](_settings(base_url, key, model)), end="")


def _settings(url: str, key: str | None, model: str | None) -> Settings:
    """Ask the warden for what the user did not say.

    Raises:
        CheckFailedError: it cannot be asked, and the model was not given.
    """
    answer = ask(url, key)
    own_key = os.environ.get(KEY_VARIABLE)
    if key is None and own_key and answer.key_needed:
        # It serves to ask, and is not printed: the text reads it from the environment too.
        answer = ask(url, own_key)._replace(key_needed=True)
    if model is None:
        if answer.trouble is not None:
            raise CheckFailedError(f"{answer.trouble}; with --model NAME it need not be asked")
        model = next(iter(answer.models))
    elif answer.trouble is not None:
        print(f"lmwarden: note: {answer.trouble}", file=sys.stderr)
    elif model not in answer.models:
        names = ", ".join(answer.models)
        print(f"lmwarden: note: {url} lists {names}; {model} works if it is an alias there", file=sys.stderr)
    return Settings(url, model, key, answer.key_needed, answer.models.get(model))


class Answer(NamedTuple):
    """What an address said when it was asked for its models."""

    models: dict[str, int | None]
    """Name to context length in tokens (None: not told); empty where there is trouble."""
    key_needed: bool | None
    trouble: str | None = None
    """One plain sentence without its full stop."""


def ask(url: str, key: str | None) -> Answer:
    """Ask a warden what it serves. Never raises for what is at the address."""
    import http.client
    import urllib.error
    import urllib.request

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    stranger = f"--url: {url} answers, but not as a warden's client port (is it the console's port?)"
    try:
        request = urllib.request.Request(f"{url}/v1/models", headers=headers)
        with urllib.request.urlopen(request, timeout=_QUESTION_TIMEOUT_S) as response:
            models = _models(response.read(1_000_000))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 401:
            return Answer({}, None, stranger)
        made = f"give --key KEY or set {KEY_VARIABLE}; a key is made with: lmwarden keys create NAME"
        how = "the given one is not known there" if key else made
        return Answer({}, True, f"--url: {url} wants an API key; {how}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Answer({}, None, f"--url: {url} cannot be reached ({_reason(error)})")
    return Answer(models, None if key else False) if models else Answer({}, None, stranger)


def _models(body: bytes) -> dict[str, int | None]:
    """The models of a listing, in its order; empty where it is none."""
    try:
        cards = json.loads(body)["data"]
        lengths = {str(card["id"]): card.get("max_model_len") for card in cards}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}
    return {name: length if isinstance(length, int) else None for name, length in lengths.items()}


def _reason(error: Exception) -> str:
    """What the system says of a connection that failed."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return f"no answer within {_QUESTION_TIMEOUT_S:g} s"
    return (cause.strerror if isinstance(cause, OSError) else None) or "no valid answer"
