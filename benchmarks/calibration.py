"""``lmwarden calibrate`` against a simulated engine whose hardware is known: do the recovered numbers predict?

    ./run python benchmarks/calibration.py [--hardware a4000-qwen3-4b] [--speed 1]

Speed 1, about two minutes. Sizes are predicted that were not measured; allowed are 10 %, else the exit status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from lmwarden.bench.calibrate import StepModel, fit
from lmwarden.bench.calibrate_probe import HttpProbe, cache_facts, max_model_len, measure
from lmwarden.cli.engine_process import simulated_engine
from lmwarden.simulation.hardware import HardwareProfile, load_profile

PROMPTS = (300, 1500, 3300, 6500, 12_000)
STEPS = ((1, 6000), (3, 800), (3, 9000), (6, 2000), (12, 1000))


def true_model(hardware: HardwareProfile) -> StepModel:
    """The profile's own step, as the fit knows it."""
    return StepModel(
        network_s=0.0,
        overhead_s=hardware.overhead_s,
        weights_s=hardware.weights_bytes / hardware.memory_bytes_per_s,
        token_s=2 * hardware.parameters / hardware.flops_per_s,
        pair_s=hardware.attention_flops_per_pair / hardware.flops_per_s,
        context_s=hardware.kv_bytes_per_token / hardware.memory_bytes_per_s,
        max_num_batched_tokens=hardware.max_num_batched_tokens,
    )


async def calibrate(hardware: str, speed: float) -> StepModel:
    """Measure a simulated engine in a child process."""
    arguments = ["--replicas", "1", "--hardware", hardware, "--speed", f"{speed:g}", "--model", "m"]
    async with simulated_engine(arguments) as engine:
        cache = await cache_facts(engine.url)
        print(cache)
        longest = await max_model_len(engine.url, "m", None)
        async with HttpProbe(engine.url, "m", key=None, clock=lambda: time.monotonic() * speed) as probe:
            prompts, steps = await measure(
                probe, longest, cache.kv_cache_tokens, lambda text: print(f"  {text}", flush=True)
            )
    return fit(prompts, steps, load_profile(hardware).max_num_batched_tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", default="a4000-qwen3-4b")
    parser.add_argument("--speed", type=float, default=1.0)
    options = parser.parse_args()
    found, true = asyncio.run(calibrate(options.hardware, options.speed)), true_model(load_profile(options.hardware))
    print(f"network {1e3 * found.network_s:.1f} ms; what follows is without it")
    for name, ours, theirs in zip(StepModel._fields[1:6], found[1:6], true[1:6], strict=True):
        print(f"  {name:12} {ours:.4g}, true {theirs:.4g}")
    worst = 0.0
    for tokens in PROMPTS:
        worst = max(
            worst,
            off(f"first token of {tokens}", found.first_token_s(tokens) - found.network_s, true.first_token_s(tokens)),
        )
    for answers, context in STEPS:
        worst = max(
            worst,
            off(f"{answers} x {context}, per token", found.step_s(answers, context), true.step_s(answers, context)),
        )
    print(f"worst {100 * worst:.1f} %")
    return 1 if worst > 0.1 else 0


def off(what: str, predicted_s: float, true_s: float) -> float:
    """Print one comparison; how far it is off."""
    error = predicted_s / true_s - 1
    print(f"{what:24} predicted {predicted_s:8.4f} s, true {true_s:8.4f} s: {100 * error:+.1f} %")
    return abs(error)


if __name__ == "__main__":
    sys.exit(main())
