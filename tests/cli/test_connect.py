"""What ``connect`` prints: complete, for each client, from a running warden or without one."""

from __future__ import annotations

import asyncio
import json
import tomllib

import pytest
from aiohttp import web

from lmwarden.cli import main

URL = "http://127.0.0.1:9"
"""Nobody listens there."""


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["connect", *arguments]) == 0
    return capsys.readouterr().out


def without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("client", ["claude-code", "codex", "opencode", "openai", "curl"])
def test_every_client_gets_address_key_and_model(client: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, client, "--url", URL + "/v1/", "--key", "lmw_k", "--model", "org/m")
    assert URL in text
    assert URL + "/v1/v1" not in text
    assert "lmw_k" in text
    assert "org/m" in text
    placeholders = printed(capsys, client, "--url", URL)
    assert "<your key>" in placeholders
    assert "<your model>" in placeholders


def test_claude_code_gets_what_keeps_its_prefix_stable(capsys: pytest.CaptureFixture[str]) -> None:
    lines = without_comments(printed(capsys, "claude-code", "--url", URL, "--model", "m")).splitlines()
    settings = dict(line.removeprefix("export ").split("=", 1) for line in lines)
    assert settings["ANTHROPIC_BASE_URL"] == URL
    assert settings["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert settings["CLAUDE_CODE_GATEWAY_HINT_HEADERS"] == "1"
    assert settings["ENABLE_TOOL_SEARCH"] == "false"
    assert {settings[name] for name in settings if name.endswith("MODEL")} == {"m"}


def test_codex_gets_valid_toml(capsys: pytest.CaptureFixture[str]) -> None:
    config = tomllib.loads(printed(capsys, "codex", "--url", URL, "--model", "m"))
    assert config["model_providers"][config["model_provider"]]["base_url"] == URL + "/v1"


def test_opencode_gets_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads(without_comments(printed(capsys, "opencode", "--url", URL, "--model", "m")))
    provider = config["provider"]["lmwarden"]
    assert provider["options"]["baseURL"] == URL + "/v1"
    assert config["model"] == "lmwarden/m"
    assert "m" in provider["models"]


async def test_a_running_warden_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    authorizations: list[str | None] = []

    async def models(request: web.Request) -> web.Response:
        authorizations.append(request.headers.get("Authorization"))
        return web.json_response({"data": [{"id": "served", "max_model_len": 40960}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        text = await asyncio.to_thread(printed, capsys, "claude-code", "--url", url, "--key", "lmw_k")
    finally:
        await runner.cleanup()
    assert "ANTHROPIC_MODEL=served" in text
    assert "CLAUDE_CODE_MAX_CONTEXT_TOKENS=40960" in text
    assert authorizations == ["Bearer lmw_k"]
