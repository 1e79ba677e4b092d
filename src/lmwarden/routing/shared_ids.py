"""Ids that turn out to be constants which several clients send: each opening becomes a conversation of its own.

How that is noticed stands in ``Conversation.note_opening``.
"""

from __future__ import annotations

import hashlib

import msgspec

from lmwarden.routing.conversations import ConversationTable
from lmwarden.types import RoutingRequest


def split_shared(table: ConversationTable, request: RoutingRequest, now: float) -> RoutingRequest:
    """Make one conversation per opening of an id that several clients send; other requests stay as they are."""
    if request.conversation is None or request.opening is None or request.derived or request.auxiliary:
        return request
    conversation = table.get(request.conversation)
    if conversation is None:
        return request
    if not conversation.shared:
        conversation.note_opening(request.opening)
    if not conversation.shared or request.opening == conversation.base_opening:
        return request
    # The entry of the base carries the mark: it must not be forgotten before the others.
    table.detach(conversation)
    table.touch(request.conversation, conversation, now)
    table.attach(conversation)
    key = hashlib.blake2b(request.opening, key=request.conversation, digest_size=16).digest()
    # Not as a fork: its prefix is where all the others' are, and that is to end.
    return msgspec.structs.replace(request, conversation=key, resumed=False)
