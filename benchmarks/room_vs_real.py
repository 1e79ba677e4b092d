"""The waiting room on a real vLLM: is the cure as real as the illness?

    ./run python -m benchmarks.room_vs_real [--levels 6,12] [--repeats 2] [--seconds 120] [--scale 1] [--out DIR]

A real vLLM on the CPU (tiny random model, two ranks, 20,480 KV tokens each), the warden in front of it, and the load
tester's own agent sessions: six turns, prompts of about 6,500 tokens of which 1,600 are shared, 40 output tokens,
closed loop. Three conversations fit a rank, so the lower level is the caches' capacity and the higher one twice that.
The arms are off, on (waiting room off) and on+admission (as shipped), switched through the console, in turn and
beginning with another one in each repeat; caches are emptied before each run. Times are from the client's send, so the
wait in the room is in them. ``--scale 0.3`` makes prompts and caches smaller by that factor, for a machine that is slow
or busy.

Reached is, exit status 0: at twice the capacity at least 2 times the output of both other arms and a median of at most
a fifth of off's; at capacity no column worse than on's by more than the runs of one arm differ from each other. The
model computes next to nothing but attention and the processor reads slowly, so reading again costs more here than on a
GPU, and the gain is larger.

Needs the environment of ``scripts/real-vllm-env.sh``. With the defaults it takes half an hour on two idle cores.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.real import vllm_server
from tests.real.warden_process import start_warden

from lmwarden.bench.measures import HITS, OUTPUT, SESSIONS_PER_HOUR, TTFB_P50, TTFB_P95, Measure
from lmwarden.bench.plan import Plan
from lmwarden.bench.progress import TerminalProgress, make_terminal
from lmwarden.bench.report import markdown
from lmwarden.bench.results import BenchResult, LevelResult, repeats, write_json
from lmwarden.bench.runner import RunOutcome, run_plan, stop_on_signals
from lmwarden.bench.workload import Layers, SessionShape, Workload

REPOSITORY = Path(__file__).resolve().parents[1]
OFF, ON, ROOM = ARMS = ("off", "on", "on+admission")
SHARED, FIRST, TURN = 500, (1_050, 1_150), (110, 130)
"""Words of three letters. Of each the tiny model's tokenizer makes so many tokens:"""
TOKENS_PER_WORD = 3.2
TURNS, OUTPUT_TOKENS, ANSWER_TOKENS = 6, 40, 60
"""What an answer has, and what it has when it comes back as text: it is noise."""
MAX_POSITIONS = 16_384
FIT_A_RANK = 3
SPARE = 1.08
"""A rank holds so many times what three conversations have at their ends."""
OUTPUT_FACTOR, MEDIAN_FACTOR = 2.0, 0.2
NOISE_RATIO = 0.05
"""Two runs of one arm differ by this much at least, even where only two were made and happened to agree."""
HIGHER_IS_BETTER = (SESSIONS_PER_HOUR, OUTPUT, HITS)
LOWER_IS_BETTER = (TTFB_P50, TTFB_P95)


def workload(scale: float) -> Workload:
    """The sessions."""
    first, turn = ((round(scale * low), round(scale * high)) for low, high in (FIRST, TURN))
    return Workload(
        name="six turns of long contexts",
        layers=Layers(shared_system_tokens=round(scale * SHARED), first_message_tokens=first, turn_tokens=turn),
        session=SessionShape(turns=TURNS, max_output_tokens=OUTPUT_TOKENS),
    )


def size(scale: float) -> vllm_server.Size:
    """Caches that three conversations fit."""
    own = scale * TOKENS_PER_WORD * (sum(FIRST) + (TURNS - 1) * sum(TURN)) / 2 + TURNS * ANSWER_TOKENS
    tokens = SPARE * (scale * TOKENS_PER_WORD * SHARED + FIT_A_RANK * own)
    blocks = math.ceil(tokens / vllm_server.BLOCK_SIZE_TOKENS)
    return vllm_server.Size(
        # A server whose cache does not hold its longest request does not start.
        max_model_len_tokens=min(MAX_POSITIONS, blocks * vllm_server.BLOCK_SIZE_TOKENS),
        blocks_per_rank=blocks + 1,  # one is never given out
        recipe=("--max-positions", str(MAX_POSITIONS)),
    )


def plan_of(options: argparse.Namespace, client_url: str, console_url: str, engine_url: str) -> Plan:
    """What is run."""
    return Plan(
        url=client_url,
        model=vllm_server.MODEL,
        workload=workload(options.scale),
        levels=options.levels,
        arms=list(options.arms),
        seconds=options.seconds,
        warmup_s=options.warmup,
        rest_s=options.rest,
        repeats=options.repeats,
        clock=time.monotonic,
        console_url=console_url,
        engine_url=engine_url,
    )


