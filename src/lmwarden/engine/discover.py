"""Attaching to a running server: what it says of itself, and what has to be asked of the operator.

Found out: the model's names and longest context (``/v1/models``), the number of data-parallel ranks (one
``engine="K"`` label each in ``/metrics``), the KV-cache capacity and the boot id per rank, the version.
Not to be found out: ``max_num_seqs`` (no endpoint reports it); and the ranks of a vLLM whose metrics are switched
off. Those are asked for by the name of the flag, or of the key in the file.

Any other server that speaks OpenAI's API (llama.cpp's, Ollama, LM Studio, SGLang, ...) is one replica, and what it
does not report is None. It is told from vLLM by its metrics, by ``owned_by`` in its list of models, and, where
that is missing, by ``/version``, which is vLLM's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from lmwarden.config import ConfigError
from lmwarden.engine.client import EngineClient, EngineLacksError, ModelCard
from lmwarden.engine.metrics import EngineMetrics
from lmwarden.types import ReplicaCapacity

Place: TypeAlias = Callable[[str], str]
"""Key of ``[models.engine]`` to where the operator gives it, for messages: ``--model``, or a file and its key."""


def flag_of(key: str) -> str:
    """The flag of a key: a ``Place`` for an engine from the command line."""
    return f"--{key.replace('_', '-')}"


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine says of itself."""

    model: str
    """The name by which it serves the model."""
    other_names: tuple[str, ...]
    """Further served names of the same weights (no LoRA adapters)."""
    max_model_len: int | None
    ranks: int
    kv_cache_tokens: tuple[int | None, ...]
    """Capacity per rank."""
    boot_ids: tuple[str | None, ...]
    """The run of each rank; None: it does not tell."""
    version: str | None
    is_vllm: bool
    usage_details: bool | None = None
    """Whether its answers say how much of a prompt was cached; None: not seen yet (``engine/pins.py`` looks)."""

    def capacity(self, rank: int, max_num_seqs: int | None, cpu_cache_tokens: int | None = None) -> ReplicaCapacity:
        """One rank's capacity as the router takes it; the last two are known from elsewhere."""
        return ReplicaCapacity(
            kv_cache_tokens=self.kv_cache_tokens[rank], max_num_seqs=max_num_seqs, cpu_cache_tokens=cpu_cache_tokens
        )


async def discover(
    client: EngineClient, *, model: str | None, data_parallel_size: int | None, place: Place = flag_of
) -> EngineFacts:
    """Ask one engine for everything that it can say.

    Args:
        client: the engine.
        model: the served name that the operator wants; None: the first.
        data_parallel_size: ranks that the operator states; None: counted.
        place: where the operator gives those two.

    Raises:
        EngineError: it does not answer, is not ready, or lists no models.
        ConfigError: what it says contradicts the operator, or is not enough.
    """
    # First of all: llama.cpp lists its models while it still loads them.
    await client.health()
    cards = await client.models()
    card = _choose(cards, model, client.url, place)
    try:
        metrics: EngineMetrics | None = await client.metrics()
    except EngineLacksError:
        metrics = None
    version = await client.version()
    if is_vllm(card, metrics, version):
        ranks = _ranks(metrics, data_parallel_size, client.url, place)
    else:
        ranks = _one_rank(card, data_parallel_size, client.url, place)
    return facts_of(card, cards, metrics, version, ranks=ranks)


def facts_of(
    card: ModelCard, cards: Sequence[ModelCard], metrics: EngineMetrics | None, version: str | None, *, ranks: int
) -> EngineFacts:
    """Put together what an engine answered.

    Args:
        card: the model that is served.
        cards: all that it lists.
        metrics: its figures, of as many ranks; None: it shows none.
        version: as it says.
        ranks: how many it has.
    """
    return EngineFacts(
        model=card.id,
        other_names=_other_names(card, cards),
        max_model_len=card.max_model_len,
        ranks=ranks,
        kv_cache_tokens=tuple(rank.kv_cache_tokens for rank in metrics.ranks) if metrics else (None,) * ranks,
        boot_ids=metrics.boot_ids if metrics else (None,) * ranks,
        version=version,
        is_vllm=is_vllm(card, metrics, version),
    )


def is_vllm(card: ModelCard, metrics: EngineMetrics | None, version: str | None) -> bool:
    """Whether the server is a vLLM."""
    if metrics is not None:
        return True
    if card.owned_by is not None:
        return card.owned_by.lower() == "vllm"
    return version is not None


def _choose(cards: Sequence[ModelCard], model: str | None, url: str, place: Place) -> ModelCard:
    if model is None:
        return next((card for card in cards if not card.parent), cards[0])
    for card in cards:
        if card.id == model:
            return card
    names = ", ".join(card.id for card in cards[:20])
    raise ConfigError(f"{place('model')}: the engine at {url} does not serve {model!r}; it serves: {names}")


def _other_names(card: ModelCard, cards: Sequence[ModelCard]) -> tuple[str, ...]:
    # Only vLLM names the weights; without that name two entries are two models.
    if card.parent or card.root is None:
        return ()
    return tuple(o.id for o in cards if o.id != card.id and o.root == card.root and not o.parent)


def _ranks(metrics: EngineMetrics | None, stated: int | None, url: str, place: Place) -> int:
    if metrics is None:
        if stated is None:
            raise ConfigError(
                f"{place('data_parallel_size')}: the engine at {url} does not report its ranks"
                " (no vLLM figures at /metrics); give their number"
            )
        return stated
    found = len(metrics.ranks)
    if stated is not None and stated != found:
        where = place("data_parallel_size")
        raise ConfigError(f"{where}: {stated} given, but the engine at {url} reports {found} rank(s)")
    return found


def _one_rank(card: ModelCard, stated: int | None, url: str, place: Place) -> int:
    if stated is not None and stated != 1:
        kind = f" ({card.owned_by!r})" if card.owned_by else ""
        where = place("data_parallel_size")
        raise ConfigError(f"{where}: {stated} given, but the engine at {url} is no vLLM server{kind} and has 1 rank")
    return 1
