"""Where conversations are at home, over a restart of the warden.

A home is worth something as long as its replica's cache is, and that is as long as one run of the engine, which its
boot id names. After a restart homes stand under the boot id that they were written with: nobody needs to know yet
which run each engine is in. When a replica comes up, its boot id confirms its homes or loses them (router.py).

Changes are written down as they happen. The table notes only whose (``ConversationTable.touched``); what became of
them is looked up here, so a conversation that was used ten times since the last look is told once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lmwarden.routing.conversations import Conversation, ConversationTable
from lmwarden.routing.replicas import AWAITED_S, Fleet
from lmwarden.types import ConversationKey, Home, HomeChanges, ReplicaId


def export_homes(table: ConversationTable) -> list[Home]:
    """Every bound conversation whose home's cache is alive."""
    homes = (_home(key, conversation) for key, conversation in table)
    return [home for home in homes if home is not None]


def take_changes(table: ConversationTable) -> HomeChanges:
    """What became of homes since the last call; the first time, or where nobody asked for very long, all of them."""
    touched = table.touched
    if touched is None:
        table.touched = set()
        return HomeChanges(export_homes(table), [])
    changes = HomeChanges([], [])
    if touched:
        table.touched = set()
        for key in touched:
            conversation = table.get(key)
            home = None if conversation is None else _home(key, conversation)
            if home is None:
                changes.forgotten.append(key)
            else:
                changes.changed.append(home)
    return changes


def restore_homes(
    table: ConversationTable, fleet: Fleet, homes: Iterable[Home], boot_ids: Mapping[ReplicaId, str], now: float
) -> int:
    """Take back what was exported before a restart.

    Args:
        table: Where they go, as dormant. What is restored is no change of a home; what is not is told as forgotten.
        fleet: The replicas, which need not be up yet.
        homes: As exported; ``last_used`` already moved to this run's clock.
        boot_ids: The boot ids that are known already. Of a replica that is not named, the homes of its latest run
            are taken: runs follow one another, so that is the run of the home that was used last.
        now: Seconds.

    Returns:
        How many were taken; not those of other runs or unknown replicas, nor those that are known already.
    """
    if table.touched is None:
        table.touched = {key for key, _ in table}
    ordered = sorted(homes, key=lambda home: home.last_used)
    latest = {home.replica: home.boot_id for home in ordered}
    taken = 0
    for home in ordered:
        if table.get(home.conversation) is not None:
            continue
        replica = fleet.get(home.replica)
        known = "" if replica is None else replica.boot_id or boot_ids.get(home.replica) or latest[home.replica]
        if replica is None or not known or known != home.boot_id:
            table.note(home.conversation)
            continue
        if not replica.boot_id:
            replica.boot_id = known
            replica.awaited_until = now + AWAITED_S
        conversation = table.restore(home.conversation, min(home.last_used, now))
        conversation.bind(replica)
        conversation.turns = 1
        conversation.context_tokens = home.context_tokens
        taken += 1
    return taken


def _home(key: ConversationKey, conversation: Conversation) -> Home | None:
    home = conversation.home
    if home is None or not conversation.has_home:
        return None
    return Home(
        conversation=key,
        replica=home.id,
        boot_id=home.boot_id,
        context_tokens=conversation.context_tokens,
        last_used=conversation.last_used,
    )