async def measured(plan: Plan, out: Path | None) -> RunOutcome:
    """Run it; what was measured is kept in ``out`` after each run."""

    def keep(outcome: RunOutcome) -> None:
        if out is not None:
            write_json(result_of(outcome), out / "results.json")

    stop = asyncio.Event()
    with stop_on_signals(stop):
        return await run_plan(plan, TerminalProgress(make_terminal()), stop, on_result=keep)


def result_of(outcome: RunOutcome) -> BenchResult:
    """In the schema of the load tester."""
    return BenchResult(source="measured", hardware="vLLM on CPU", workload=workload(1).name, levels=outcome.levels)


def misses(rows: Sequence[LevelResult], levels: Sequence[int]) -> list[str]:
    """One line for each target that was not reached."""
    runs = repeats(rows)
    lowest, highest = min(levels), max(levels)
    missed = []
    for arm in (OFF, ON):
        gain = _ratio(OUTPUT, runs[highest, ROOM], runs[highest, arm])
        print(f"{highest} sessions: {gain:.2f} times the output of {arm}, at least {OUTPUT_FACTOR:g} wanted")
        if gain < OUTPUT_FACTOR:
            missed.append(f"{highest} sessions: output against {arm}")
    median = _ratio(TTFB_P50, runs[highest, ROOM], runs[highest, OFF])
    print(f"{highest} sessions: {median:.2f} times the median of {OFF}, at most {MEDIAN_FACTOR:g} wanted")
    if median > MEDIAN_FACTOR:
        missed.append(f"{highest} sessions: median")
    for measure in (*HIGHER_IS_BETTER, *LOWER_IS_BETTER):
        ratio = _ratio(measure, runs[lowest, ROOM], runs[lowest, ON])
        worse = ratio - 1 if measure in LOWER_IS_BETTER else 1 - ratio
        noise = max(NOISE_RATIO, *(_spread(measure, runs[lowest, arm]) for arm in (ON, ROOM)))
        print(f"{lowest} sessions: {measure.key} {ratio:.3f} times that of {ON}; runs of one arm differ by {noise:.3f}")
        if worse > noise:
            missed.append(f"{lowest} sessions: {measure.key}")
    return missed


def _ratio(measure: Measure, rows: Sequence[LevelResult], to: Sequence[LevelResult]) -> float:
    ours, theirs = measure.over(rows)[0], measure.over(to)[0]
    assert ours is not None and theirs, f"{measure.key} was not measured"
    return ours / theirs


def _spread(measure: Measure, rows: Sequence[LevelResult]) -> float:
    """Largest over smallest of the runs, less 1."""
    values = [value for row in rows if (value := measure.read(row))]
    return max(values) / min(values) - 1 if values else 0.0


def main() -> int:
    """Returns the exit status: 0 the targets are reached, 1 not, 3 no vLLM on this machine."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--levels", default="6,12", help="sessions at once: the capacity, and twice that")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--warmup", type=float, default=40.0)
    parser.add_argument("--rest", type=float, default=20.0, help="pause between two runs")
    parser.add_argument("--scale", type=float, default=1.0, help="of prompts and caches")
    parser.add_argument("--out", type=Path, help="folder for results.json and report.md")
    options = parser.parse_args()
    options.levels = [int(level) for level in options.levels.split(",")]
    options.arms = options.arms.split(",")
    made = subprocess.run([REPOSITORY / "scripts/real-vllm-env.sh"], check=False, text=True, stdout=subprocess.PIPE)
    if made.returncode:
        return made.returncode
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        server = vllm_server.start_vllm(Path(made.stdout.strip()), folder, size(options.scale))
        try:
            warden = start_warden(server.url, vllm_server.MODEL, folder, max_num_seqs=vllm_server.MAX_NUM_SEQS)
            try:
                warden.wait_for_pins()
                plan = plan_of(options, warden.client_url, warden.console_url, server.url)
                outcome = asyncio.run(measured(plan, options.out))
            finally:
                warden.stop()
        finally:
            server.stop()
    report = markdown(result_of(outcome))
    print(report)
    if options.out is not None:
        (options.out / "report.md").write_text(report)
    if outcome.first_error is not None:
        print(f"first error: {outcome.first_error}")
    wanted = {(level, arm) for level in options.levels for arm in ARMS}
    if not wanted <= set(repeats(outcome.levels)):
        print("not every arm was measured at every level")
        return 1
    missed = misses(outcome.levels, options.levels)
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
