"""The books of one request: what is known of it, and its end, which is entered exactly once.

One half of an ``Exchange``; the other half carries the request out. ``_end`` closes the ticket, counts, gives back what
was held and writes the row, whatever happened before and however often it is called.
"""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

from lmwarden.gateway.buffers import BufferBudget
from lmwarden.gateway.client_side import ClientConnection
from lmwarden.gateway.relay import Relay
from lmwarden.gateway.request import NO_HEADERS, ClientRequest
from lmwarden.gateway.routes import Route
from lmwarden.gateway.serving import ModelService
from lmwarden.gateway.settings import GatewaySettings, RequestLog
from lmwarden.types import Clock, Dispatch, Outcome, RequestRecord, RoutingRequest, Usage

_CANCELLED: Final = Outcome.CANCELLED
_NO_USAGE: Final = Usage()
NOWHERE: Final = (None, b"")
"""The destination of a request that was not dispatched."""


class OpenExchanges(Protocol):
    """A set."""

    def add(self, element: Any, /) -> None:
        """It begins."""
        ...

    def discard(self, element: Any, /) -> None:
        """It has ended."""
        ...


class ExchangeHost(Protocol):
    """What an exchange needs of the gateway."""

    settings: GatewaySettings
    budget: BufferBudget
    clock: Clock
    request_log: RequestLog
    draining: bool

    @property
    def exchanges(self) -> OpenExchanges:
        """Those that have not ended."""
        ...

    def check_drained(self) -> None:
        """An exchange ended while the gateway drains."""
        ...


class ExchangeBooks:
    """What is known of one request that the router knows. The other half makes it."""

    __slots__ = (
        "_action",
        "_client",
        "_destination",
        "_dispatched_at",
        "_ended",
        "_first_byte_at",
        "_host",
        "_offered_at",
        "_relay",
        "_request",
        "_retried",
        "_route",
        "_routing",
        "_ticket",
        "service",
        "streamed",
    )

    _host: ExchangeHost
    _client: ClientConnection
    _request: ClientRequest
    _route: Route
    service: ModelService
    _routing: RoutingRequest
    streamed: bool
    _ticket: int | None
    _action: Dispatch | None
    """The last one."""
    _destination: tuple[str | None, bytes]
    """Where that leads, see ``ModelService.destination``."""
    _relay: Relay | None
    _retried: bool
    _offered_at: float
    _dispatched_at: float | None
    _first_byte_at: float | None
    _ended: bool

    def _release_body(self) -> None:
        request = self._request
        if request.body:
            size = len(request.body)
            request.body = b""
            self._host.budget.give_back(size)
        request.onward = ()
        request.first = NO_HEADERS

    def _end(self, outcome: Outcome, status: int) -> None:
        """Close the ticket, count and record, exactly once."""
        if self._ended:
            return
        self._ended = True
        host, service, routing, action = self._host, self.service, self._routing, self._action
        host.exchanges.discard(self)
        if host.draining:
            host.check_drained()
        now = host.clock()
        usage = self._relay.tap.usage() if self._relay is not None else None
        if self._ticket is not None:
            if outcome is _CANCELLED:
                service.driver.cancelled(self._ticket)
            else:
                service.driver.finished(self._ticket, outcome, usage, now)
        first_byte_s = None if self._first_byte_at is None else self._first_byte_at - self._offered_at
        decision = action.decision if action is not None else None
        service.counters.ended(decision, outcome, first_byte_s, usage)
        if self._first_byte_at is None:
            self._release_body()
        request = self._request
        usage = usage if usage is not None else _NO_USAGE
        host.request_log.record(
            RequestRecord(
                finished_at=time.time(),
                model=service.name,
                endpoint=self._route.name,
                key_name=request.key.name if request.key is not None else None,
                conversation=routing.conversation[:4].hex() if routing.conversation is not None else None,
                derived=routing.derived,
                decision=decision,
                replica=self._destination[0],
                outcome=outcome,
                status=status,
                streamed=self.streamed,
                retried=self._retried,
                waited_s=(self._dispatched_at if self._dispatched_at is not None else now) - self._offered_at,
                first_byte_s=first_byte_s,
                duration_s=now - self._offered_at,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
                finish_reason=usage.finish_reason,
            )
        )
