"""``lmwarden doctor``: asks a running warden what is not as it should be, and says what to change.

The warden looks itself (``console/checks.py``): it knows its engines, its clients and its disk. This command fetches
the lines from the console's port and prints them, one each; scripts take ``--json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import cyclopts

from lmwarden.cli.errors import UsageError
from lmwarden.cli.password import read_password

_PASSWORD_FLAG = "--password-file"
_TIMEOUT_S = 10.0
_MOST_BYTES = 8_000_000
_STRANGER = "answers, but not as a warden's console (is it the client port?)"


def register(app: cyclopts.App) -> None:
    """Add the command."""
    app.command(doctor)


def doctor(
    *,
    url: Annotated[str, cyclopts.Parameter(help="The warden's console port.")] = "http://127.0.0.1:8081",
    password_file: Annotated[
        Path | None, cyclopts.Parameter(help="File whose first line is the console's password, if it asks for one.")
    ] = None,
    as_json: Annotated[
        bool, cyclopts.Parameter(name="--json", negative=(), help="The lines as one JSON object, on standard output.")
    ] = False,
) -> int:
    """Check a running warden and say what to change. Exit status 0: all is well; 1: not all; 2: it cannot be asked."""
    from lmwarden.config import ConfigError, parse_engine_url

    base_url = url.rstrip("/")
    try:
        parse_engine_url(base_url)
    except ConfigError:
        raise UsageError(f"--url: {url!r:.100}: expected http://host:port, the warden's console port") from None
    answer = _ask(base_url, read_password(_PASSWORD_FLAG, password_file))
    checks = answer["checks"]
    if as_json:
        print(json.dumps(answer, ensure_ascii=False, indent=2))
    else:
        _print(checks)
    return 0 if all(check["level"] == "ok" for check in checks) else 1


def _ask(url: str, password: str | None) -> dict[str, Any]:
    """The console's own checks.

    Raises:
        UsageError: nobody answers there, or somebody else, or it wants (another) password.
    """
    import base64
    import http.client
    import urllib.error
    import urllib.request

    from lmwarden.cli import asking

    request = urllib.request.Request(f"{url}/api/checks")
    if password is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"lmwarden:{password}".encode()).decode())
    try:
        with asking.ask(request, _TIMEOUT_S) as response:
            body = response.read(_MOST_BYTES)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 403:
            hint = "the console does not take this name; use its address, or list the name in console.allowed_hosts"
            raise UsageError(f"--url: {url}: {hint}") from None
        if error.code == 401:
            said = "asks for a password" if password is None else "refuses the password"
            raise UsageError(f"{_PASSWORD_FLAG}: the console at {url} {said}") from None
        if error.code == 429:
            raise UsageError(f"--url: {url}: too many wrong passwords came from here; wait a minute") from None
        raise UsageError(f"--url: {url} {_STRANGER}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = asking.trouble(error, _TIMEOUT_S)
        raise UsageError(f"--url: {url} cannot be reached ({reason}); is the warden running?") from None
    try:
        answer = json.loads(body)
        if all(isinstance(check["code"] + check["level"] + check["text"], str) for check in answer["checks"]):
            return dict(answer)
    except (ValueError, LookupError, TypeError):
        pass
    raise UsageError(f"--url: {url} {_STRANGER}")


def _print(checks: list[dict[str, Any]]) -> None:
    colours = {"ok": "32", "warning": "33", "fault": "31"} if sys.stdout.isatty() else {}
    several = len({check.get("model") for check in checks if check.get("model")}) > 1
    for check in checks:
        level, model = str(check["level"]), check.get("model")
        word = f"{level:<8}"
        if level in colours:
            word = f"\x1b[{colours[level]}m{word}\x1b[0m"
        what = f"{model}: {check['text']}" if several and model else check["text"]
        do = f"; what to do: {check['what_to_do']}" if check.get("what_to_do") else ""
        print(_plain(f"{what}{do}", word))
    bad = sum(check["level"] != "ok" for check in checks)
    print(f"{len(checks)} checks, {bad} of them not ok" if bad else f"{len(checks)} checks, all ok")


def _plain(text: str, word: str) -> str:
    """One line; what an engine wrote into its log must not move the cursor."""
    return word + "".join(letter if letter.isprintable() else " " for letter in text)
