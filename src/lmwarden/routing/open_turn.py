"""An open ticket: a request that was sent and has not ended, with the reservation that it holds."""

from __future__ import annotations

import msgspec

from lmwarden.routing.conversations import Conversation
from lmwarden.routing.explain import Choice
from lmwarden.types import ConversationKey, RoutingRequest


class OpenTurn(msgspec.Struct, eq=False, gc=False):
    """One open ticket: a reservation and what led to it."""

    request: RoutingRequest
    key: ConversationKey | None
    """None where the request binds nothing."""
    choice: Choice
    sent_at: float
    run: int
    """Of the engine that it was sent to: what an earlier run did is not this one's fault."""
    conversation: Conversation | None = None
    retried: bool = False
    first_byte_at: float | None = None
