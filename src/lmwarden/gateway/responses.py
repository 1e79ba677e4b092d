"""Which engine made a response that a later request continues.

``POST /v1/responses`` may name an earlier response (``previous_response_id``) instead of repeating the conversation.
The engine that made it keeps it in its memory, and nobody else has it; so the id of every response that passes by is
remembered with its engine. An entry holds keyed hashes, never an id, and belongs to the API key that asked for the
response: with another key it is as unknown as one that never was. An engine that ends takes its responses along, so
each of its entries is good for one of its runs only.

The table is bounded; what was not used for longest is forgotten first. It does not outlive the warden: an unknown id
goes on to the engine if the model has only one, which knows best, and is refused otherwise.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import Enum
from functools import partial
from hashlib import blake2b

import msgspec

from lmwarden.routing.fields import RequestFields, text_of

MAX_REMEMBERED = 100_000
"""Responses: 28 MB when full."""


class Origin(Enum):
    """Why no engine can be named for a response."""

    UNKNOWN = "unknown"
    """Never seen, or forgotten."""
    ANOTHERS = "anothers"
    """Made for another API key."""
    LOST = "lost"
    """Its engine ended or restarted since."""


class _Made(msgspec.Struct, gc=False):
    engine: str
    run: int
    owner: bytes


class ResponseOrigins:
    """The responses of one model."""

    __slots__ = ("_made", "_most", "_runs", "_secret")

    def __init__(self, secret: bytes, most: int = MAX_REMEMBERED) -> None:
        """
        Args:
            secret: Keys the hashes, at most 64 bytes.
            most: How many responses are remembered.
        """
        self._secret = secret
        self._most = most
        self._runs: Counter[str] = Counter()
        """How often each engine was lost."""
        self._made: OrderedDict[bytes, list[_Made]] = OrderedDict()
        """By the hash of the id. Several where a client chose the id of another's response for its own."""

    def learner(self, owner: bytes, engine: str) -> Callable[[str], None]:
        """What takes the id of the response that this engine is making for this key, in its present run."""
        return partial(self._learn, owner, engine, self._runs[engine])

    def find(self, owner: bytes, response_id: str) -> str | Origin:
        """The engine that holds a response, or why there is none."""
        key = self._hash(response_id)
        entries = self._made.get(key)
        if entries is None:
            return Origin.UNKNOWN
        for made in entries:
            if made.owner == owner:
                self._made.move_to_end(key)
                return made.engine if made.run == self._runs[made.engine] else Origin.LOST
        return Origin.ANOTHERS

    def forget(self, engine: str) -> None:
        """The engine ended or restarted: what it kept is gone."""
        self._runs[engine] += 1

    def _learn(self, owner: bytes, engine: str, run: int, response_id: str) -> None:
        key = self._hash(response_id)
        others = [made for made in self._made.get(key, ()) if made.owner != owner]
        self._made[key] = [*others[-_MOST_OWNERS:], _Made(engine, run, owner)]
        self._made.move_to_end(key)
        if len(self._made) > self._most:
            self._made.popitem(last=False)

    def _hash(self, response_id: str) -> bytes:
        return blake2b(response_id.encode("utf-8", "replace"), key=self._secret, digest_size=16).digest()


_MOST_OWNERS = 7
"""More keys than this that chose one id are no accident."""


def continued_response(fields: RequestFields) -> str | None:
    """The id of the response that a body continues, or None."""
    return text_of(fields.previous_response_id) or None
