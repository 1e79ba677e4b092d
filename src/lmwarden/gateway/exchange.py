"""One request on its way: from the router's decision to the end of the answer.

Theory of operation. An exchange is offered to the router and waits for its ``Dispatch`` or ``Refuse``. Dispatched,
it takes a connection to the engine and sends. The engine's head is held back until the first byte of its body: up
to then nothing has reached the client, and the exchange may still move elsewhere. From then on bytes go through a
relay. (An error is held until it is whole: ``engine_errors``.)

Sent again, at most once, only with no byte to the client, and only if

* connecting failed: the router chooses another replica (the request had not been sent, so this does not count);
* the engine answered 503: likewise, and this counts;
* a connection *from the pool* closed with no byte of an answer: the engine had closed it as the request was on
  its way. The same replica gets it on a fresh connection; the reservation stays;
* the engine is known to be dead or to have restarted (``engine_lost``): the router chooses.

A connection that closed otherwise before its answer is a *suspicion*: the kernel closes the connections of a process
that is killed, and the word of its end comes a moment later, or never, if the process is not ours. So the exchange has
the engine's port tried (``EnginePool.probe``). Refused means that the process which held both the listener and the
connection is gone, or has closed both and serves nobody any more: known dead. As long as somebody listens, the request
may still be running; then the word is waited for (``verdict_s``), and without it the answer is 502.

Silence is never a reason: after its limit the upstream connection is closed and the client gets 504. As long as
nothing has reached the client, the limit counts from the complete request, as the client's own does: what it waited in
the waiting room, and with another engine, is part of it. A break after bytes were relayed cuts the client's connection
off without the end of its framing.

Whatever happens, ``_end`` runs once (``exchange_books``): it closes the ticket, counts, and writes the row.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lmwarden.gateway import envelope
from lmwarden.gateway.client_kind import client_of, kind_of
from lmwarden.gateway.client_side import ClientConnection
from lmwarden.gateway.engine_errors import HeldError
from lmwarden.gateway.envelope import Problem
from lmwarden.gateway.exchange_books import NOWHERE, ExchangeBooks, ExchangeHost
from lmwarden.gateway.forward import our_lines, upstream_request
from lmwarden.gateway.heads import ResponseLines
from lmwarden.gateway.pool import EnginePool
from lmwarden.gateway.relay import PLAIN, RAW, client_head, relay_for
from lmwarden.gateway.request import ClientRequest
from lmwarden.gateway.routes import Api, Route, Tap
from lmwarden.gateway.serving import ModelService
from lmwarden.gateway.splice import Edit
from lmwarden.gateway.upstream import OnPiece, UpstreamConnection
from lmwarden.gateway.usage_counts import EngineAbortedError
from lmwarden.types import Dispatch, Outcome, Refuse, RoutingRequest

_MAX_SENDS = 2
_OK: Final = Outcome.OK
_CANCELLED: Final = Outcome.CANCELLED
_RESPONSES: Final = Tap.RESPONSES
_LEAST_ANSWER_S = 5.0
"""So long an engine may be silent at the least, whatever the request had waited before."""
_PINGS = {Api.ANTHROPIC: b'event: ping\ndata: {"type": "ping"}\n\n', Api.OPENAI: b": ping\n\n"}


class Exchange(ExchangeBooks):
    """One request on its way."""

    __slots__ = (
        "_connecting",
        "_connection",
        "_held_head",
        "_pool",
        "_quiet",
        "_sends",
        "_status",
        "_suspicious",
        "edits",
        "include_usage_added",
        "model_span",
    )

    def __init__(
        self,
        host: ExchangeHost,
        client: ClientConnection,
        request: ClientRequest,
        route: Route,
        service: ModelService,
        routing: RoutingRequest,
        streamed: bool,
    ) -> None:
        self._host = host
        self._client = client
        self._request = request
        self._route = route
        self.service = service
        self._routing = routing
        self.streamed = streamed
        self.edits: tuple[Edit, ...] = ()
        """Changes to the body that do not depend on the engine."""
        self.include_usage_added = False
        self.model_span: Edit | None = None
        """Where the model's name stands, if some engine knows it by another one."""
        self._ticket = None
        self._action = None
        self._destination = NOWHERE
        self._pool: EnginePool | None = None
        self._connecting: asyncio.Task[None] | None = None
        """Opens a connection, or probes: cancelled if nobody wants to know any more."""
        self._connection: UpstreamConnection | None = None
        self._suspicious = False
        """The connection closed before the answer: is the engine dead?"""
        self._relay = None
        self._held_head: bytes | None = None
        """The client's response head, until the first byte of the body."""
        self._sends = 0
        self._retried = False
        self._status = 0
        self._offered_at = 0.0
        self._waited_s = 0.0
        self._dispatched_at = None
        self._first_byte_at = None
        self._quiet = 0
        """Sweeps since the engine sent something, or since the suspicion."""
        self._ended = False
        self._asked_by = client_of(request.first) if request.notes is None else request.notes.client
        self._kind = kind_of(routing, request.first)
        self.fields = None
        self._grounds = None
        self._job = None

    def start(self) -> None:
        """Offer the request to the router."""
        self._client.answering = self
        self._offered_at = now = self._host.clock()
        self._host.exchanges.add(self)
        ticket = self.service.driver.offer(self, self._routing, now)
        if self._ticket is None:
            self._ticket = ticket

    # -- the driver's calls ---------------------------------------------------------------------------------

    def dispatched(self, action: Dispatch) -> None:
        """Send it now."""
        if self._ticket is None:  # at once
            self._ticket = action.ticket
            self._dispatched_at = self._offered_at
        elif self._dispatched_at is None:
            self._dispatched_at = now = self._host.clock()
            self._has_waited(now)
        self._action = action
        self._destination = self.service.destination(action)
        self._quiet = 0
        self._pool = self.service.pools[action.engine]
        self._connecting = self._pool.acquire(self, fresh=False)

    def refused(self, action: Refuse) -> None:
        """The router will not dispatch it, or not again."""
        if self._ticket is not None and self._action is None:
            self._has_waited(self._host.clock())
        self._ticket = None  # closed by the router
        outcome = Outcome.REFUSED if self._action is None else Outcome.FAILED
        sent = self._sends > 0
        self._answer(envelope.refusal(action.reason, action.retry_after_s, self._request.api, sent=sent), outcome)

    # -- the pool's calls -----------------------------------------------------------------------------------

    def connected(self, connection: UpstreamConnection) -> None:
        """See ``PoolUser``."""
        self._connecting = None
        self._connection = connection
        self._sends += 1
        assert self._pool is not None
        assert self._action is not None
        edits = self.edits
        if self.model_span is not None:
            edits = (*edits, self.model_span._replace(new=self._pool.raw_model))
        connection.send(self, upstream_request(self._request, self._route, self._pool, self._action, edits))
        if self._client.write_paused:
            connection.pause(True)
        self._note_sent()

    def connect_failed(self) -> None:
        """See ``PoolUser``."""
        assert self._pool is not None
        self._pool.drop_idle()
        self._elsewhere()

    def cannot_connect(self) -> None:
        """See ``PoolUser``: answered as too much at once, and no replica is to blame."""
        self._connecting = None
        self._answer(envelope.no_connection(self._request.api), Outcome.REFUSED)

    def nobody_listens(self) -> None:
        """See ``PoolUser``: its engine is dead."""
        self.connect_failed()

    # -- the upstream connection's calls --------------------------------------------------------------------

    def response_head(self, status: int, lines: ResponseLines) -> OnPiece | None:
        """See ``UpstreamUser``."""
        if status == 503 and self._sends < _MAX_SENDS:
            self._drop_upstream()
            self._elsewhere()
            return None
        route, request = self._route, self._request
        self._status = status
        response_made = None
        if route.tap is _RESPONSES:
            assert self._action is not None
            response_made = self.service.responses.learner(request.key_digest, self._action.engine)
        relay, onward = relay_for(
            route.tap,
            status,
            lines,
            http10=request.http10,
            accept_encoding=request.first.get(b"accept-encoding"),
            usage_hidden=self.include_usage_added,
            response_made=response_made,
        )
        self._relay = relay
        if self._host.draining:
            request.close = True
        conversation = self._routing.conversation if self._grounds is None else self._grounds.conversation
        ours = our_lines(self._destination[1], conversation, self._waited_s)
        self._held_head = head = client_head(status, onward, relay.framing, ours, close=request.close)
        if status >= 400:
            self._held_head = b""  # it goes with the body
            self._relay = held = HeldError(
                relay.framing,
                relay.tap,
                as_it_comes=relay,
                head=head,
                status=status,
                lines=lines,
                api=request.api,
                ours=ours,
                close=request.close,
            )
            return held.piece
        return relay.tap.feed if relay.framing is RAW else relay.piece

    def response_read(self, raw: bytes) -> None:
        """See ``UpstreamUser``."""
        self._quiet = 0
        relay = self._relay
        assert relay is not None
        out = relay.read(raw)
        if self._held_head is not None:
            if not raw or (not out and self._status >= 400):
                return
            self._first_byte(self._host.clock())
            out = self._held_head + out
            self._held_head = None
        if out:
            self._client.write(out)

    def response_complete(self, raw: bytes) -> None:
        """See ``UpstreamUser``: the engine's framing says that this is all."""
        relay = self._relay
        assert relay is not None
        self._connection = None
        try:
            problem = None if relay.tap.clean_end() else envelope.ENGINE_BROKE
        except EngineAbortedError:
            problem = envelope.ENGINE_ABORTED
        if problem is not None:
            if self._first_byte_at is not None:
                self._cut(Outcome.FAILED)
            elif problem is envelope.ENGINE_BROKE and not raw and self._sends < _MAX_SENDS:
                self._suspect()  # its end was that of the connection
            else:
                self._answer(problem, Outcome.FAILED)
            return
        now = self._host.clock()
        out = relay.end(raw)
        if self._held_head is not None:
            self._first_byte(now)
            out = self._held_head + out
            self._held_head = None
        if out:
            self._client.write(out)
        status = self._status
        outcome = _OK if status < 400 else Outcome.CLIENT_ERROR
        if status >= 500 or relay.tap.failed:
            outcome = Outcome.FAILED
        self._end(outcome, status, now)
        self._client.done(close=self._request.close)

    def upstream_lost(self, connection: UpstreamConnection) -> None:
        """See ``UpstreamUser``."""
        self._connection = None
        if self._first_byte_at is not None:
            self._cut(Outcome.FAILED)
        elif self._sends >= _MAX_SENDS:
            self._answer(envelope.ENGINE_BROKE, Outcome.FAILED)
        elif connection.reused and not connection.answered:
            self._retried = True
            assert self._pool is not None
            self._connecting = self._pool.acquire(self, fresh=True)
        else:
            self._suspect()

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
        self._end(_CANCELLED, 0 if self._first_byte_at is None else self._status, self._host.clock())

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
            self._elsewhere()
        else:
            self._answer(envelope.ENGINE_BROKE, Outcome.FAILED)

    def stop(self) -> None:
        """The gateway's time to drain is over."""
        self._drop_upstream()
        if self._first_byte_at is None:
            self._answer(envelope.DRAINING, Outcome.REFUSED if self._action is None else Outcome.FAILED)
        else:
            self._cut(Outcome.FAILED)

    def sweep(self) -> None:
        """Look at the time limits; called every ``sweep_s``. In the waiting room the router keeps the time."""
        settings = self._host.settings
        if self._connection is None or self._client.write_paused:
            if self._suspicious:
                self._quiet += 1
                if (self._quiet - 1) * settings.sweep_s >= settings.verdict_s:
                    self._drop_upstream()
                    self._answer(envelope.ENGINE_BROKE, Outcome.FAILED)
            return
        if self._quiet == 0 and self._connection.answered:
            assert self._pool is not None
            self._pool.heard = True
        self._quiet += 1
        quiet_s = self._quiet * settings.sweep_s
        if self._was_silent_too_long(quiet_s):
            self._drop_upstream()
            if self._first_byte_at is None:
                self._answer(envelope.ENGINE_SILENT, Outcome.TIMEOUT)
            else:
                self._cut(Outcome.TIMEOUT)
        elif self._first_byte_at is not None and quiet_s % settings.ping_s < settings.sweep_s <= quiet_s:
            self._ping()

    def _was_silent_too_long(self, quiet_s: float) -> bool:
        """Whether the engine, silent for ``quiet_s`` real seconds, is given up."""
        settings = self._host.settings
        limit_s = settings.stream_silence_s if self.streamed else settings.answer_silence_s
        if self._first_byte_at is not None:
            return quiet_s >= limit_s
        client_waits_s = (self._host.clock() - self._offered_at) / settings.clock_rate
        return client_waits_s >= limit_s and quiet_s >= min(limit_s, _LEAST_ANSWER_S)

    # -- inside ---------------------------------------------------------------------------------------------

    def _first_byte(self, now: float) -> None:
        """Nothing goes back from here: the body is not needed any more."""
        self._first_byte_at = now
        if self._ticket is not None:
            self.service.driver.router.first_byte(self._ticket, now)
        self._release_body()
        if self.streamed:
            self.edits = ()
            self._client.stream_begins()

    def _suspect(self) -> None:
        """The engine broke off with no byte to the client: is it dead?"""
        assert self._pool is not None
        self._suspicious = True
        self._quiet = 0
        self._connecting = self._pool.probe(self)

    def _elsewhere(self) -> None:
        """Ask the router for another replica; it answers with a Dispatch or a Refuse."""
        assert self._ticket is not None
        self._retried = True
        self._suspicious = False
        self._held_head = self._relay = None
        self.service.driver.failed_before_response(self._ticket)

    def _drop_upstream(self) -> None:
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()

    def _answer(self, problem: Problem, outcome: Outcome) -> None:
        """End with an answer of our own."""
        request = self._request
        request.close = request.close or self._host.draining
        response = envelope.render(problem, request.api, close=request.close)
        self._end(outcome, problem.status, self._host.clock())
        self._client.answer(response, request)

    def _cut(self, outcome: Outcome) -> None:
        """End in the middle of the answer."""
        relay = self._relay
        self._end(outcome, self._status, self._host.clock())
        self._client.cut(reset=relay is not None and relay.framing is PLAIN)

    def _ping(self) -> None:
        if self._relay is not None:
            event = self._relay.ping(_PINGS[Api.ANTHROPIC if self._route.tap is Tap.MESSAGES else Api.OPENAI])
            if event is not None:
                self._client.write(event)
