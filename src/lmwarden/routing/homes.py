"""Where conversations are at home, over a restart of the warden.

A home is worth something as long as its replica's cache is: it is dropped if the engine restarted meanwhile, which its
boot id tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lmwarden.routing.conversations import ConversationTable
from lmwarden.routing.replicas import Fleet
from lmwarden.types import Home, ReplicaId


def export_homes(table: ConversationTable) -> list[Home]:
    """Every bound conversation whose home's cache is alive."""
    return [
        Home(
            conversation=key,
            replica=conversation.home.id,
            boot_id=conversation.home.boot_id,
            context_tokens=conversation.context_tokens,
            last_used=conversation.last_used,
        )
        for key, conversation in table
        if conversation.home is not None and conversation.has_home
    ]


def restore_homes(
    table: ConversationTable, fleet: Fleet, homes: Iterable[Home], boot_ids: Mapping[ReplicaId, str], now: float
) -> int:
    """Take back what was exported before a restart.

    Args:
        table: Where they go, as dormant.
        fleet: The replicas, which need not be up yet.
        homes: From ``export_homes``; ``last_used`` already moved to this run's clock.
        boot_ids: The boot id that each replica has now.
        now: Seconds.

    Returns:
        How many were taken; not those whose engine restarted, nor those that are known already.
    """
    taken = 0
    for home in homes:
        replica = fleet.get(home.replica)
        if replica is None or boot_ids.get(home.replica) != home.boot_id:
            continue
        if replica.boot_id not in ("", home.boot_id) or table.get(home.conversation) is not None:
            continue
        replica.boot_id = home.boot_id
        conversation = table.restore(home.conversation, min(home.last_used, now))
        conversation.bind(replica)
        conversation.turns = 1
        conversation.context_tokens = home.context_tokens
        taken += 1
    return taken
