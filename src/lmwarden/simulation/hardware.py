"""How long a step takes: a roofline model of one GPU, with named profiles.

Model
-----
::

    step_s = overhead_s
           + max(weights_bytes / memory_bytes_per_s, 2 * parameters * tokens / flops_per_s)   linear layers
           + attention_flops * attended_tokens / flops_per_s                                  attention, compute
           + kv_bytes_per_token * context_tokens / memory_bytes_per_s                         attention, memory
           + kv_bytes_per_token * loaded_tokens / host_bytes_per_s                            from the CPU tier

The weights are read once per step however many tokens it works on, which is why decoding is bound by memory
and prefill by arithmetic. ``attended_tokens`` is the sum over the step's tokens of the context each one attends
to. ``rank_slowdown`` stretches the steps of single ranks. The profiles are TOML files beside this module; each says
where its numbers come from.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from lmwarden.simulation.scheduler import StepWork

_PROFILES = Path(__file__).parent / "profiles"


class HardwareProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica's model and GPU(s). Rates are what is reached, not what a data sheet promises."""

    name: str
    description: str
    parameters: float
    """Parameters that a token passes through (active ones of a mixture of experts)."""
    weights_bytes: float
    """Read from GPU memory in every step."""
    attention_flops_per_pair: float
    """Floating point operations per (token, attended token): 4 * layers * query heads * head size."""
    kv_bytes_per_token: float
    """2 * layers * KV heads * head size * bytes per number."""
    memory_bytes_per_s: float
    flops_per_s: float
    host_bytes_per_s: float
    """Loading from the CPU tier."""
    overhead_s: float
    """Of each step: scheduling, kernel launches, sampling."""
    kv_cache_tokens: int
    """KV-cache capacity of one replica."""
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int = 16
    rank_slowdown: tuple[float, ...] = ()
    """Factor on each rank's step time, rank 0 first, where cards differ (one is too hot, say); beyond its end: 1."""

    def slowdown(self, rank: int) -> float:
        """Factor on the step time of one rank."""
        return self.rank_slowdown[rank] if rank < len(self.rank_slowdown) else 1.0

    def step_s(self, work: StepWork) -> float:
        """Seconds that one step takes on a card that is not slowed down."""
        memory = self.memory_bytes_per_s
        flops = self.flops_per_s
        seconds = (
            self.overhead_s
            + max(self.weights_bytes / memory, 2.0 * self.parameters * work.tokens / flops)
            + self.attention_flops_per_pair * work.attended_tokens / flops
            + self.kv_bytes_per_token * work.context_tokens / memory
        )
        if work.loaded_tokens:
            seconds += self.kv_bytes_per_token * work.loaded_tokens / self.host_bytes_per_s
        return seconds


def profile_names() -> list[str]:
    """Names of the profiles that ship with the program."""
    return sorted(path.stem for path in _PROFILES.glob("*.toml"))


def load_profile(name_or_path: str) -> HardwareProfile:
    """A profile by its name, or from a file if the text ends in ``.toml``.

    Raises:
        ValueError: no such profile or file, or the file does not hold a profile; the text says which and
            what is allowed.
    """
    if name_or_path.endswith(".toml"):
        path = Path(name_or_path)
    else:
        path = _PROFILES / f"{name_or_path}.toml"
        if name_or_path not in profile_names():
            raise ValueError(
                f"unknown hardware {name_or_path!r}: allowed are {', '.join(profile_names())} or a .toml file"
            )
    try:
        profile = msgspec.toml.decode(path.read_bytes(), type=HardwareProfile)
    except OSError as error:
        raise ValueError(f"cannot read the hardware profile {path}: {error.strerror}") from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ValueError(f"{path} is not a hardware profile: {error}") from error
    for field in ("memory_bytes_per_s", "flops_per_s", "host_bytes_per_s", "kv_cache_tokens", "block_size"):
        if getattr(profile, field) <= 0:
            raise ValueError(f"{path}: {field} must be above 0")
    if any(not factor > 0 for factor in profile.rank_slowdown):
        raise ValueError(f"{path}: each of rank_slowdown must be above 0")
    return profile
