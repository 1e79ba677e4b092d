"""The sections of the configuration: what ``lmwarden.toml`` may hold, and of which kind each value is.

Each struct is a table of the file, each field a key of it. A field without a default of its own gets it from
``defaults.toml``, where its reason stands; the bounds of a value are part of its type, so that what a message says is
allowed cannot differ from what is checked (``config_errors``). ``config`` reads, merges and checks what one table
alone cannot tell; ``[models.engine]`` and ``[launch]`` are a subject of their own (``config_engine``).
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from lmwarden.config_engine import EngineConfig, Name, PositiveInt, Seconds, SecondsOrZero, Section
from lmwarden.types import MOST_WAIT_S, RoutingSettings

Port: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65535)]
"""0: the system chooses a free one."""
SpillThreshold: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Days: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=36_500)]
MaxWait: TypeAlias = Annotated[float, msgspec.Meta(ge=1, le=MOST_WAIT_S)]
"""Seconds."""


class ClientConfig(Section, frozen=True, kw_only=True):
    """``[client]``: the port that agents talk to."""

    host: Name
    port: Port
    tls_cert: str | None = None
    tls_key: str | None = None
    max_body_bytes: PositiveInt
    max_buffered_bytes: PositiveInt
    max_connections: PositiveInt
    max_connections_per_peer: PositiveInt
    require_key: bool | Literal["auto"]
    session_headers: tuple[Name, ...]
    stream_silence_s: Seconds
    answer_silence_s: Seconds
    drain_s: SecondsOrZero

    @property
    def key_required(self) -> bool:
        """Whether a request must carry an API key (``auto``: unless bound to loopback)."""
        return not is_loopback(self.host) if self.require_key == "auto" else self.require_key


class ConsoleConfig(Section, frozen=True, kw_only=True):
    """``[console]``: the port that operators talk to."""

    host: Name
    port: Port
    allowed_hosts: tuple[Name, ...]
    password_file: Name | None = None
    open_metrics: bool


class StorageConfig(Section, frozen=True, kw_only=True):
    """``[storage]``: what is kept on disk, and how much of it."""

    dir: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] | None = None
    retention_days: Days
    max_rows: PositiveInt
    history_days: Days
    history_max_bytes: PositiveInt
    max_queued_rows: PositiveInt

    @property
    def path(self) -> Path:
        """The data folder; not created here."""
        if self.dir is not None:
            return Path(self.dir).expanduser()
        base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return Path(base).expanduser() / "lmwarden"


class LedgerConfig(Section, frozen=True, kw_only=True):
    """``[ledger]``: what is written down of each prompt besides its counts; never its text."""

    prefix_analysis: bool
    record_traces: bool


class WatchConfig(Section, frozen=True, kw_only=True):
    """``[watch]``: how engines are observed."""

    interval_s: Annotated[float, msgspec.Meta(gt=0, le=5)]
    """Figures older than five seconds are believed by nobody."""
    probe_timeout_s: Seconds
    silent_down_s: Seconds
    stalled_s: Seconds
    test_pins: bool
    attach_retry_s: Seconds


class RoutingConfig(Section, frozen=True, kw_only=True):
    """``[models.routing]``: the settings a model starts with; the console changes them at run time."""

    affinity: bool
    placement: Literal["least-loaded", "hash"]
    spill_threshold: SpillThreshold | Literal["auto"]
    live_minutes: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
    max_conversations: Annotated[int, msgspec.Meta(ge=1000, le=10**9)]
    admission: Literal["auto", "off"]
    prefer: Literal["balanced", "median", "tail"]
    max_wait_s: MaxWait

    def settings(self) -> RoutingSettings:
        """The same as the router takes it."""
        return RoutingSettings(
            affinity=self.affinity,
            placement=self.placement,
            spill_threshold=None if self.spill_threshold == "auto" else self.spill_threshold,
            live_s=self.live_minutes * 60,
            max_conversations=self.max_conversations,
            admission=self.admission,
            prefer=self.prefer,
            max_wait_s=self.max_wait_s,
        )


class ModelConfig(Section, frozen=True, kw_only=True):
    """One ``[[models]]``."""

    name: Name | None = None
    aliases: tuple[Name, ...]
    engine: EngineConfig
    routing: RoutingConfig

    @property
    def served_name(self) -> str | None:
        """What clients ask for, as far as it is known without asking an engine."""
        return self.name or (self.engine.model if self.engine.launched else None)


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address, in brackets or not; None: it is none.

    A socket for both families shows a peer of IPv4 as ``::ffff:192.0.2.1``: that is an address of IPv4.
    """
    try:
        address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def is_loopback(host: str) -> bool:
    """Whether a bound host, or a peer, is on this machine only."""
    if host.lower() in ("localhost", "ip6-localhost"):
        return True
    address = address_of(host)
    return address is not None and address.is_loopback
