"""The waiting room on a real vLLM: is the cure as real as the illness?

    ./run python -m benchmarks.room_vs_real [--levels 6,12] [--repeats 2] [--seconds 120] [--scale 1]
                                            [--prefer balanced] [--out DIR]

A real vLLM on the CPU (tiny random model, two ranks, 40,000 KV tokens each), the warden in front of it, and the load
tester's own agent sessions: six turns, prompts of about 12,500 tokens of which 3,200 are shared, 40 output tokens,
closed loop. Three conversations fit a rank, so the lower level is the caches' capacity and the higher one twice that.
The arms are off, on (waiting room off) and on+admission (as shipped), switched through the console, in turn and
beginning with another one in each repeat; caches are emptied before each run. Times are from the client's send, so the
wait in the room is in them. ``--scale 0.5`` makes prompts and caches half as large: reading is then cheaper beside the
rest of a turn, and there is less to gain.

Reached is, exit status 0: at twice the capacity at least 2 times the output of both other arms and a median of at most
a fifth of off's; at capacity no column worse than on's by more than the runs of one arm differ from each other. How
large the gain is hangs on what reading costs beside the rest of a turn; docs/real-vllm.md has figures of two sizes.

Needs the environment of ``scripts/real-vllm-env.sh``. With the defaults it takes 40 minutes.
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
SHARED, FIRST, TURN = 1_000, (2_100, 2_300), (220, 260)
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
    if lowest == highest:
        return missed
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
    """Returns the exit status: 0 the targets are reached, or not all arms were asked for; 1 not; 3 no vLLM here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", default="6,12", help="sessions at once: the capacity, and twice that")
    parser.add_argument("--arms", default=",".join(ARMS), help="compared is only where all of these are there")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--warmup", type=float, default=40.0)
    parser.add_argument("--rest", type=float, default=20.0, help="pause between two runs")
    parser.add_argument("--scale", type=float, default=1.0, help="of prompts and caches")
    parser.add_argument("--prefer", default="balanced", help="of the waiting room: balanced, median or tail")
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
                warden.patch_routing(prefer=options.prefer)
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
    return verdict(outcome.levels, options.levels, options.arms)


def verdict(rows: Sequence[LevelResult], levels: Sequence[int], arms: Sequence[str]) -> int:
    """Print how what was measured compares; the exit status. Without all three arms there is nothing to compare."""
    if not {(level, arm) for level in levels for arm in arms} <= set(repeats(rows)):
        print("not every arm was measured at every level")
        return 1
    if not set(ARMS) <= set(arms):
        print(f"not compared: that takes the arms {', '.join(ARMS)}")
        return 0
    missed = misses(rows, levels)
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
