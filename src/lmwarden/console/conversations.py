"""``/api/models/{name}/conversations``, ``/api/conversations/{id}`` and ``/api/prefix-breakers``.

What is live comes from the router (one look a second for all who ask), what was comes from the request rows: client,
kind, the cached share of the last turn, and all turns. A conversation is named by its keyed hash, 32 hex digits.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lmwarden.console.answers import MAX_ITEMS, encode, json_answer, number_of, result_of
from lmwarden.console.stats import window_s
from lmwarden.control import Control, ConversationList
from lmwarden.ledger.conversations import (
    Breaker,
    Question,
    Summary,
    breakers,
    children,
    cost,
    summaries,
    turns,
)
from lmwarden.ledger.ledger import Ledger
from lmwarden.ledger.reader import Reader
from lmwarden.ledger.schema import LedgerError
from lmwarden.types import (
    CandidateScore,
    ConversationKey,
    ConversationView,
    Decision,
    Outcome,
    PrefixChange,
    RequestRecord,
)

T = TypeVar("T")

ConversationState: TypeAlias = Literal["running", "waiting", "idle", "dormant"]
"""``waiting``: its turn stands in the waiting room, and nothing of it runs."""

USUAL_ITEMS = 100
MOST_TURNS = 500
_SORTS: dict[str, Callable[[ConversationList, ConversationView], float]] = {
    "last_used": lambda _, view: view.last_used,
    "context": lambda _, view: view.context_tokens,
    "turns": lambda _, view: view.turns,
    "waited": lambda seen, view: -held.since if (held := seen.waiting.get(view.key)) is not None else -math.inf,
}
_KEY_DIGITS = 32

WHAT_TO_DO = {
    "compaction": "Nothing: the client replaced a long history by a summary, and the next turns are cheaper for it.",
    "tools_changed": "Keep the list of tools the same during a conversation. Claude Code: ENABLE_TOOL_SEARCH=false.",
    "system_changed": "Keep what changes out of the system prompt: a changed line costs all that follows it.",
    "billing_line": "Claude Code: CLAUDE_CODE_ATTRIBUTION_HEADER=0, or a vLLM that drops the line by itself.",
    "timestamp": "Take the time out of the system prompt, or write the date alone.",
    "system_turn_moved": "Use a vLLM that leaves system turns where they stand, or a client that does not send any.",
    "history_edited": "Have the client leave earlier turns as they were: only what is added at the end is cheap.",
    "evicted": "The cache was too small for all that was in use: fewer agents at once, more KV cache, or CPU offload.",
    "moved": "See the decisions of its turns: a conversation stays at its home unless something speaks against it.",
    "spilled": "Its home was busy: more replicas, fewer agents at once, or a higher spill threshold.",
    "rehomed": "If the waiting room is engaged: fewer agents at once, or a CPU tier. Else look for engines that fail.",
    "engine_restarted": "Nothing, if the restart was wanted; else see the engine's log.",
    "unrouted": "No rank was chosen by us: turn affinity on, or use an endpoint that obeys a rank.",
    "other": "Not known: the prompt was not looked at, or its previous turn was not.",
}
"""By cause; see ledger/conversations.py."""


class ConversationItem(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation in a list."""

    id: str
    short: str
    """8 hex digits."""
    client: str | None
    derived: bool
    parent: str | None
    kind: str | None
    home: str | None
    turns: int
    context_tokens: int | None
    cached_ratio_last: float | None
    """Cached part of the last turn's prompt."""
    state: ConversationState
    waiting_since: float | None
    """Unix seconds; null: nothing of it stands in the waiting room."""
    in_flight: int
    last_used: float
    key_name: str | None
    """Of the API key that it came with."""
    model: str


class ConversationPage(msgspec.Struct, frozen=True):
    """``/api/models/{name}/conversations``."""

    items: list[ConversationItem]
    next: str | None
    """For ``before``; null: that was the last page."""
    total: int
    """How many there are in that state, as far as the router shows them: the 5,000 used last."""


