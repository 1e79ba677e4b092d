"""What ``connect`` prints: complete and pasteable for each client, whatever is known; or one line that says why not."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import tomllib
from collections.abc import AsyncIterator
from typing import get_args

import pytest
from aiohttp import web
from tests.waiting import PATIENCE_S

from lmwarden.cli import main
from lmwarden.cli.connect import Client

NOBODY = "http://127.0.0.1:9"
CLIENTS = get_args(Client)
SHELL_CLIENTS = ("claude-code", "curl")


class FakeWarden:
    """A client port that lists models; change the attributes at any time."""

    def __init__(self) -> None:
        self.url = ""
        self.key: str | None = None
        """The one that it wants."""
        self.card: dict[str, object] = {"id": "served", "max_model_len": 200_000}
        self.others: list[dict[str, object]] = []
        self.body: str | None = None
        """Instead of a listing."""
        self.status = 200

    async def models(self, request: web.Request) -> web.Response:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "An API key is required"}}, status=401)
        if self.body is not None:
            return web.Response(text=self.body, status=self.status)
        return web.json_response({"data": [self.card, *self.others]}, status=self.status)


@pytest.fixture
async def warden() -> AsyncIterator[FakeWarden]:
    fake = FakeWarden()
    app = web.Application()
    app.router.add_get("/v1/models", fake.models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await runner.cleanup()


@pytest.fixture(autouse=True)
def no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LMWARDEN_KEY", raising=False)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warden that is asked stands still with us."""
    monkeypatch.setattr("lmwarden.cli.connect._QUESTION_TIMEOUT_S", PATIENCE_S)


async def run(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["connect", *arguments])


