"""Who is served on the client port without an API key? As the configuration says it; for the checks and the keys."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from lmwarden.config import ClientConfig, is_loopback
from lmwarden.console.findings import Check, ok, warning


class Keyless(StrEnum):
    """Whose requests need no key."""

    NOBODY = "nobody"
    THIS_MACHINE = "this_machine"
    """The port is bound to loopback, so nobody else reaches it."""
    EVERYBODY = "everybody"
    """Whoever reaches the port."""


def keyless(client: ClientConfig) -> Keyless:
    """Whose requests are served without a key. ``client``: ``[client]``."""
    if client.key_required:
        return Keyless.NOBODY
    return Keyless.THIS_MACHINE if is_loopback(client.host) else Keyless.EVERYBODY


def check_client(client: ClientConfig) -> Iterator[Check]:
    """The client port: the twin of ``console_open``."""
    match keyless(client):
        case Keyless.NOBODY:
            yield ok("client_open", "the client port asks for a key", guard="key")
        case Keyless.THIS_MACHINE:
            yield ok("client_open", "the client port is reachable from this machine only", guard="this_machine")
        case Keyless.EVERYBODY:
            yield warning(
                "client_open",
                f"the client port listens on {client.host}: whoever reaches it is served, without a key",
                'set client.require_key = true and make keys (lmwarden keys create NAME); or client.host = "127.0.0.1"',
                host=client.host,
            )
