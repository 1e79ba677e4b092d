"""What is known of the CPU tier behind a replica's KV cache: stated by the operator, or following from its memory.

No endpoint of vLLM tells how many tokens the tier holds. For an engine that the warden launched its memory is in the
configuration (``kv_offload_gib``) and the memory of a token in the engine's log (``startup.py``). For one that was
attached only the operator can say it. What is not known counts as no tier.
"""

from __future__ import annotations

from typing import NamedTuple

_GIB = 1 << 30


class Tier(NamedTuple):
    """What the operator said of each replica's CPU tier."""

    stated_tokens: int | None = None
    """What it holds."""
    gib: float = 0.0
    """Its memory; 0: there is none, or nobody knows."""

    def tokens(self, kv_bytes_per_token: float | None) -> int | None:
        """What it holds; None: there is none, or it is not known."""
        if self.stated_tokens is not None or not self.gib or kv_bytes_per_token is None:
            return self.stated_tokens
        return int(self.gib * _GIB / kv_bytes_per_token)


NO_TIER = Tier()
