"""``/api/requests``: the latest request rows, filtered and in order.

Field names here are public; no text of a user is in a row.
"""

from __future__ import annotations

import asyncio
import math
import re

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lmwarden.console.answers import MAX_ITEMS, Page, encode, json_answer, number_of
from lmwarden.ledger.ledger import Ledger
from lmwarden.ledger.requests import LEFT, NEWEST, ORDERS, REFUSED, Mark, NumberedRecord, RequestFilter, latest
from lmwarden.ledger.schema import LedgerError
from lmwarden.types import CandidateScore, Decision, Outcome, PrefixChange

USUAL_ITEMS = 100
_MARK = re.compile(r"(?:(-?[0-9]{1,24}(?:\.[0-9]{1,24})?(?:e[+-]?[0-9]{1,3})?):)?([0-9]{1,18})", re.ASCII)
"""A value of the order, and the number of a row, of which SQLite has no longer ones."""
_DECISIONS = (*Decision, REFUSED, LEFT)


class RequestItem(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request; the fields are those of ``types.RequestRecord``, where they are explained."""

    id: int
    finished_at: float
    model: str
    endpoint: str
    key_name: str | None
    conversation: str | None
    """8 hex digits, as people see it."""
    conversation_id: str | None
    """32 hex digits, for ``/api/conversations/{id}``; so is the next."""
    parent_id: str | None
    client: str | None
    kind: str | None
    derived: bool
    decision: Decision | None
    """null: refused, or left before it was sent."""
    why: str | None
    home: str | None
    home_in_flight: int | None
    spill_threshold: int | None
    candidates: tuple[CandidateScore, ...] | None
    replica: str | None
    outcome: Outcome
    status: int
    streamed: bool
    retried: bool
    body_bytes: int
    waited_s: float
    first_byte_s: float | None
    duration_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    finish_reason: str | None
    prefix_change: PrefixChange | None
    prefix_shared_ratio: float | None
    recomputed_tokens: int | None


_SAME = tuple(name for name in RequestItem.__struct_fields__ if name not in ("id", "conversation_id", "parent_id"))
"""Fields that are the record's, by the same name."""


class Requests:
    """The handler."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def show(self, request: Request) -> Response:
        """One page, the newest first, or the largest in what ``sort`` names."""
        limit = number_of(request, "limit", 1, MAX_ITEMS, USUAL_ITEMS)
        order = request.query_params.get("sort", NEWEST)
        if order not in ORDERS:
            raise HTTPException(400, f"sort: must be one of {', '.join(ORDERS)}, not {order!r:.40}")
        question = latest(_wanted(request), limit + 1, _mark(request), order)
        try:
            found = await asyncio.to_thread(self._ledger.reader.ask, question)
        except LedgerError as error:
            raise HTTPException(503, f"the requests cannot be read: {error}") from None
        shown = found[:limit]
        following = _text(shown[-1].mark, order) if len(found) > limit else None
        return json_answer(encode(Page([_item(row) for row in shown], following)))


def routes(ledger: Ledger) -> list[Route]:
    """``/api/requests``."""
    return [Route("/api/requests", Requests(ledger).show)]


def _wanted(request: Request) -> RequestFilter:
    query = request.query_params
    for name, allowed in (("outcome", tuple(Outcome)), ("decision", _DECISIONS)):
        if name in query and query[name] not in allowed:
            raise HTTPException(400, f"{name}: must be one of {', '.join(allowed)}, not {query[name]!r:.40}")
    return RequestFilter(
        model=query.get("model"),
        key_name=query.get("key"),
        outcome=query.get("outcome"),
        decision=query.get("decision"),
        replica=query.get("replica"),
        client=query.get("client"),
        endpoint=query.get("endpoint"),
    )


def _text(mark: Mark, order: str) -> str:
    """As ``next`` has it."""
    return str(mark.number) if order == NEWEST else f"{mark.value!r}:{mark.number}"


def _mark(request: Request) -> Mark | None:
    """Where the page before ended: ``next`` of that page."""
    text = request.query_params.get("before")
    if text is None:
        return None
    match = _MARK.fullmatch(text)
    place = float(match[1] or match[2]) if match is not None else math.nan
    if match is None or not math.isfinite(place):
        raise HTTPException(400, "before: must be the next of an earlier page")
    return Mark(place, int(match[2]))


def _item(row: NumberedRecord) -> RequestItem:
    record = row.record
    return RequestItem(
        id=row.number,
        conversation_id=record.conversation_key.hex() if record.conversation_key is not None else None,
        parent_id=record.parent.hex() if record.parent is not None else None,
        **{name: getattr(record, name) for name in _SAME},
    )
