"""What the gateway is built from: limits, the models it serves, and the two rooms it calls.

Time limits here are real seconds, also under ``--speed``: they guard sockets and clients, not the modelled
engine. Everything that is *measured* (waits, first bytes, durations) uses the clock that the caller passes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from lmwarden.routing.contract import RouterContract
from lmwarden.types import EngineEndpoint, KeyIdentity, RequestRecord


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the data plane. Sizes in bytes, times in real seconds."""

    max_body_bytes: int = 64 * 1024 * 1024
    """Largest request body; above it 413. Claude Code alone needs 32 MB."""
    max_buffered_bytes: int = 1024 * 1024 * 1024
    """Bodies of all requests together, waiting ones included; above it reading pauses, then 503."""
    buffer_wait_s: float = 10.0
    """How long a body may stand still because of ``max_buffered_bytes`` before its request gets 503."""
    max_head_bytes: int = 64 * 1024
    """Largest request head; above it 431. A read's worth more may arrive before that is seen."""
    max_header_lines: int = 256
    """Most header lines in one head; above it 431."""
    max_pipelined: int = 8
    """Requests read ahead of the one being answered; then reading pauses. So many of one connection are also begun
    before the others get their turn."""
    head_s: float = 30.0
    """A request head must be complete within this time of its first byte, and the first one of a connection must begin
    within it."""
    body_stall_s: float = 60.0
    """A request body must not stand still for longer."""
    body_progress_bytes: int = 6 * 1024
    """Less than this within ``body_stall_s`` is standing still: a trickle holds memory as well as silence does."""
    max_connections: int = 16_384
    """Client connections at the same time; beyond it a new one is refused."""
    max_connections_per_peer: int = 8_192
    """Those of one address."""
    keep_alive_s: float = 300.0
    """An idle client connection is closed after this time: longer than the pools of the clients we know."""
    linger_s: float = 2.0
    """After an early refusal, how long we go on reading so that the client gets to read the answer."""
    write_stall_s: float = 300.0
    """A client that takes nothing for this long is cut off."""
    connect_s: float = 5.0
    """Opening a connection to an engine."""
    verdict_s: float = 1.0
    """How long a request whose connection closed before its answer waits for the word that its engine is dead, before
    it gets 502. The supervisor learns of a dead process within milliseconds."""
    stream_silence_s: float = 290.0
    """Longest silence of a streamed answer. Claude Code gives up at 297 to 360 s without a head and at 300 s
    inside a stream; answering just before that keeps the generation from running twice."""
    answer_silence_s: float = 600.0
    """Longest silence of an answer that is not streamed, where silence is normal (the SDKs' own limit)."""
    ping_s: float = 10.0
    """Silence inside an event stream after which the client gets a ping or a comment."""
    engine_idle_s: float = 4.0
    """An idle connection to an engine is closed after this time: vLLM's server closes its end after 5 s."""
    max_idle_per_engine: int = 512
    """Idle connections kept per engine."""
    sweep_s: float = 1.0
    """How often time limits are looked at; all limits are that coarse."""
    clock_rate: float = 1.0
    """Seconds of the caller's clock per real second (``--speed``): turns the router's deadlines into timers."""


class Authenticator(Protocol):
    """Who may ask. The access room implements it."""

    required: bool
    """False: requests without a key are served (bound to loopback)."""

    def check(self, credential: bytes) -> KeyIdentity | None:
        """The key's identity, or None for an unknown key. Constant time in the key."""
        ...

    def still_good(self, key: KeyIdentity) -> KeyIdentity | None:
        """What ``check`` would say now of the credential for which it returned ``key``."""
        ...


class RequestLog(Protocol):
    """Where finished requests go. The ledger implements it."""

    def record(self, record: RequestRecord) -> None:
        """Take one row. Must return at once: it is called on the data loop."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """One model as clients see it, with its router and its engines."""

    name: str
    """What clients ask for."""
    router: RouterContract
    engines: Mapping[str, EngineEndpoint]
    """By short name (``e0``)."""
    identity_secret: bytes = field(repr=False)
    """Keys the hashes of session ids, at most 64 bytes."""
    aliases: Sequence[str] = ()
    """Other names; entries with ``*``, ``?`` or ``[`` are globs and rank behind exact ones."""
    operator_headers: Sequence[bytes] = ()
    """Lower-case header names that name a conversation, tried before the ones that we know."""
    max_model_len: int | None = None
    """Context window in tokens as the engine reports it; None: unknown. See ``Gateway.describe``."""
    drop_billing_line: bool = False
    """Take Claude Code's billing line out of prompts, because the engine leaves it in."""
