"""From a complete client request to an offer to the router.

The body is read once, partially: the members that we need stay undecoded slices of it. What is missing or wrong
here is the client's mistake and gets a 4xx; everything else in the body is the engine's to judge.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lmwarden.gateway import envelope
from lmwarden.gateway.billing_line import without_billing_line
from lmwarden.gateway.client_side import ClientConnection
from lmwarden.gateway.envelope import Problem
from lmwarden.gateway.exchange import Exchange
from lmwarden.gateway.exchange_books import ExchangeHost
from lmwarden.gateway.models import ModelNames
from lmwarden.gateway.prefix_watch import MOST_BODY_BYTES
from lmwarden.gateway.request import ClientRequest
from lmwarden.gateway.responses import Origin, continued_response
from lmwarden.gateway.routes import Route, Tap
from lmwarden.gateway.scope import may_use, shown
from lmwarden.gateway.serving import ModelService
from lmwarden.gateway.settings import ServedModel
from lmwarden.gateway.splice import CannotSpliceError, include_usage, is_true, replace
from lmwarden.routing.fields import RequestFields, decode_fields
from lmwarden.routing.identity import Asker
from lmwarden.routing.opening import is_resumed, opening
from lmwarden.types import KeyIdentity, ReplicaId, RoutingRequest

_MAX_PINS_SHOWN = 64
_NOT_STREAMED = (b"", b"false")
_RESPONSES: Final = Tap.RESPONSES


def take(
    host: ExchangeHost, names: ModelNames[ModelService], client: ClientConnection, request: ClientRequest, route: Route
) -> Problem | None:
    """Offer a request to its model's router. Returns why not, or None: then an exchange has it."""
    try:
        exchange = _read(host, names, client, request, route)
    except (msgspec.DecodeError, RecursionError):  # a later look may go deeper than the first
        return envelope.BAD_JSON
    except CannotSpliceError as error:
        return Problem(400, f"The member '{error}' of the request body must be written once, without escapes.")
    if isinstance(exchange, Problem):
        return exchange
    exchange.start()
    return None


def _read(
    host: ExchangeHost, names: ModelNames[ModelService], client: ClientConnection, request: ClientRequest, route: Route
) -> Exchange | Problem:
    """Make an exchange of a request.

    Raises:
        msgspec.DecodeError: the body is no JSON object.
        RecursionError: it is nested too deeply.
        CannotSpliceError: it cannot be edited.
    """
    fields = decode_fields(request.body)
    raw_model = bytes(fields.model)
    service = names.find(raw_model)
    if service is None or not may_use(request.key, service.name):
        return _no_model(raw_model, names, request.key)
    pin = None
    if b"x-data-parallel-rank" in request.first or b"x-lmwarden-replica" in request.first:
        wanted = read_pin(request, service)
        if isinstance(wanted, Problem):
            return wanted
        pin = wanted
    engine = None
    if route.tap is _RESPONSES:
        kept_by = engine_to_continue(request, service, fields, pin)
        if isinstance(kept_by, Problem):
            return kept_by
        engine = kept_by
    stream = bytes(fields.stream)
    streamed = stream == b"true" or (stream not in _NOT_STREAMED and is_true(stream))
    routing = routing_request(request, route, service, fields, pin, engine)
    exchange = Exchange(host, client, request, route, service, routing, streamed)
    if (
        raw_model != service.only_raw_name
        or (streamed and route.adds_include_usage)
        or service.served.drop_billing_line
    ):
        _edit(exchange, request, route, service, fields, raw_model)
    if route.tap is not None:
        if host.prefixes is not None:
            if routing.body_bytes <= MOST_BODY_BYTES:
                exchange.fields = fields
            else:
                host.prefixes.dropped += 1
        service.counters.identified(routing.conversation, routing.derived)
    return exchange


def _edit(
    exchange: Exchange,
    request: ClientRequest,
    route: Route,
    service: ModelService,
    fields: RequestFields,
    raw_model: bytes,
) -> None:
    if route.adds_include_usage and exchange.streamed:
        edit = include_usage(request.body, bytes(fields.stream_options))
        if edit is not None:
            exchange.edits = (edit,)
            exchange.include_usage_added = True
    elif service.served.drop_billing_line and route.tap is Tap.MESSAGES:
        edit = without_billing_line(request.body, fields)
        if edit is not None:
            exchange.edits = (edit,)
    if raw_model and raw_model != service.only_raw_name:
        other = next(pool.raw_model for pool in service.pools.values() if pool.raw_model != raw_model)
        exchange.model_span = replace(request.body, "model", raw_model, other)


