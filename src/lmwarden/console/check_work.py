"""A model's work: does it flow, and does the cache help? Whether it fits is ``check_room``'s subject."""

from __future__ import annotations

from collections.abc import Iterator

from lmwarden.console.check_room import cache_tokens, check_room, overfull
from lmwarden.console.findings import Check, fault, ok, warning
from lmwarden.control import ModelSnapshot, OperationState
from lmwarden.types import Decision, ReplicaState

LEAST_REQUESTS = 20
"""Below this many a share says nothing."""
MANY_WITHOUT_ID = 0.2
"""Share of requests without a session id from which affinity visibly suffers."""
LEAST_RECENT_TOKENS = 10_000
"""Of prompts in the last minute; fewer are judged with all since the start."""
LOW_CACHED_SHARE = 0.5
"""An agent's later turns have 85 % of their prompt in the cache; first turns pull the mean down, but not so far."""
HIGH_STICKY_RATIO = 0.8


def check_work(model: ModelSnapshot) -> Iterator[Check]:
    """All of it."""
    for check in (_affinity, _stalled, _drained, _operation, _max_num_seqs, _context, _session_ids, _prefix):
        yield from check(model)
    yield from check_room(model)


def _affinity(model: ModelSnapshot) -> Iterator[Check]:
    if not model.view.settings.affinity:
        yield warning(
            "affinity_off",
            "affinity is off: conversations do not stay on their replicas",
            "if that is not meant, switch Affinity on: on the card Data-parallel routing of the model's page, or by"
            f' PATCH /api/models/{model.name}/routing {{"affinity": true}}; what was changed holds over a restart',
        )


def _stalled(model: ModelSnapshot) -> Iterator[Check]:
    for replica in model.view.replicas:
        if replica.sample is not None and replica.sample.stalled and replica.state is not ReplicaState.DOWN:
            yield fault(
                "stalled",
                f"{replica.replica} has requests and makes no progress",
                "it gets no new conversations; if it does not recover, restart its engine",
                replica=str(replica.replica),
            )


def _drained(model: ModelSnapshot) -> Iterator[Check]:
    for replica in sorted(model.drained):
        yield warning(
            "drained",
            f"{replica} was taken out by an operator and gets nothing new",
            f"give it back: POST /api/models/{model.name}/replicas/{replica}/undrain",
            replica=str(replica),
        )


def _operation(model: ModelSnapshot) -> Iterator[Check]:
    operation = model.operation
    if operation is not None and operation.state is OperationState.FAILED:
        yield warning(
            "restart_failed",
            f"the last {operation.kind} ended early: {operation.sentence}",
            "mend the cause and begin it again",
            kind=operation.kind,
            sentence=operation.sentence,
        )


def _max_num_seqs(model: ModelSnapshot) -> Iterator[Check]:
    threshold = model.view.spill_threshold
    if model.view.spill_threshold_source == "default":
        yield warning(
            "max_num_seqs",
            f"max_num_seqs is not known, so the spill threshold is {threshold} by default",
            "give vLLM's --max-num-seqs to the warden: max_num_seqs under [models.engine], or --max-num-seqs",
            threshold=threshold,
        )
    else:
        source = model.view.spill_threshold_source
        yield ok("max_num_seqs", f"the spill threshold is {threshold} ({source})", threshold=threshold, source=source)


def _context(model: ModelSnapshot) -> Iterator[Check]:
    capacities = cache_tokens(model)
    if model.max_model_len is None or not capacities:
        return
    name, least = min(capacities.items(), key=lambda item: item[1])
    if model.max_model_len > least:
        yield warning(
            "context_too_large",
            f"a context may grow to {model.max_model_len} tokens, but the cache of {name} holds {least}",
            f"start vLLM with --max-model-len {least} or less (clients must then know it: lmwarden connect tells them),"
            " or give it more memory for the KV cache",
            max_model_len=model.max_model_len,
            replica=name,
            tokens=least,
        )
    else:
        text = f"a context of {model.max_model_len} tokens fits the cache of each replica"
        yield ok("context", text, max_model_len=model.max_model_len)


def _session_ids(model: ModelSnapshot) -> Iterator[Check]:
    derived, none = model.counters.identity_derived, model.counters.identity_none
    total = model.counters.identity_sent + derived + none
    if total < LEAST_REQUESTS:
        return
    without = derived + none
    text = f"{without} of {total} requests came without a session id"
    if without / total > MANY_WITHOUT_ID:
        yield warning(
            "no_session_id",
            f"{text} ({derived} recognised by how their conversation begins, {none} not at all)",
            "set the clients up as lmwarden connect says, or name the header that carries their session id under"
            " client.session_headers",
            without=without,
            total=total,
            derived=derived,
            none=none,
        )
    else:
        yield ok("session_ids", text, without=without, total=total)


def _prefix(model: ModelSnapshot) -> Iterator[Check]:
    counters, view = model.counters, model.view
    prompt_tokens = counters.prompt_tokens_cached + counters.prompt_tokens_computed - counters.prompt_tokens_unknown
    later_turns = view.decisions.get(Decision.STICKY, 0)
    if any(engine.usage_details is False for engine in model.engines):
        return  # then nothing counts as cached
    if later_turns < LEAST_REQUESTS or not prompt_tokens:
        return
    share = _recent_share(model)
    if share is None:
        share = counters.prompt_tokens_cached / prompt_tokens
    mostly_later = later_turns >= sum(view.decisions.values()) / 2
    stays = view.sticky_ratio is not None and view.sticky_ratio >= HIGH_STICKY_RATIO
    if share < LOW_CACHED_SHARE and mostly_later and stays:
        if overfull(model):
            return  # that is why, and it is said already
        yield warning(
            "prefix_changes",
            f"conversations stay on their replica, and yet only {share:.0%} of their prompts came from the cache",
            "see Prefix breakers on the console for the cause; if something changes at the head of the prompts, set the"
            " clients up as lmwarden connect says (for Claude Code CLAUDE_CODE_ATTRIBUTION_HEADER=0 and"
            " ENABLE_TOOL_SEARCH=false)",
            share=share,
        )
    else:
        yield ok("prefix", f"{share:.0%} of the prompts came from the cache", share=share)


def _recent_share(model: ModelSnapshot) -> float | None:
    """The cached share of the last minute's prompts; None: too few to tell."""
    prompt, cached = model.rates.prompt_tokens_per_s, model.rates.cached_tokens_per_s
    if prompt is None or cached is None:
        return None
    told = prompt - model.rates.unknown_tokens_per_s
    return cached / told if 60 * told >= LEAST_RECENT_TOKENS else None
