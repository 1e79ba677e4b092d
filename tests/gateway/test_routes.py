"""The surface of the client port."""

from __future__ import annotations

import pytest

from lmwarden.gateway.routes import ROUTES, Api, api_of, find_route, split_target

LISTED = {
    "POST": [
        "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
        "/v1/embeddings", "/tokenize",
    ],
    "GET": ["/v1/models", "/healthz", "/readyz"],
    "HEAD": ["/", "/api/hello"],
}  # fmt: skip


def test_exactly_what_is_listed_is_served() -> None:
    listed = {(method.encode(), path.encode()) for method, paths in LISTED.items() for path in paths}
    assert {(route.method, route.path) for route in ROUTES.values()} == listed
    assert {route.name for route in ROUTES.values() if not route.needs_key} == {
        "/",
        "/api/hello",
        "/healthz",
        "/readyz",
    }


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/", "//v1/messages", "/v1//messages//"])
def test_slashes_are_forgiven(path: str) -> None:
    route = find_route(path.encode())
    assert route is not None
    assert route.path == b"/v1/messages"


@pytest.mark.parametrize(
    "path",
    ["", "*", "v1/messages", "/v1/../sleep", "/v1/%2e%2e/sleep", "/V1/messages", "/v1/messages%2f", "/sleep", "/v1"],
)
def test_nothing_else_is(path: str) -> None:
    assert find_route(path.encode()) is None


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/v1/messages?beta=true&a=?%41", "/v1/messages", "?beta=true&a=?%41"),
        ("/v1/messages", "/v1/messages", ""),
        ("/v1/messages?", "/v1/messages", "?"),
        ("http://evil.test/v1/messages?x=1", "/v1/messages", "?x=1"),
        ("http://evil.test", "/", ""),
        ("/a?u=http://x/y", "/a", "?u=http://x/y"),
    ],
)
def test_split_target(target: str, path: str, query: str) -> None:
    assert split_target(target.encode()) == (path.encode(), query.encode())


def test_api_of_unserved_paths() -> None:
    assert api_of(b"//v1/messages/nothing") is Api.ANTHROPIC
    assert api_of(b"/v1/nothing") is Api.OPENAI