class TurnItem(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a conversation; the fields are those of ``types.RequestRecord``, where they are explained."""

    finished_at: float
    endpoint: str
    kind: str | None
    replica: str | None
    decision: Decision | None
    why: str | None
    home: str | None
    home_in_flight: int | None
    spill_threshold: int | None
    candidates: tuple[CandidateScore, ...] | None
    outcome: Outcome
    status: int
    streamed: bool
    retried: bool
    waited_s: float
    first_byte_s: float | None
    duration_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    computed_tokens: int | None
    """Of the prompt; null: the engine did not say how much was cached."""
    completion_tokens: int | None
    prefix_change: PrefixChange | None
    prefix_shared_ratio: float | None
    recomputed_tokens: int | None


_SAME = tuple(name for name in TurnItem.__struct_fields__ if name != "computed_tokens")


class ConversationDetail(msgspec.Struct, frozen=True):
    """``/api/conversations/{id}``."""

    conversation: ConversationItem
    children: list[ConversationItem]
    turns: list[TurnItem]
    """The newest first, at most MOST_TURNS; auxiliary calls beside the turns included."""
    recomputed_by_cause: dict[str, int]


class BreakerItem(msgspec.Struct, frozen=True, kw_only=True):
    """One cause and one client."""

    cause: str
    turns: int
    recomputed_tokens: int
    share_of_prompt: float | None
    """Of all prompt tokens in that time."""
    example: str | None
    """The conversation that it cost most in one turn."""
    client: str | None
    what_to_do: str


class BreakerList(msgspec.Struct, frozen=True):
    """``/api/prefix-breakers``."""

    items: list[BreakerItem]


class _Shown(msgspec.Struct, frozen=True):
    """A conversation as the router shows it, and in which list."""

    view: ConversationView
    seen: ConversationList
    model: str


class Conversations:
    """The handlers."""

    def __init__(self, control: Control, ledger: Ledger, clock: Callable[[], float]) -> None:
        """See ``routes``."""
        self._control = control
        self._ledger = ledger
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        """Of the slow questions: each that waits for another would hold a thread."""

    async def page(self, request: Request) -> Response:
        """One page of a model's conversations."""
        model = request.path_params["name"]
        limit = number_of(request, "limit", 1, MAX_ITEMS, USUAL_ITEMS)
        state = _one_of(request, "state", ("live", "all", "waiting"))
        usual = "waited" if state == "waiting" else "last_used"
        order = _SORTS[_one_of(request, "sort", (usual, *(name for name in _SORTS if name != usual)))]
        after = _cursor(request.query_params.get("before"))
        seen = await result_of(self._control.conversations(model))
        views = [view for view in seen.conversations if _is_in(state, view, seen)]
        ordered = sorted(((order(seen, view), view.key, view) for view in views), reverse=True)
        rest = [entry for entry in ordered if after is None or entry[:2] < after]
        shown = [view for _, _, view in rest[:limit]]
        following = f"{rest[limit - 1][0]!r}:{shown[-1].key.hex()}" if len(rest) > limit else None
        rows = await self._ask(summaries([view.key for view in shown]))
        items = [_item(view.key, rows.get(view.key), _Shown(view, seen, model)) for view in shown]
        return json_answer(encode(ConversationPage(items, following, len(views))))

    async def show(self, request: Request) -> Response:
        """One conversation with its turns and children."""
        key = _key(request.path_params["id"])
        rows = await self._ask(turns(key, MOST_TURNS))
        shown = await self._shown(rows[0].model if rows else None)
        if not rows and key not in shown:
            raise HTTPException(404, "no conversation of that id is known; rows are kept for [storage] retention_days")
        offspring = {child for child, live in shown.items() if live.view.parent == key}
        offspring.update(await self._ask(children(key)))
        offspring.discard(key)
        last = await self._ask(summaries([key, *offspring]))
        known = [child for child in offspring if child in last or child in shown]
        items = [_item(child, last.get(child), shown.get(child)) for child in known]
        items.sort(key=lambda item: -item.last_used)
        detail = ConversationDetail(
            conversation=_item(key, last.get(key), shown.get(key)),
            children=items[:MAX_ITEMS],
            turns=[_turn(row) for row in rows],
            recomputed_by_cause=await self._ask(cost(key)),
        )
        return json_answer(encode(detail))

    async def breakers(self, request: Request) -> Response:
        """What prefixes cost, by cause."""
        query = request.query_params
        model = query.get("model")
        if model is not None:
            self._control.snapshot.model(model)  # raises where there is none
        since = self._clock() - window_s(query.get("window", "24h"))
        async with self._one_at_a_time:
            found = await self._ask(breakers(since, model), self._ledger.slow_reader)
        return json_answer(encode(BreakerList([_breaker(item, found.prompt_tokens) for item in found.items])))

    async def _shown(self, model: str | None) -> Mapping[ConversationKey, _Shown]:
        """What the routers show; of one model if that is known and still served."""
        names = [one.name for one in self._control.snapshot.models if model in (None, one.name)]
        lists = [await result_of(self._control.conversations(name)) for name in names]
        return {
            view.key: _Shown(view, seen, name)
            for name, seen in zip(names, lists, strict=True)
            for view in seen.conversations
        }

    async def _ask(self, question: Question[T], reader: Reader | None = None) -> T:
        try:
            return await asyncio.to_thread((reader or self._ledger.reader).ask, question)
        except LedgerError as error:
            raise HTTPException(503, f"the requests cannot be read: {error}") from None


def routes(control: Control, ledger: Ledger, *, clock: Callable[[], float] = time.time) -> list[Route]:
    """All of them.

    Args:
        control: shows what is live.
        ledger: keeps the rows.
        clock: Unix seconds.
    """
    handlers = Conversations(control, ledger, clock)
    return [
        Route("/api/models/{name:path}/conversations", handlers.page),
        Route("/api/conversations/{id}", handlers.show),
        Route("/api/prefix-breakers", handlers.breakers),
    ]


def _one_of(request: Request, name: str, allowed: Sequence[str]) -> str:
    """A word of the query; the first one is usual."""
    word = request.query_params.get(name, allowed[0])
    if word not in allowed:
        raise HTTPException(400, f"{name}: must be one of {', '.join(allowed)}, not {word!r:.40}")
    return word


def _key(text: str) -> ConversationKey:
    try:
        return bytes.fromhex(text) if len(text) == _KEY_DIGITS else b""
    except ValueError:
        return b""


def _cursor(text: str | None) -> tuple[float, ConversationKey] | None:
    """Where the page before ended: ``next`` of that page."""
    if text is None:
        return None
    value, _, digits = text.partition(":")
    try:
        found = float(value[:40]), _key(digits)
    except ValueError:
        found = 0.0, b""
    if not found[1]:
        raise HTTPException(400, "before: must be the next of an earlier page")
    return found


def _item(key: ConversationKey, last: Summary | None, shown: _Shown | None) -> ConversationItem:
    """From the rows, the router, or both; one of them is there."""
    view = shown.view if shown is not None else None
    parent = view.parent if view is not None and view.parent is not None else last.parent if last is not None else None
    held = shown.seen.waiting.get(key) if shown is not None else None
    digits = key.hex()
    return ConversationItem(
        id=digits,
        short=digits[:8],
        client=last.client if last is not None else None,
        derived=(view is not None and view.derived) or (last is not None and last.derived),
        parent=parent.hex() if parent is not None else None,
        kind=_kind(last, parent),
        home=str(view.home) if view is not None and view.home is not None else None,
        turns=max(view.turns if view is not None else 0, last.turns if last is not None else 0),
        context_tokens=_context(last, view),
        cached_ratio_last=_cached_ratio(last),
        state=_state(shown),
        waiting_since=shown.seen.wall(held.since) if shown is not None and held is not None else None,
        in_flight=view.in_flight if view is not None else 0,
        last_used=shown.seen.wall(shown.view.last_used)
        if shown is not None
        else last.finished_at
        if last is not None
        else 0.0,
        key_name=held.key_name if held is not None else last.key_name if last is not None else None,
        model=shown.model if shown is not None else last.model if last is not None else "",
    )


def _kind(last: Summary | None, parent: ConversationKey | None) -> str | None:
    """What the conversation is: a compaction is a turn of it."""
    if parent is not None:
        return "subagent"
    return "main" if last is None or last.kind is not None else None


def _context(last: Summary | None, view: ConversationView | None) -> int | None:
    if view is not None and view.context_tokens:
        return view.context_tokens
    if last is None or last.prompt_tokens is None:
        return None
    return last.prompt_tokens + (last.completion_tokens or 0)


def _cached_ratio(last: Summary | None) -> float | None:
    if last is None or not last.prompt_tokens or last.cached_tokens is None:
        return None
    return last.cached_tokens / last.prompt_tokens


def _is_in(state: str, view: ConversationView, seen: ConversationList) -> bool:
    """Whether a list of that state has it."""
    return view.key in seen.waiting if state == "waiting" else view.live or state == "all"


def _state(shown: _Shown | None) -> ConversationState:
    if shown is None:
        return "dormant"
    if shown.view.in_flight:
        return "running"
    if shown.view.key in shown.seen.waiting:
        return "waiting"
    return "idle" if shown.view.live else "dormant"


def _turn(record: RequestRecord) -> TurnItem:
    known = record.prompt_tokens is not None and record.cached_tokens is not None
    computed = (record.prompt_tokens or 0) - (record.cached_tokens or 0) if known else None
    return TurnItem(computed_tokens=computed, **{name: getattr(record, name) for name in _SAME})


def _breaker(item: Breaker, prompt_tokens: int) -> BreakerItem:
    return BreakerItem(
        cause=item.cause,
        turns=item.turns,
        recomputed_tokens=item.recomputed_tokens,
        share_of_prompt=item.recomputed_tokens / prompt_tokens if prompt_tokens else None,
        example=item.example.hex() if item.example is not None else None,
        client=item.client,
        what_to_do=WHAT_TO_DO[item.cause],
    )