def shell(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit status, output, errors."""
    done = subprocess.run(["/bin/sh", *arguments], env=environment or {}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def sourced(text: str, variable: str, environment: dict[str, str]) -> tuple[int, str, str]:
    """What a shell makes of the text."""
    return shell("-c", f'{text}\nprintf %s "${variable}"', environment=environment)


def settings_of(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line.startswith("export ")]
    return dict(shlex.split(line)[1].split("=", 1) for line in lines)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("known", ["everything", "no key needed", "a key is needed", "nobody answers"])
async def test_nothing_that_is_printed_is_a_placeholder(
    client: str, known: str, warden: FakeWarden, capsys: pytest.CaptureFixture[str]
) -> None:
    warden.key = "lmw_k" if known in ("everything", "a key is needed") else None
    url = NOBODY if known == "nobody answers" else warden.url
    given = ["--key", "lmw_k"] if known == "everything" else []
    if known in ("a key is needed", "nobody answers"):
        given += ["--model", "served"]
    assert await run(client, "--url", url + "/v1/", *given) == 0
    text = capsys.readouterr().out
    assert "<" not in text
    assert url in text
    assert "/v1/v1" not in text
    assert "served" in text
    assert ("lmw_k" in text) is (known == "everything")
    if client in SHELL_CLIENTS:
        assert shell("-n", "-c", text) == (0, "", "")


async def test_a_missing_key_is_read_from_the_environment_and_its_absence_is_said(
    warden: FakeWarden, capsys: pytest.CaptureFixture[str]
) -> None:
    warden.key = "lmw_k"
    assert await run("claude-code", "--url", warden.url, "--model", "m") == 0
    text = capsys.readouterr().out
    assert sourced(text, "ANTHROPIC_AUTH_TOKEN", {"LMWARDEN_KEY": "lmw_k"})[1] == "lmw_k"
    status, _, errors = sourced(text, "ANTHROPIC_AUTH_TOKEN", {})
    assert status != 0
    assert "lmwarden keys create NAME" in errors


async def test_a_warden_without_keys_gets_any(warden: FakeWarden, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("claude-code", "--url", warden.url) == 0
    text = capsys.readouterr().out
    assert settings_of(text)["ANTHROPIC_AUTH_TOKEN"] == "unused"
    assert "# This warden wants no key" in text
    assert await run("curl", "--url", warden.url) == 0
    assert "Authorization" not in capsys.readouterr().out


@pytest.mark.parametrize("client", CLIENTS)
async def test_of_several_models_it_says_which_it_took(
    client: str, warden: FakeWarden, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(client, "--url", warden.url) == 0
    assert capsys.readouterr().err == ""
    warden.others = [{"id": "second"}]
    assert await run(client, "--url", warden.url) == 0
    text, notes = capsys.readouterr()
    assert notes == f"lmwarden: note: {warden.url} serves served, second; this is served, --model takes another\n"
    assert "served" in text
    assert "second" not in text
    assert await run(client, "--url", warden.url, "--model", "second") == 0
    assert capsys.readouterr().err == ""


async def test_where_nobody_answers_a_key_is_used_if_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("claude-code", "--url", NOBODY, "--model", "m") == 0
    text, notes = capsys.readouterr()
    assert "cannot be reached (Connection refused)" in notes
    assert sourced(text, "ANTHROPIC_AUTH_TOKEN", {"LMWARDEN_KEY": "lmw_k"})[1] == "lmw_k"
    assert sourced(text, "ANTHROPIC_AUTH_TOKEN", {})[1] == "unused"


async def test_claude_code_gets_what_keeps_its_prefix_stable(
    warden: FakeWarden, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("claude-code", "--url", warden.url) == 0
    settings = settings_of(capsys.readouterr().out)
    assert settings["ANTHROPIC_BASE_URL"] == warden.url
    assert settings["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert settings["CLAUDE_CODE_GATEWAY_HINT_HEADERS"] == "1"
    assert settings["ENABLE_TOOL_SEARCH"] == "false"
    assert settings["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "200000"
    assert "CLAUDE_CODE_MAX_OUTPUT_TOKENS" not in settings
    assert {settings[name] for name in settings if name.endswith("MODEL")} == {"served"}


@pytest.mark.parametrize(("context", "maximum"), [(32_768, "8192"), (4096, "1024"), (33_000, None), (None, None)])
async def test_claude_code_is_told_to_ask_for_less_where_the_context_is_small(
    context: int | None, maximum: str | None, warden: FakeWarden, capsys: pytest.CaptureFixture[str]
) -> None:
    warden.card = {"id": "served", "max_model_len": context}
    assert await run("claude-code", "--url", warden.url) == 0
    text = capsys.readouterr().out
    assert settings_of(text).get("CLAUDE_CODE_MAX_OUTPUT_TOKENS") == maximum
    assert ("# Warning: a context of" in text) is (maximum is not None)
    assert ("CLAUDE_CODE_MAX_CONTEXT_TOKENS" in settings_of(text)) is (context is not None)


async def test_codex_gets_valid_toml(warden: FakeWarden, capsys: pytest.CaptureFixture[str]) -> None:
    for needed in (False, True):
        warden.key = "lmw_k" if needed else None
        assert await run("codex", "--url", warden.url, "--model", 'or"g/m') == 0
        config = tomllib.loads(capsys.readouterr().out)
        provider = config["model_providers"][config["model_provider"]]
        assert (config["model"], provider["base_url"]) == ('or"g/m', warden.url + "/v1")
        assert ("env_key" in provider) is needed


async def test_codex_and_opencode_are_told_the_context(warden: FakeWarden, capsys: pytest.CaptureFixture[str]) -> None:
    for context, output_tokens in ((200_000, 32_000), (8192, 2048), (None, None)):
        warden.card = {"id": "served", "max_model_len": context}
        assert await run("codex", "--url", warden.url) == 0
        assert tomllib.loads(capsys.readouterr().out).get("model_context_window") == context
        assert await run("opencode", "--url", warden.url) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("//")]
        model = json.loads("\n".join(lines))["provider"]["lmwarden"]["models"]["served"]
        limit = None if context is None else {"context": context, "output": output_tokens}
        assert model.get("limit") == limit


async def test_claude_code_is_told_to_ask_before_it_uses_a_tool(
    warden: FakeWarden, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("claude-code", "--url", warden.url) == 0
    assert "claude --permission-mode default" in capsys.readouterr().out


async def test_opencode_gets_valid_json(warden: FakeWarden, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("opencode", "--url", warden.url, "--key", "lmw_k") == 0
    text = capsys.readouterr().out
    assert "export LMWARDEN_KEY=lmw_k" in text
    config = json.loads("\n".join(line for line in text.splitlines() if not line.startswith("//")))
    provider = config["provider"]["lmwarden"]
    assert provider["options"] == {"baseURL": warden.url + "/v1", "apiKey": "{env:LMWARDEN_KEY}"}
    assert config["model"] == "lmwarden/served"
    assert "served" in provider["models"]


async def test_openai_gets_valid_python(warden: FakeWarden, capsys: pytest.CaptureFixture[str]) -> None:
    for key, given in ((None, []), ("lmw_k", []), ("lmw_k", ["--key", "lmw_k"])):
        warden.key = key
        assert await run("openai", "--url", warden.url, "--model", "m", *given) == 0
        text = capsys.readouterr().out
        compile(text, "printed", "exec")
        assert ('os.environ["LMWARDEN_KEY"]' in text) is (key is not None and not given)


async def test_curl_gets_a_body_that_is_json_whatever_the_model_is_called(
    warden: FakeWarden, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("curl", "--url", warden.url, "--model", "it's", "--key", "lmw_k") == 0
    words = shlex.split(capsys.readouterr().out.replace("\\\n", " "), comments=True)
    assert json.loads(words[words.index("-d") + 1])["model"] == "it's"
    assert "Authorization: Bearer lmw_k" in words


@pytest.mark.parametrize(
    ("about", "says"),
    [
        (
            {"key": "other"},
            "wants an API key; give --key KEY or set LMWARDEN_KEY; a key is made with: lmwarden keys create NAME",
        ),
        ({"body": "nothing here", "status": 404}, "not as a warden's client port (is it the console's"),
        ({"body": "<html>"}, "not as a warden's client port"),
        ({"body": '{"data": []}'}, "not as a warden's client port"),
        ({"url": NOBODY}, "http://127.0.0.1:9 cannot be reached (Connection refused)"),
    ],
)
async def test_without_an_answer_and_a_model_it_is_one_line_and_status_1(
    about: dict[str, str], says: str, warden: FakeWarden, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in about.items():
        setattr(warden, name, value)
    for client in CLIENTS:
        assert await run(client, "--url", warden.url) == 1
        output, errors = capsys.readouterr()
        assert output == ""
        assert errors.startswith("lmwarden: --url: ")
        assert says in errors
        assert "--model NAME" in errors
        assert errors.count("\n") == 1


async def test_a_key_that_is_not_known_there(warden: FakeWarden, capsys: pytest.CaptureFixture[str]) -> None:
    warden.key = "lmw_k"
    assert await run("curl", "--url", warden.url, "--key", "lmw_wrong") == 1
    assert "the given one is not known there" in capsys.readouterr().err


async def test_a_key_in_the_environment_serves_to_ask_and_is_not_printed(
    warden: FakeWarden, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    warden.key = "lmw_k"
    monkeypatch.setenv("LMWARDEN_KEY", "lmw_k")
    for client in CLIENTS:
        assert await run(client, "--url", warden.url) == 0
        text = capsys.readouterr().out
        assert "served" in text
        assert "lmw_k" not in text
        assert "LMWARDEN_KEY" in text


async def test_a_model_that_is_not_listed_is_noted(warden: FakeWarden, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("curl", "--url", warden.url, "--model", "other") == 0
    assert "lists served; other works if it is an alias there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--url", "nonsense"], "--url: 'nonsense': expected http://host:port"),
        (["--url", "http://h:x"], "--url: 'http://h:x': expected http://host:port"),
        (["--model", ""], "--model: must be a text"),
        (["--key", "a\nb"], "--key: must be a text"),
    ],
)
async def test_unusable_arguments(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("claude-code", *arguments) == 2
    assert says in capsys.readouterr().err
