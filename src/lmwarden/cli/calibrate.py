"""``lmwarden calibrate``: a hardware profile of one's own host, for ``simulate --hardware``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from lmwarden.bench.calibrate import HostFacts, PromptTime, StepModel, StepTime


def register(app: App) -> None:
    """Add the command to the application."""
    app.command(calibrate, name="calibrate")


def calibrate(
    *,
    url: str,
    model: str,
    key: Annotated[str | None, Parameter(env_var="LMWARDEN_KEY")] = None,
    engine: str | None = None,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    out: Path | None = None,
) -> int:
    """Measure a host in a few minutes and write a hardware profile of one replica.

    Nobody else should use the host meanwhile. Without --out the profile is printed.

    Args:
        url: any OpenAI-compatible endpoint; best the engine itself.
        model: the model's name there.
        key: API key.
        engine: where the engine's own /metrics are, for the size of its cache (default: the same as --url).
        max_num_seqs: of the engine; it does not say this itself.
        max_num_batched_tokens: of the engine; vLLM's default is 2048, on GPUs of 70 GiB and more 8192.
        out: file for the profile, which ends in .toml.
    """
    import asyncio

    from lmwarden.bench.errors import BenchError, PlanError
    from lmwarden.cli.bench import check_address

    for flag, address in (("--url", url), ("--engine", engine)):
        check_address(flag, address)
    if max_num_seqs < 1 or max_num_batched_tokens < 1:
        raise PlanError("--max-num-seqs and --max-num-batched-tokens must be at least 1")
    if out is not None and (out.suffix != ".toml" or out.is_dir() or not out.parent.is_dir()):
        raise PlanError(f"--out {out}: expected a .toml file in a folder that exists")
    text = asyncio.run(_run(url, model, key, engine or url, max_num_seqs, max_num_batched_tokens, out))
    if out is None:
        print(text, end="")
        return 0
    try:
        out.write_text(text, "utf-8")
    except OSError as error:
        raise BenchError(f"cannot write {out}: {error.strerror}") from error
    print(f"Written to {out}; lmwarden simulate --hardware {out} uses it.")
    return 0


async def _run(
    url: str,
    model: str,
    key: str | None,
    engine: str,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    out: Path | None,
) -> str:
    """Measure, say what was found, and return the profile."""
    import sys
    import time

    from rich.console import Console

    from lmwarden.bench.calibrate import HostFacts, fit, profile_toml
    from lmwarden.bench.calibrate_probe import HttpProbe, cache_facts, max_model_len, measure

    terminal = Console(file=sys.stderr if out is None else sys.stdout, highlight=False, markup=False, soft_wrap=True)
    cache = await cache_facts(engine)
    facts = HostFacts(
        kv_cache_tokens=cache.kv_cache_tokens,
        block_size=cache.block_size,
        max_model_len=await max_model_len(url, model, key),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    async with HttpProbe(url, model, key=key, clock=time.monotonic) as probe:
        prompts, steps = await measure(probe, facts.max_model_len, facts.kv_cache_tokens, terminal.print)
    found = fit(prompts, steps, max_num_batched_tokens)
    for line in summary(found, prompts, steps, facts, pinned=probe.pins_rank):
        terminal.print(line)
    name = out.stem if out is not None else "calibrated"
    return profile_toml(name, f"{model}, measured by lmwarden calibrate", found, facts)


def summary(
    model: StepModel,
    prompts: list[PromptTime],
    steps: list[StepTime],
    facts: HostFacts,
    *,
    pinned: bool,
) -> list[str]:
    """Return what was found, how well it fits, and what could not be measured, one plain sentence each."""
    from lmwarden.bench.calibrate import errors

    off = [abs(error) for error in errors(model, prompts, steps)]
    longest = max(prompts, key=lambda timing: timing.prompt_tokens)
    widest = max(steps, key=lambda timing: timing.answers)
    alone = min(steps, key=lambda timing: (timing.answers, timing.context_tokens))
    lines = [
        f"Prefill: {longest.prompt_tokens / longest.seconds:.0f} tokens/s over a prompt of"
        f" {longest.prompt_tokens} tokens.",
        f"Decode: {1 / alone.seconds:.0f} tokens/s alone,"
        f" {widest.answers / widest.seconds:.0f} tokens/s with {widest.answers} at once.",
        f"One step: {1e3 * model.overhead_s:.1f} ms overhead, {1e3 * model.weights_s:.1f} ms to read the weights;"
        f" {1e3 * model.network_s:.1f} ms of network.",
        f"The step model is off by {100 * sum(off) / len(off):.1f} % on the average and {100 * max(off):.1f} % at most,"
        f" over {len(off)} timings.",
    ]
    if max(off) > _POOR_FIT:
        lines.append("That is a poor fit: the host was busy, or it works in another way than the model.")
    if facts.kv_cache_tokens is None:
        lines.append(
            "Could not be measured: the size of the KV cache (no vLLM metrics at --engine); put the one that vLLM logs"
            " into kv_cache_tokens."
        )
    else:
        lines.append(f"KV cache of a replica: {facts.kv_cache_tokens} tokens, from the engine's metrics.")
    if not pinned:
        lines.append("The endpoint takes no rank: if it has several replicas, they look like one that is faster.")
    lines.append(
        f"Not measured: max_num_seqs ({facts.max_num_seqs}), max_num_batched_tokens"
        f" ({facts.max_num_batched_tokens}), and what loading from a CPU tier takes (a guess)."
    )
    return lines


_POOR_FIT = 0.25
