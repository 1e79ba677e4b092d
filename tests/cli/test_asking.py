"""How a command asks a warden: straight where it is on this machine, else as the environment says."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.error
from urllib.request import Request

import pytest

from lmwarden.cli.asking import ask, trouble

TIMEOUT_S = 60.0


class Once:
    """A server that answers one request and keeps its first line."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.line = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection, connection.makefile("rb") as reader:
            self.line = reader.readline()
            while reader.readline() not in (b"\r\n", b""):
                pass
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        self._listener.close()

    def asked(self) -> bytes:
        """The request's first line."""
        self._thread.join(TIMEOUT_S)
        return self.line


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Once:
    """What the environment names as everybody's proxy."""
    proxy = Once()
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy.url)
    return proxy


def answer_of(url: str) -> bytes:
    with ask(Request(f"{url}/x"), TIMEOUT_S) as answer:
        return answer.read()


async def test_this_machine_is_asked_straight(proxied: Once) -> None:
    for url in ((warden := Once()).url, (named := Once()).url.replace("127.0.0.1", "localhost")):
        assert await asyncio.to_thread(answer_of, url) == b"hi"
    assert warden.asked() == named.asked() == b"GET /x HTTP/1.1\r\n"
    assert proxied.line == b""
    assert answer_of(proxied.url) == b"hi"  # it ends


def test_others_are_asked_as_the_environment_says(proxied: Once) -> None:
    assert answer_of("http://warden.invalid:8081") == b"hi"
    assert proxied.asked() == b"GET http://warden.invalid:8081/x HTTP/1.1\r\n"


def test_what_failed_is_said_in_a_few_words() -> None:
    assert trouble(urllib.error.URLError(TimeoutError()), 3.0) == "no answer within 3 s"
    assert trouble(TimeoutError(), 0.5) == "no answer within 0.5 s"
    assert (
        trouble(urllib.error.URLError(ConnectionRefusedError(111, "Connection refused")), 3.0) == "Connection refused"
    )
    assert trouble(ValueError("x"), 3.0) == "no valid answer"
