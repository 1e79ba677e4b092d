"""Attaching at start: every engine of the configuration, reachable or not.

An engine that does not answer is tried again and again, with a plain line in the log when the reason changes and,
ever more rarely, while it stays. The warden starts without it only if the operator stated what it would have told:
its model and its number of ranks. Otherwise a wrong guess (one rank instead of four, say) would silently switch pins
off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec
import structlog

from lmwarden.config import EngineConfig, WatchConfig, parse_engine_url
from lmwarden.engine.client import EngineClient, EngineError
from lmwarden.engine.complaints import Complaints
from lmwarden.engine.discover import EngineFacts, Place, discover, flag_of
from lmwarden.types import EngineEndpoint

log = structlog.get_logger("lmwarden.engine")

T = TypeVar("T")


class Attached(msgspec.Struct, frozen=True, kw_only=True):
    """One engine that can be routed to."""

    endpoint: EngineEndpoint
    client: EngineClient
    facts: EngineFacts | None
    """None: it did not answer yet; what the operator stated stands in the endpoint."""
    max_num_seqs: int | None


async def attach_engines(
    config: EngineConfig,
    *,
    stated_model: str | None,
    first_number: int,
    session: aiohttp.ClientSession,
    settings: WatchConfig,
    place: Place = flag_of,
) -> list[Attached]:
    """Attach all engines of one ``[[models]]``.

    Args:
        config: their section.
        stated_model: the engine's name for the model, if the operator stated it.
        first_number: of the short names: ``e0``, ``e1``, ...
        session: for all questions, now and later.
        settings: intervals and time limits.
        place: where the operator gives the keys of the section.

    Raises:
        ConfigError: an engine contradicts the configuration.
    """
    api_key = config.api_key()
    endpoints = [
        _endpoint(url, f"e{number}", stated_model or "", config.data_parallel_size or 1, api_key)
        for number, url in enumerate(config.attach, first_number)
    ]
    return await together([_attach(endpoint, config, stated_model, session, settings, place) for endpoint in endpoints])


async def together(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all to their ends; the first error ends the others too and is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _attach(
    endpoint: EngineEndpoint,
    config: EngineConfig,
    stated_model: str | None,
    session: aiohttp.ClientSession,
    settings: WatchConfig,
    place: Place,
) -> Attached:
    client = EngineClient(endpoint, session, settings.probe_timeout_s)
    can_start_without = stated_model is not None and config.data_parallel_size is not None
    complaints = Complaints()
    while True:
        try:
            facts = await discover(
                client, model=stated_model, data_parallel_size=config.data_parallel_size, place=place
            )
        except EngineError as error:
            reason = str(error)
        else:
            return Attached(
                endpoint=msgspec.structs.replace(endpoint, model=facts.model, ranks=facts.ranks),
                client=client,
                facts=facts,
                max_num_seqs=config.max_num_seqs,
            )
        if can_start_without:
            log.warning("engine not reached; starting without it", engine=endpoint.engine, reason=reason)
            return Attached(endpoint=endpoint, client=client, facts=None, max_num_seqs=config.max_num_seqs)
        if complaints.worth_saying(reason, asyncio.get_running_loop().time()):
            log.warning("waiting for an engine", engine=endpoint.engine, reason=reason)
        await asyncio.sleep(settings.attach_retry_s)


def _endpoint(url: str, engine: str, model: str, ranks: int, api_key: str | None) -> EngineEndpoint:
    parsed = parse_engine_url(url)
    return EngineEndpoint(
        engine=engine,
        host=parsed.host,
        port=parsed.port,
        base_path=parsed.base_path,
        tls=parsed.tls,
        ranks=ranks,
        model=model,
        api_key=api_key,
    )


def by_model(attached: Sequence[Attached]) -> dict[str, list[Attached]]:
    """Engines grouped by the name under which they serve a model, in order."""
    groups: dict[str, list[Attached]] = {}
    for engine in attached:
        groups.setdefault(engine.endpoint.model, []).append(engine)
    return groups
