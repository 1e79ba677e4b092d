"""An open ticket: a request that was sent and has not ended, with the reservation that it holds."""

from __future__ import annotations

from lmwarden.routing.conversations import Conversation
from lmwarden.routing.explain import Choice
from lmwarden.types import ConversationKey, RoutingRequest


class OpenTurn:
    """One open ticket: a reservation and what led to it."""

    __slots__ = ("choice", "conversation", "first_byte_at", "key", "request", "retried", "run", "sent_at")

    def __init__(self, request: RoutingRequest, key: ConversationKey | None, choice: Choice, sent_at: float) -> None:
        self.request = request
        self.key = key
        """None where the request binds nothing."""
        self.conversation: Conversation | None = None
        self.choice = choice
        self.retried = False
        self.run = 0
        """Of the engine that it was sent to: what an earlier run did is not this one's fault."""
        self.sent_at = sent_at
        self.first_byte_at: float | None = None
