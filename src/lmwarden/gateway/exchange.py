"""One request on its way: from the router's decision to the end of the answer.

Theory of operation. An exchange is offered to the router and waits for its ``Dispatch`` or ``Refuse``. Dispatched, it takes a
connection to the engine and sends. The engine's head is held back until the first byte of its body: up to then
nothing has reached the client, and the exchange may still move elsewhere. From then on bytes go through a relay.

Sent again, at most once, only with no byte to the client, and only if

* connecting failed: the router chooses another replica (the request had not been sent, so this does not count);
* the engine answered 503: likewise, and this counts;
* a connection *from the pool* closed with no byte of an answer: the engine had closed it as the request was on
  its way. The same replica gets it on a fresh connection; the reservation stays;
* the engine is known to be dead or to have restarted (``engine_lost``): the router chooses.

Silence is never a reason: after its limit the upstream connection is closed and the client gets 504. A break
after bytes were relayed cuts the client's connection off without the end of its framing.

Whatever happens, ``_end`` runs once: it closes the ticket, counts, and writes the row.
"""

from __future__ import annotations

import time
from binascii import b2a_hex
from typing import Protocol

import msgspec

from lmwarden.gateway import envelope
from lmwarden.gateway.buffers import BufferBudget
from lmwarden.gateway.client_side import ClientConnection
from lmwarden.gateway.envelope import Problem
from lmwarden.gateway.heads import ResponseLines
from lmwarden.gateway.relay import Framing, Relay, choose_framing, client_head
from lmwarden.gateway.request import ClientRequest
from lmwarden.gateway.routes import Api, Route, Tap
from lmwarden.gateway.serving import ModelService
from lmwarden.gateway.settings import GatewaySettings, RequestLog
from lmwarden.gateway.splice import BodyPart, Edit, apply
from lmwarden.gateway.sse_filter import UsageEventFilter
from lmwarden.gateway.upstream import EnginePool, OnPiece, UpstreamConnection
from lmwarden.gateway.usage import ChatTap, EngineAbortedError, tap_for
from lmwarden.types import Clock, Dispatch, Outcome, Refuse, RequestRecord, RoutingRequest, Usage

_MAX_SENDS = 2
_PINGS = {Api.ANTHROPIC: b'event: ping\ndata: {"type": "ping"}\n\n', Api.OPENAI: b": ping\n\n"}


class ExchangeHost(Protocol):
    """What an exchange needs of the gateway."""

    settings: GatewaySettings
    budget: BufferBudget
    clock: Clock
    request_log: RequestLog
    exchanges: set[Exchange]
    draining: bool


