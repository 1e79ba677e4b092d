"""Who is served on the client port without a key, and that it is warned of where that is everybody."""

from __future__ import annotations

import pytest

from lmwarden.config import ClientConfig, Flag, load
from lmwarden.console.check_client import Keyless, check_client, keyless
from lmwarden.console.findings import Level


def client(host: str, require_key: bool | str) -> ClientConfig:
    flags = [
        Flag("--engine", ("models",), [{"engine": {"attach": ["http://h:1"]}}]),
        Flag("--host", ("client", "host"), host),
        Flag("--require-key", ("client", "require_key"), require_key),
    ]
    return load(None, flags).client


@pytest.mark.parametrize(
    ("host", "require_key", "whose", "says"),
    [
        ("127.0.0.1", "auto", Keyless.THIS_MACHINE, "reachable from this machine only"),
        ("::1", False, Keyless.THIS_MACHINE, "reachable from this machine only"),
        ("127.0.0.1", True, Keyless.NOBODY, "asks for a key"),
        ("0.0.0.0", "auto", Keyless.NOBODY, "asks for a key"),
        ("0.0.0.0", False, Keyless.EVERYBODY, "listens on 0.0.0.0: whoever reaches it is served"),
        ("10.1.2.3", False, Keyless.EVERYBODY, "listens on 10.1.2.3: whoever reaches it is served"),
    ],
)
def test_whose_requests_need_no_key(host: str, require_key: bool | str, whose: Keyless, says: str) -> None:
    configured = client(host, require_key)
    assert keyless(configured) is whose
    (check,) = check_client(configured)
    assert check.code == "client_open"
    assert says in check.text
    assert check.level is (Level.WARNING if whose is Keyless.EVERYBODY else Level.OK)
    assert bool(check.what_to_do) is (whose is Keyless.EVERYBODY)
