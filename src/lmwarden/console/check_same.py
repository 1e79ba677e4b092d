"""Is one server named twice? Two spellings of an address (``127.0.0.1`` and ``localhost``) look like two engines.

Routing would then believe in twice the replicas and twice the cache. A server's metrics name the run of each of its
ranks, and no two servers have all of these the same. An engine that names no run, or that the warden launched itself,
is never taken for another.
"""

from __future__ import annotations

from collections.abc import Iterator

from lmwarden.console.findings import Check, warning
from lmwarden.control import EngineSnapshot, ModelSnapshot


def check_same(model: ModelSnapshot) -> Iterator[Check]:
    """One line for each server that has several names."""
    servers: dict[tuple[str | None, ...], list[EngineSnapshot]] = {}
    for engine in model.engines:
        if engine.boot_ids and None not in engine.boot_ids and not engine.launched:
            servers.setdefault(engine.boot_ids, []).append(engine)
    for engines in servers.values():
        if len(engines) > 1:
            urls = " and ".join(engine.url for engine in engines)
            yield warning(
                "same_engine",
                f"{len(engines)} engines of this model are the same server: {urls}",
                "name it once, under one address: its replicas and caches are counted for each name",
                count=len(engines),
                urls=urls,
            )
