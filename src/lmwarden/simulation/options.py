"""What a simulated engine is told."""

from __future__ import annotations

import math
from typing import get_args

import msgspec

from lmwarden.routing.engine_balancer import BalancerVersion
from lmwarden.simulation.hardware import HardwareProfile
from lmwarden.simulation.scheduler import SchedulerLimits

_MOST_REPLICAS = 1024


class SimulatedEngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated vLLM server. ``None``: what the hardware profile says."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port."""
    replicas: int = 4
    """Data-parallel ranks."""
    hardware: str = "a4000-qwen3-4b"
    """Name of a profile, or a TOML file."""
    speed: float = 1.0
    """The modelled clock runs this many times as fast as the wall clock."""
    model: str = "qwen3-4b"
    """The name it is served by."""
    kv_cache_tokens: int | None = None
    """KV-cache capacity of one rank; whole blocks, the null block included."""
    cpu_cache_tokens: int = 0
    """Capacity of one rank's CPU tier; 0: none."""
    balancer: BalancerVersion = "0.26"
    """Also says whose answers the server imitates: vLLM 0.26.0, or 0.32.0 for ``0.27``."""
    api_servers: int | None = None
    """Each balances for itself; None: as many as replicas, vLLM's default."""
    max_model_len: int | None = None
    block_size: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    prompt_tokens_details: bool = True
    """vLLM's ``--enable-prompt-tokens-details``: usage says what was cached."""
    tool_calls: bool = False
    """Chat and messages: an answer to a request with tools ends in a call of one of them, unless ``tool_choice``
    forbids it. Off, only if ``tool_choice`` demands it: an agent that is given a call at every turn never ends."""
    max_answer_tokens: int = 1024
    """Where the model ends an answer by itself (unless ``ignore_eos`` or ``min_tokens``): clients like
    Claude Code allow 32000 tokens and expect to get fewer."""

    @property
    def legacy(self) -> bool:
        """It imitates vLLM 0.26."""
        return self.balancer != "0.27"

    @property
    def version(self) -> str:
        """The version of vLLM that it imitates."""
        return "0.26.0" if self.legacy else "0.32.0"


def scheduler_limits(options: SimulatedEngineOptions, hardware: HardwareProfile) -> SchedulerLimits:
    """The limits of one rank.

    Raises:
        ValueError: an option is out of its range.
    """
    positive = {
        "replicas": options.replicas,
        "api_servers": options.api_servers,
        "speed": options.speed,
        "max_answer_tokens": options.max_answer_tokens,
        "kv_cache_tokens": _or(options.kv_cache_tokens, hardware.kv_cache_tokens),
        "block_size": _or(options.block_size, hardware.block_size),
        "max_num_seqs": _or(options.max_num_seqs, hardware.max_num_seqs),
        "max_num_batched_tokens": _or(options.max_num_batched_tokens, hardware.max_num_batched_tokens),
        "max_model_len": _or(options.max_model_len, hardware.max_model_len),
    }
    for name, value in positive.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} must be above 0, got {value:g}")
    if options.replicas > _MOST_REPLICAS:
        raise ValueError(f"replicas must be from 1 to {_MOST_REPLICAS}, got {options.replicas}")
    if options.cpu_cache_tokens < 0:
        raise ValueError(f"cpu_cache_tokens must be 0 or more, got {options.cpu_cache_tokens}")
    if options.balancer not in get_args(BalancerVersion):
        allowed = ", ".join(get_args(BalancerVersion))
        raise ValueError(f"balancer must be one of {allowed}, got {options.balancer!r}")
    block_size = _or(options.block_size, hardware.block_size)
    num_blocks = _or(options.kv_cache_tokens, hardware.kv_cache_tokens) // block_size
    if num_blocks < 2:
        raise ValueError(f"kv_cache_tokens must hold at least two blocks of {block_size} tokens")
    return SchedulerLimits(
        block_size=block_size,
        num_blocks=num_blocks,
        host_blocks=options.cpu_cache_tokens // block_size,
        max_num_seqs=_or(options.max_num_seqs, hardware.max_num_seqs),
        max_num_batched_tokens=_or(options.max_num_batched_tokens, hardware.max_num_batched_tokens),
        count_lookup_retries=options.legacy,
    )


def _or(option: int | None, profile: int) -> int:
    """The option where it is given (0 is given)."""
    return profile if option is None else option
