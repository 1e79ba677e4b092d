"""``lmwarden simulated-engine``: one simulated vLLM server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Literal

import cyclopts

from lmwarden.cli.errors import UsageError


def register(app: cyclopts.App) -> None:
    """Add the command."""
    app.command(simulated_engine, name="simulated-engine")


def simulated_engine(
    *,
    port: Annotated[int, cyclopts.Parameter(help="Port on 127.0.0.1; 0: a free one.")],
    replicas: Annotated[int, cyclopts.Parameter(help="Data-parallel ranks.")] = 4,
    hardware: Annotated[str, cyclopts.Parameter(help="A named profile, or a TOML file.")] = "a4000-qwen3-4b",
    speed: Annotated[float, cyclopts.Parameter(help="Modelled seconds per second.")] = 1.0,
    model: Annotated[str, cyclopts.Parameter(help="The name it is served by.")] = "qwen3-4b",
    kv_cache_tokens: Annotated[int | None, cyclopts.Parameter(help="KV cache of each rank, in tokens.")] = None,
    max_num_seqs: Annotated[int | None, cyclopts.Parameter(help="Sequences that a rank runs at once.")] = None,
    cpu_cache_tokens: Annotated[int, cyclopts.Parameter(help="CPU tier of each rank, in tokens.")] = 0,
    balancer: Annotated[
        Literal["0.26", "0.26-moe", "0.27"], cyclopts.Parameter(help="The vLLM version that it imitates.")
    ] = "0.26",
    tool_calls: Annotated[
        bool,
        cyclopts.Parameter(
            negative="", help="Answers to requests with tools end in a tool call, unless tool_choice is none."
        ),
    ] = False,
) -> None:
    """Serve vLLM's HTTP API from a model of its cache, scheduler and speed; no GPU needed.

    Prints one line with its address when it listens, and ends on SIGTERM or Ctrl-C.
    """
    import uvloop

    from lmwarden.simulation.options import SimulatedEngineOptions
    from lmwarden.simulation.server import run_server

    if not 0 <= port <= 65535:
        raise UsageError(f"--port: must be from 0 to 65535, not {port}")
    if not model:
        raise UsageError("--model: must be a name, not ''")
    options = SimulatedEngineOptions(
        port=port,
        replicas=replicas,
        hardware=hardware,
        speed=speed,
        model=model,
        kv_cache_tokens=kv_cache_tokens,
        max_num_seqs=max_num_seqs,
        cpu_cache_tokens=cpu_cache_tokens,
        balancer=balancer,
        tool_calls=tool_calls,
    )
    try:
        uvloop.run(run_server(options, on_listening=lambda url: print(f"listening on {url}", flush=True)))
    except ValueError as error:
        raise UsageError(_with_flag(str(error), SimulatedEngineOptions.__struct_fields__)) from None
    except OSError as error:
        # asyncio's own text repeats address and number; the system's words for the number are enough.
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UsageError(f"--port: cannot listen on 127.0.0.1 port {port}: {reason}; choose another") from None


def _with_flag(sentence: str, options: Sequence[str]) -> str:
    """``kv_cache_tokens must be ...`` with the name of the flag instead of the option's."""
    name, _, rest = sentence.partition(" ")
    return f"--{name.replace('_', '-')} {rest}" if name in options else f"--hardware: {sentence}"
