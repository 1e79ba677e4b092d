"""The books of one request: what is known of it, and its end, which is entered exactly once.

One half of an ``Exchange``; the other half carries the request out. ``_end`` closes the ticket, counts, gives back what
was held and writes the row, whatever happened before and however often it is called.
"""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

from lmwarden.gateway.buffers import BufferBudget
from lmwarden.gateway.client_side import ClientConnection
from lmwarden.gateway.driver import HeldRequest
from lmwarden.gateway.prefix_watch import PrefixJob, PrefixWatch
from lmwarden.gateway.relay import Relay
from lmwarden.gateway.request import NO_HEADERS, ClientRequest
from lmwarden.gateway.routes import Route
from lmwarden.gateway.serving import ModelService
from lmwarden.gateway.settings import GatewaySettings, RequestLog
from lmwarden.routing.fields import RequestFields
from lmwarden.types import (
    Clock,
    Dispatch,
    Grounds,
    Outcome,
    PrefixChange,
    RequestRecord,
    RoutingRequest,
    Usage,
)

_CANCELLED: Final = Outcome.CANCELLED
_NO_USAGE: Final = Usage()
_NO_GROUNDS: Final = Grounds()
_NO_PREFIX: Final = (None, None, None)
"""Change, shared ratio and recomputed tokens of a prompt that nobody looked at."""
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
    prefixes: PrefixWatch | None
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
        "_asked_by",
        "_client",
        "_destination",
        "_dispatched_at",
        "_ended",
        "_first_byte_at",
        "_grounds",
        "_host",
        "_job",
        "_kind",
        "_offered_at",
        "_relay",
        "_request",
        "_retried",
        "_route",
        "_routing",
        "_ticket",
        "_waited_s",
        "fields",
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
    _waited_s: float
    """In the waiting room; 0 also while it is there."""
    _dispatched_at: float | None
    _first_byte_at: float | None
    _ended: bool
    _asked_by: str | None
    _kind: str | None
    """See ``client_kind``."""
    fields: RequestFields | None
    """Of the body, until it was sent, if somebody looks at prompts."""
    _grounds: Grounds | None
    """What the last decision was made on."""
    _job: PrefixJob | None
    """Its prompt, in the hands of whoever looks at it."""

    @property
    def waits(self) -> bool:
        """The router has not decided yet."""
        return self._action is None

    def held(self) -> HeldRequest:
        """As it stands in the waiting room."""
        routing, key = self._routing, self._request.key
        name = key.name if key is not None else None
        return HeldRequest(routing.conversation, routing.parent, routing.derived, self._offered_at, name)

    def _has_waited(self, now: float) -> None:
        """It leaves the waiting room, whichever way."""
        self._waited_s = now - self._offered_at
        self.service.counters.waited(self._waited_s)

    def _note_sent(self) -> None:
        """It is on its way: keep what was decided on, and hand its prompt to whoever looks at it."""
        if self._ticket is not None:
            self._grounds = self.service.driver.router.grounds(self._ticket)
        fields, self.fields = self.fields, None
        watch, routing = self._host.prefixes, self._routing
        if fields is not None and watch is not None:
            assert self._dispatched_at is not None
            self._job = watch.sent(
                fields,
                routing.body_bytes,
                key=routing.conversation if self._grounds is None else self._grounds.conversation,
                parent=routing.parent,
                auxiliary=routing.auxiliary,
                compacted=b"x-claude-code-context-compacted" in self._request.first,
                sent_at=self._dispatched_at,
            )

    def _release_body(self) -> None:
        request = self._request
        if request.body:
            size = len(request.body)
            request.body = b""
            self._host.budget.give_back(size)
        request.onward = ()
        request.first = NO_HEADERS
        request.credential = None
        request.notes = None

    def _end(self, outcome: Outcome, status: int, now: float) -> None:
        """Close the ticket, count and record, exactly once."""
        if self._ended:
            return
        self._ended = True
        host, service, routing, action = self._host, self.service, self._routing, self._action
        host.exchanges.discard(self)
        if host.draining:
            host.check_drained()
        usage = self._relay.tap.usage() if self._relay is not None else None
        if self._ticket is not None:
            if self._grounds is None:
                self._grounds = service.driver.router.grounds(self._ticket)
            if outcome is _CANCELLED or action is None:  # what was never sent cannot be finished
                service.driver.cancelled(self._ticket)
            else:
                service.driver.finished(self._ticket, outcome, usage, now)
            if action is None:
                self._has_waited(now)
        first_byte_s = None
        if self._first_byte_at is None:
            self._release_body()
        else:
            first_byte_s = self._first_byte_at - self._offered_at
        decision = action.decision if action is not None else None
        service.counters.ended(decision, outcome, first_byte_s, usage)
        request = self._request
        usage = usage if usage is not None else _NO_USAGE
        grounds = self._grounds or _NO_GROUNDS
        conversation = routing.conversation if grounds is _NO_GROUNDS else grounds.conversation
        prefix: tuple[PrefixChange | None, float | None, int | None] = _NO_PREFIX
        if self._job is not None and action is not None and host.prefixes is not None:
            replica = self._destination[0] if action.replica is not None else None
            prefix = host.prefixes.ended(self._job, action, replica, service.runs, usage, now)
        host.request_log.record(
            RequestRecord(  # in the order of its fields: so many names would cost more than all the rest of it
                time.time(),
                service.name,
                self._route.name,
                request.key.name if request.key is not None else None,
                conversation[:4].hex() if conversation is not None else None,
                routing.derived,
                decision,
                self._destination[0],
                outcome,
                status,
                self.streamed,
                self._retried,
                self._waited_s,
                first_byte_s,
                now - self._offered_at,
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.completion_tokens,
                usage.finish_reason,
                conversation,
                routing.parent,
                self._asked_by,
                self._kind,
                routing.body_bytes,
                grounds.why,
                grounds.home,
                grounds.home_in_flight,
                grounds.spill_threshold,
                grounds.candidates,
                prefix[0],
                prefix[1],
                prefix[2],
            )
        )
