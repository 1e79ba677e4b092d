"""``lmwarden connect``: what to set in a client so that it talks to the warden.

The text (``console/connect_texts.py``) is printed, never written into anybody's files, and can be pasted as it is: it
holds no placeholders. So the warden is asked for its model, its context length and whether it wants a key.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, NamedTuple

import cyclopts

from lmwarden.cli.errors import CheckFailedError, UsageError
from lmwarden.console.connect_texts import KEY_VARIABLE, TEXTS, Settings
from lmwarden.console.connect_texts import Client as Client

_QUESTION_TIMEOUT_S = 3.0


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
    print(TEXTS[client](_settings(base_url, key, model)), end="")


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
        if len(answer.models) > 1:
            names = ", ".join(answer.models)
            print(f"lmwarden: note: {url} serves {names}; this is {model}, --model takes another", file=sys.stderr)
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

    from lmwarden.cli import asking

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    stranger = f"--url: {url} answers, but not as a warden's client port (is it the console's port?)"
    try:
        request = urllib.request.Request(f"{url}/v1/models", headers=headers)
        with asking.ask(request, _QUESTION_TIMEOUT_S) as response:
            models = _models(response.read(1_000_000))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 401:
            return Answer({}, None, stranger)
        made = f"give --key KEY or set {KEY_VARIABLE}; a key is made with: lmwarden keys create NAME"
        how = "the given one is not known there" if key else made
        return Answer({}, True, f"--url: {url} wants an API key; {how}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Answer({}, None, f"--url: {url} cannot be reached ({asking.trouble(error, _QUESTION_TIMEOUT_S)})")
    return Answer(models, None if key else False) if models else Answer({}, None, stranger)


def _models(body: bytes) -> dict[str, int | None]:
    """The models of a listing, in its order; empty where it is none."""
    try:
        cards = json.loads(body)["data"]
        lengths = {str(card["id"]): card.get("max_model_len") for card in cards}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}
    return {name: length if isinstance(length, int) else None for name, length in lengths.items()}