def routing_request(
    request: ClientRequest,
    route: Route,
    service: ModelService,
    fields: RequestFields,
    pin: ReplicaId | None,
    engine: str | None = None,
) -> RoutingRequest:
    """What the router gets to know. Calls that are no generations belong to no conversation."""
    pinnable = (route.honours_rank and route.name not in service.ignoring_rank) or not service.multi_rank
    if route.tap is None:
        return RoutingRequest(auxiliary=True, pin=pin, pinnable=pinnable, body_bytes=len(request.body))
    served = service.served
    identity = _asker(request, served).identify(fields)
    found = identity.opening
    conversation = identity.conversation
    resumed = False
    if found is None and conversation is not None and service.driver.router.wants_opening(conversation):
        found = opening(fields, secret=served.identity_secret, model=served.name)
        resumed = is_resumed(fields)
    limit = fields.max_tokens or fields.max_completion_tokens or fields.max_output_tokens
    return RoutingRequest(  # in the order of its fields, as a row is
        conversation,
        identity.parent,
        identity.derived,
        found,
        resumed,
        identity.auxiliary,
        pin,
        pinnable,
        engine,
        len(request.body),
        _integer(bytes(limit)) if limit else None,
    )


def _asker(request: ClientRequest, served: ServedModel) -> Asker:
    """Who asks, as far as the head tells; worked out once for requests that repeat their head."""
    notes = request.notes
    if notes is not None and notes.asker is not None and notes.model == served.name and notes.key is request.key:
        return notes.asker
    asker = Asker(
        request.first,
        secret=served.identity_secret,
        model=served.name,
        key_digest=request.key_digest,
        operator_headers=served.operator_headers,
    )
    if notes is not None:
        notes.asker, notes.model, notes.key = asker, served.name, request.key
    return asker


def _integer(text: bytes) -> int | None:
    """A whole number, or None for anything else: the engine judges it, we only estimate with it."""
    return int(text) if text.isdigit() and len(text) < 10 else None


def _no_model(raw_model: bytes, names: ModelNames[ModelService], key: KeyIdentity | None) -> Problem:
    """What is said of a model that is not served, and of one that the key may not use: nobody can tell which."""
    served = shown(key, names)
    if not raw_model or raw_model == b"null":
        return Problem(400, f"The request body needs a 'model'; served here: {served}.", "model_missing")
    if not raw_model.startswith(b'"'):
        return Problem(400, f"The member 'model' must be a string; served here: {served}.", "model_invalid")
    return Problem(404, f"The model that the request names is not served here; served: {served}.", "model_not_found")


def engine_to_continue(
    request: ClientRequest, service: ModelService, fields: RequestFields, pin: ReplicaId | None
) -> str | Problem | None:
    """The engine that keeps the response that the request continues; None: any will do.

    A model's only engine is never named: it gets the request anyway, and while it is down a 503 says so better.
    """
    response_id = continued_response(fields)
    if response_id is None:
        return None
    origin = service.responses.find(request.key_digest, response_id)
    only_one = len(service.pools) == 1
    if origin is Origin.LOST:
        return envelope.PREVIOUS_RESPONSE_LOST
    if origin is Origin.ANOTHERS or origin is Origin.UNKNOWN:
        return None if only_one and origin is Origin.UNKNOWN else envelope.PREVIOUS_RESPONSE_UNKNOWN
    if pin is not None and pin.engine != origin:
        return envelope.PREVIOUS_RESPONSE_ELSEWHERE
    return None if only_one else origin


def read_pin(request: ClientRequest, service: ModelService) -> ReplicaId | Problem:
    """The replica that the client names with one X-data-parallel-rank or one X-LMWarden-Replica, or both alike."""
    first, repeated = request.first, request.repeated
    rank, replica = first.get(b"x-data-parallel-rank"), first.get(b"x-lmwarden-replica")
    found: set[ReplicaId | None] = set()
    if rank is not None:
        text = rank.strip()
        only_engine = next(iter(service.pools)) if len(service.pools) == 1 else None
        plain = text.isdigit() and (len(text) == 1 or not text.startswith(b"0"))
        name = f"{only_engine}/{text.decode()}" if plain and only_engine is not None else ""
        found.add(service.valid_pins.get(name))
    if replica is not None:
        found.add(service.valid_pins.get(replica.strip().decode("latin-1")))
    pin = found.pop()
    if found or pin is None or (repeated and not repeated.isdisjoint((b"x-data-parallel-rank", b"x-lmwarden-replica"))):
        return _bad_pin(service)
    return pin


def _bad_pin(service: ModelService) -> Problem:
    names = list(service.valid_pins)
    shown = ", ".join(names[:_MAX_PINS_SHOWN]) + (", ..." if len(names) > _MAX_PINS_SHOWN else "")
    message = f"A replica is named by exactly one X-LMWarden-Replica header with one of: {shown}"
    if len(service.pools) == 1:
        ranks = len(names)
        message += f"; or by exactly one X-data-parallel-rank header from 0 to {ranks - 1}"
    return Problem(400, message + ".", "invalid_replica")
