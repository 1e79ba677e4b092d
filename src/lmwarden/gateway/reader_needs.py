"""What the reading half of a client connection needs: somebody who judges heads, and another half that is told."""

from __future__ import annotations

from typing import Protocol

from lmwarden.gateway.buffers import BufferBudget
from lmwarden.gateway.envelope import Problem
from lmwarden.gateway.request import ClientRequest
from lmwarden.gateway.settings import GatewaySettings


class Judge(Protocol):
    """What reading needs of the gateway."""

    settings: GatewaySettings
    budget: BufferBudget
    read_buffer: memoryview

    def examine(self, request: ClientRequest) -> Problem | None:
        """Judge a request by its head."""
        ...

    def check_key(self, request: ClientRequest) -> Problem | None:
        """Check the key of a request whose head was judged before."""
        ...


class ReaderEvents:
    """What a reader reports. The other half overrides all of it."""

    __slots__ = ()

    def resume_body(self) -> None:
        """There is room for request bodies again."""
        raise RuntimeError("a reader is one half of a connection")

    def queue_full(self) -> None:
        """``requests`` holds as many as it may."""
        raise RuntimeError("a reader is one half of a connection")

    def continue_wanted(self) -> None:
        """The client waits for a 100."""
        raise RuntimeError("a reader is one half of a connection")