class Exchange(msgspec.Struct, eq=False):
    """One request that the router knows. The first fields are given, the rest is its state."""

    _host: ExchangeHost
    _client: ClientConnection
    _request: ClientRequest
    _route: Route
    service: ModelService
    _routing: RoutingRequest
    streamed: bool
    edits: tuple[Edit, ...] = ()
    """Changes to the body that do not depend on the engine."""
    include_usage_added: bool = False
    model_span: Edit | None = None
    """Where the model's name stands, if some engine knows it by another one."""
    _ticket: int | None = None
    _action: Dispatch | None = None
    _pool: EnginePool | None = None
    _connection: UpstreamConnection | None = None
    _relay: Relay | None = None
    _held_head: bytes | None = None
    """The client's response head, until the first byte of the body."""
    _sends: int = 0
    _retried: bool = False
    _status: int = 0
    _offered_at: float = 0.0
    _dispatched_at: float | None = None
    _first_byte_at: float | None = None
    _quiet: int = 0
    """Sweeps since the engine sent something."""
    _ended: bool = False

    def start(self) -> None:
        """Offer the request to the router."""
        self._client.answering = self
        self._offered_at = self._host.clock()
        self._host.exchanges.add(self)
        ticket = self.service.driver.offer(self, self._routing)
        if self._ticket is None:
            self._ticket = ticket

    # -- the driver's calls ---------------------------------------------------------------------------------

    def dispatched(self, action: Dispatch) -> None:
        """Send it now."""
        self._ticket = action.ticket
        self._action = action
        if self._dispatched_at is None:
            self._dispatched_at = self._host.clock()
        self._quiet = 0
        self._pool = self.service.pools[action.engine]
        self._pool.acquire(self, fresh=False)

    def refused(self, action: Refuse) -> None:
        """The router will not dispatch it, or not again."""
        self._ticket = None  # closed by the router
        outcome = Outcome.REFUSED if self._action is None else Outcome.FAILED
        self._answer(envelope.refusal(action.reason, action.retry_after_s, self._request.api), outcome)

    # -- the upstream connection's calls --------------------------------------------------------------------

    @property
    def wants_connection(self) -> bool:
        """See ``UpstreamUser``."""
        return not self._ended and self._connection is None

    def connected(self, connection: UpstreamConnection) -> None:
        """See ``UpstreamUser``."""
        self._connection = connection
        self._sends += 1
        connection.send(self, self._upstream_request())
        if self._client.write_paused:
            connection.pause(True)

    def connect_failed(self) -> None:
        """See ``UpstreamUser``."""
        assert self._pool is not None
        self._pool.drop_idle()
        self._elsewhere()

    def response_head(self, status: int, lines: ResponseLines) -> OnPiece | None:
        """See ``UpstreamUser``."""
        if status == 503 and self._sends < _MAX_SENDS:
            self._drop_upstream()
            self._elsewhere()
            return None
        route, request = self._route, self._request
        self._status = status
        tap = tap_for(route.tap, status, lines.content_type, lines.content_encoding)
        usage_filter = UsageEventFilter() if self.include_usage_added and type(tap) is ChatTap else None
        framing = choose_framing(lines, status=status, http10=request.http10, filtered=usage_filter is not None)
        self._relay = relay = Relay(framing, tap, usage_filter)
        request.close = request.close or self._host.draining
        self._held_head = client_head(status, lines, framing, self._our_lines(), close=request.close)
        return tap.feed if framing is Framing.RAW else relay.piece

    def response_read(self, raw: bytes, complete: bool) -> None:
        """See ``UpstreamUser``."""
        self._quiet = 0
        relay = self._relay
        assert relay is not None
        if complete:
            self._complete(relay, raw)
            return
        out = relay.read(raw)
        if self._held_head is not None:
            if not raw:
                return
            self._first_byte()
            out = self._held_head + out
            self._held_head = None
        if out:
            self._client.write(out)

    def upstream_lost(self, connection: UpstreamConnection) -> None:
        """See ``UpstreamUser``."""
        self._connection = None
        if self._first_byte_at is not None:
            self._cut(Outcome.FAILED)
        elif connection.reused and not connection.answered and self._sends < _MAX_SENDS:
            self._retried = True
            assert self._pool is not None
            self._pool.acquire(self, fresh=True)
        else:
            self._answer(envelope.ENGINE_BROKE, Outcome.FAILED)

    def upstream_garbled(self, aborted: bool) -> None:
        """See ``UpstreamUser``."""
        self._connection = None
        if self._first_byte_at is not None:
            self._cut(Outcome.FAILED)
        else:
            self._answer(envelope.ENGINE_ABORTED if aborted else envelope.ENGINE_GARBLED, Outcome.FAILED)

    # -- the client connection's calls ----------------------------------------------------------------------

    def client_gone(self) -> None:
        """The client left: stop the engine's work at once."""
        self._drop_upstream()
        self._end(Outcome.CANCELLED, 0 if self._first_byte_at is None else self._status)

    def client_slow(self, slow: bool) -> None:
        """Pass back-pressure on to the engine."""
        if self._connection is not None:
            self._connection.pause(slow)

    # -- the gateway's calls --------------------------------------------------------------------------------

    def engine_lost(self, engine: str) -> None:
        """The engine's process is known to be dead, or was restarted."""
        if self._action is None or self._action.engine != engine or self._ended:
            return
        self._drop_upstream()
        if self._first_byte_at is not None:
            self._cut(Outcome.FAILED)
        elif self._sends < _MAX_SENDS:
            self._held_head = self._relay = None
            self._elsewhere()
        else:
            self._answer(envelope.ENGINE_BROKE, Outcome.FAILED)

    def stop(self) -> None:
        """The gateway's time to drain is over."""
        self._drop_upstream()
        if self._first_byte_at is None:
            self._answer(envelope.DRAINING, Outcome.FAILED)
        else:
            self._cut(Outcome.FAILED)

    def sweep(self) -> None:
        """Look at the time limits; called every ``sweep_s``. In the waiting room the router keeps the time."""
        if self._connection is None or self._client.write_paused:
            return
        settings = self._host.settings
        self._quiet += 1
        quiet_s = self._quiet * settings.sweep_s
        if quiet_s >= (settings.stream_silence_s if self.streamed else settings.answer_silence_s):
            self._drop_upstream()
            if self._first_byte_at is None:
                self._answer(envelope.ENGINE_SILENT, Outcome.TIMEOUT)
            else:
                self._cut(Outcome.TIMEOUT)
        elif self._first_byte_at is not None and quiet_s % settings.ping_s < settings.sweep_s <= quiet_s:
            self._ping()

    # -- inside ---------------------------------------------------------------------------------------------

    def _upstream_request(self) -> list[BodyPart]:
        """The request for the engine that was chosen: its head, and its body in parts."""
        pool, request, action = self._pool, self._request, self._action
        assert pool is not None
        assert action is not None
        edits = self.edits
        if self.model_span is not None:
            edits = (*edits, self.model_span._replace(new=pool.raw_model))
        parts = apply(request.body, edits)
        length = len(request.body)
        for edit in edits:
            length += len(edit.new) - (edit.end - edit.start)
        fragments = [b"POST ", pool.base_path, self._route.path, request.query, pool.fixed_lines, *request.onward]
        if self._route.tap is not None:
            fragments.append(b"Accept-Encoding: identity\r\n")
        elif b"accept-encoding" in request.first:
            fragments += (b"Accept-Encoding: ", request.first[b"accept-encoding"], b"\r\n")
        if action.replica is not None and pool.rank_lines:
            fragments.append(pool.rank_lines[action.replica.rank])
        fragments.append(b"Content-Length: %d\r\n\r\n" % length)
        if length <= _JOIN_BELOW_BYTES:
            return [b"".join((*fragments, *parts))]
        return [b"".join(fragments), *parts]

    def _our_lines(self) -> bytes:
        assert self._action is not None
        assert self._dispatched_at is not None
        lines = self.service.destination(self._action)[1]
        wait_ms = int((self._dispatched_at - self._offered_at) * 1000)
        conversation = self._routing.conversation
        if conversation is None:
            return b"%bX-LMWarden-Wait-Ms: %d\r\n" % (lines, wait_ms)
        return b"%bX-LMWarden-Conversation: %b\r\nX-LMWarden-Wait-Ms: %d\r\n" % (lines, b2a_hex(conversation[:4]), wait_ms)

    def _waited_s(self) -> float:
        until = self._dispatched_at if self._dispatched_at is not None else self._host.clock()
        return until - self._offered_at

    def _first_byte(self) -> None:
        """Nothing goes back from here: the body is not needed any more."""
        now = self._host.clock()
        self._first_byte_at = now
        if self._ticket is not None:
            self.service.driver.router.first_byte(self._ticket, now)
        self._release_body()

    def _release_body(self) -> None:
        request = self._request
        if request.body:
            size = len(request.body)
            request.body = b""
            self._host.budget.give_back(size)
        request.onward = []
        request.first = {}

    def _complete(self, relay: Relay, raw: bytes) -> None:
        """The engine's framing says that this is all."""
        self._connection = None
        try:
            clean = relay.tap.clean_end()
        except EngineAbortedError:
            clean = False
        if not clean:
            if self._first_byte_at is None:
                self._answer(envelope.ENGINE_ABORTED, Outcome.FAILED)
            else:
                self._cut(Outcome.FAILED)
            return
        out = relay.end(raw)
        if self._held_head is not None:
            self._first_byte()
            out = self._held_head + out
            self._held_head = None
        if out:
            self._client.write(out)
        status = self._status
        if status >= 500 or relay.tap.failed:
            outcome = Outcome.FAILED
        else:
            outcome = Outcome.OK if status < 400 else Outcome.CLIENT_ERROR
        self._end(outcome, status)
        self._client.done(close=self._request.close)

    def _elsewhere(self) -> None:
        """Ask the router for another replica; it answers with a Dispatch or a Refuse."""
        assert self._ticket is not None
        self._retried = True
        self.service.driver.failed_before_response(self._ticket)

    def _drop_upstream(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()

    def _answer(self, problem: Problem, outcome: Outcome) -> None:
        """End with an answer of our own."""
        request = self._request
        request.close = request.close or self._host.draining
        response = envelope.render(problem, request.api, close=request.close)
        self._end(outcome, problem.status)
        self._client.answer(response, request)

    def _cut(self, outcome: Outcome) -> None:
        """End in the middle of the answer."""
        relay = self._relay
        self._end(outcome, self._status)
        self._client.cut(reset=relay is not None and relay.framing is Framing.PLAIN)

    def _ping(self) -> None:
        if self._relay is not None:
            event = self._relay.ping(_PINGS[Api.ANTHROPIC if self._route.tap is Tap.MESSAGES else Api.OPENAI])
            if event is not None:
                self._client.write(event)

    def _end(self, outcome: Outcome, status: int) -> None:
        """Close the ticket, count and record, exactly once."""
        if self._ended:
            return
        self._ended = True
        host, service, routing, action = self._host, self.service, self._routing, self._action
        host.exchanges.discard(self)
        usage = self._relay.tap.usage() if self._relay is not None else None
        if self._ticket is not None:
            if outcome is Outcome.CANCELLED:
                service.driver.cancelled(self._ticket)
            else:
                service.driver.finished(self._ticket, outcome, usage)
        now = host.clock()
        first_byte_s = None if self._first_byte_at is None else self._first_byte_at - self._offered_at
        decision = action.decision if action is not None else None
        service.counters.ended(decision, outcome, first_byte_s, usage)
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
                replica=service.destination(action)[0] if action is not None else None,
                outcome=outcome,
                status=status,
                streamed=self.streamed,
                retried=self._retried,
                waited_s=self._waited_s(),
                first_byte_s=first_byte_s,
                duration_s=now - self._offered_at,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
                finish_reason=usage.finish_reason,
            )
        )


_NO_USAGE = Usage()
_JOIN_BELOW_BYTES = 32 * 1024
"""Below this a copy into one buffer is cheaper than a list of buffers."""
