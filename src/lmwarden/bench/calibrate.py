"""From a few timings of a host to a hardware profile for ``simulate``.

Theory of operation
-------------------
The simulation's step (see ``simulation.hardware``) depends on a card and a model through five times only, all seconds:

    overhead        of each step
    weights         reading the weights once: the floor of the linear layers
    token           linear layers, per token that goes through them
    pair            attention, per (token, attended token)
    context         reading keys and values, per token of context

and a client adds a sixth, its way to the host and back (``network``). Two kinds of timings hold all of them:

* the first token of a prompt of n tokens, which is computed in chunks: network + for each chunk
  overhead + max(weights, n * token) + pairs * pair + context so far * context;
* the time per token of k answers at once with c tokens of context each:
  overhead + max(weights, k * token) + k * c * (pair + context).

For a given share of ``weights`` in the floor of a step, and once it is known which chunks are bound by arithmetic, the
times are linear in the rest. So the fit tries shares, solves a non-negative least-squares problem of five unknowns in
relative errors for each, and repeats that until the chunks stay what they are.

The profile needs bytes and floating point operations; only their ratios to the card's rates were measured, so the rates
are set to round numbers and the rest follows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from lmwarden.bench.errors import BenchError

_FLOPS_PER_S = 1e14
_MEMORY_BYTES_PER_S = 1e12
_SHARES = 41
_ROUNDS = 8


class PromptTime(NamedTuple):
    """One prompt that no cache knew, alone on the host."""

    prompt_tokens: int
    seconds: float
    """From the send to the first token."""


class StepTime(NamedTuple):
    """Answers that were generated at the same time."""

    answers: int
    context_tokens: float
    """Of each, on the average while it was timed."""
    seconds: float
    """From one token of an answer to its next."""


class StepModel(NamedTuple):
    """What a host takes, in seconds; see the top of this module."""

    network_s: float
    overhead_s: float
    weights_s: float
    token_s: float
    pair_s: float
    context_s: float
    max_num_batched_tokens: int

    def first_token_s(self, prompt_tokens: int) -> float:
        """Seconds to the first token of a prompt that no cache knows."""
        seconds, before = self.network_s, 0
        for tokens in chunks(prompt_tokens, self.max_num_batched_tokens):
            pairs = tokens * (before + tokens / 2)
            before += tokens
            seconds += self.overhead_s + max(self.weights_s, tokens * self.token_s)
            seconds += pairs * self.pair_s + before * self.context_s
        return seconds

    def step_s(self, answers: int, context_tokens: float) -> float:
        """Seconds per token of so many answers at once."""
        linear_s = max(self.weights_s, answers * self.token_s)
        return self.overhead_s + linear_s + answers * context_tokens * (self.pair_s + self.context_s)


class HostFacts(NamedTuple):
    """What a host says of itself. None: it does not."""

    kv_cache_tokens: int | None
    """Of one replica."""
    block_size: int | None
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int


def chunks(prompt_tokens: int, most: int) -> list[int]:
    """Return the sizes of the steps in which a prompt is computed."""
    whole, rest = divmod(prompt_tokens, most)
    return [most] * whole + ([rest] if rest else [])


def fit(prompts: Sequence[PromptTime], steps: Sequence[StepTime], max_num_batched_tokens: int) -> StepModel:
    """Return the step model that explains the timings best, in relative errors.

    Raises:
        BenchError: there are too few timings, or they make no sense.
    """
    if len(prompts) < 3 or len(steps) < 3:
        raise BenchError(f"too few timings for a profile: {len(prompts)} of prompts and {len(steps)} of answers")
    if min(*(timing.seconds for timing in prompts), *(step.seconds for step in steps)) <= 0:
        raise BenchError("a timing of 0 s or less: the host's answers cannot be timed from here")
    models = [
        model
        for share in range(_SHARES)
        if (model := _fit_share(share / (_SHARES - 1), prompts, steps, max_num_batched_tokens)) is not None
    ]
    if not models:
        raise BenchError("the timings contradict each other: no step model explains them")
    return min(models, key=lambda model: sum(error**2 for error in errors(model, prompts, steps)))


def errors(model: StepModel, prompts: Sequence[PromptTime], steps: Sequence[StepTime]) -> list[float]:
    """Return by how much the model is off at each timing, over the timing."""
    return [
        *(model.first_token_s(timing.prompt_tokens) / timing.seconds - 1 for timing in prompts),
        *(model.step_s(timing.answers, timing.context_tokens) / timing.seconds - 1 for timing in steps),
    ]


def _fit_share(
    share: float, prompts: Sequence[PromptTime], steps: Sequence[StepTime], max_num_batched_tokens: int
) -> StepModel | None:
    """With ``weights`` a given share of a step's floor. Unknown: network, floor, token, pair, context."""
    token_s = 0.0
    model: StepModel | None = None
    bound_s = 0.0
    for _ in range(_ROUNDS):
        rows: list[list[float]] = []
        for timing in prompts:
            row, before = [1.0, 0.0, 0.0, 0.0, 0.0], 0
            for tokens in chunks(timing.prompt_tokens, max_num_batched_tokens):
                arithmetic = model is None or tokens * token_s > bound_s
                row[1] += 1 - share if arithmetic else 1
                row[2] += tokens if arithmetic else 0
                row[3] += tokens * (before + tokens / 2)
                before += tokens
                row[4] += before
            rows.append([*(value / timing.seconds for value in row), 1.0])
        for step in steps:
            arithmetic = model is not None and step.answers * token_s > bound_s
            context = step.answers * step.context_tokens
            row = [0.0, 1 - share if arithmetic else 1.0, step.answers if arithmetic else 0.0, context, context]
            rows.append([*(value / step.seconds for value in row), 1.0])
        solution = _least_squares(rows)
        if solution is None:
            return None
        network_s, floor_s, token_s, pair_s, context_s = solution
        bound_s = share * floor_s
        found = StepModel(network_s, (1 - share) * floor_s, bound_s, token_s, pair_s, context_s, max_num_batched_tokens)
        if found == model:
            break
        model = found
    return model


def _least_squares(rows: Sequence[Sequence[float]]) -> list[float] | None:
    """Non-negative least squares, exactly: the best of the solutions in which some unknowns are 0.

    A row is the coefficients and, last, the value. None: no solution is unique.
    """
    count = len(rows[0]) - 1
    best: tuple[float, list[float]] | None = None
    for size in range(1, count + 1):
        for chosen in itertools.combinations(range(count), size):
            part = _solve(rows, chosen)
            if part is None or min(part) < 0:
                continue
            solution = [0.0] * count
            for index, value in zip(chosen, part, strict=True):
                solution[index] = value
            residual = sum((_product(row[:count], solution) - row[count]) ** 2 for row in rows)
            if best is None or residual < best[0]:
                best = (residual, solution)
    return None if best is None else best[1]


def _solve(rows: Sequence[Sequence[float]], chosen: Sequence[int]) -> list[float] | None:
    """Least squares over the chosen unknowns by the normal equations; None where they are singular."""
    # Columns differ by many orders of magnitude: scaled, the elimination stays accurate.
    scales = [math.sqrt(sum(row[index] ** 2 for row in rows)) for index in chosen]
    if min(scales) == 0:
        return None
    columns = [[row[index] / scale for row in rows] for index, scale in zip(chosen, scales, strict=True)]
    values = [row[-1] for row in rows]
    size = len(columns)
    matrix = [[*(_product(left, right) for right in columns), _product(left, values)] for left in columns]
    for pivot in range(size):
        top = max(range(pivot, size), key=lambda index: abs(matrix[index][pivot]))
        matrix[pivot], matrix[top] = matrix[top], matrix[pivot]
        if abs(matrix[pivot][pivot]) < 1e-9:
            return None
        for index in range(size):
            if index != pivot:
                factor = matrix[index][pivot] / matrix[pivot][pivot]
                matrix[index] = [a - factor * b for a, b in zip(matrix[index], matrix[pivot], strict=True)]
    return [matrix[index][size] / matrix[index][index] / scales[index] for index in range(size)]


def _product(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def profile_toml(name: str, description: str, model: StepModel, facts: HostFacts) -> str:
    """Return a profile that ``simulate --hardware FILE`` takes."""
    max_model_len = facts.max_model_len or 32768
    kv_cache_tokens = facts.kv_cache_tokens or 4 * max_model_len
    kv_bytes = model.context_s * _MEMORY_BYTES_PER_S
    known = "From the engine's metrics." if facts.kv_cache_tokens else "NOT MEASURED, a guess: put in what vLLM logs."
    return f"""\
# Written by lmwarden calibrate. Times were measured; bytes and operations are these times at rates of round numbers,
# so only their ratios mean something.
name = {_text(name)}
description = {_text(description)}
flops_per_s = {_FLOPS_PER_S:.6g}
memory_bytes_per_s = {_MEMORY_BYTES_PER_S:.6g}
# {1e6 * model.token_s:.3g} microseconds for each prompt token
parameters = {model.token_s * _FLOPS_PER_S / 2:.6g}
# {1e3 * model.weights_s:.3g} ms to read them
weights_bytes = {model.weights_s * _MEMORY_BYTES_PER_S:.6g}
attention_flops_per_pair = {model.pair_s * _FLOPS_PER_S:.6g}
kv_bytes_per_token = {kv_bytes:.6g}
overhead_s = {model.overhead_s:.6g}
# NOT MEASURED, a guess: loading a token from a CPU tier takes a tenth of computing it.
host_bytes_per_s = {max(1.0, kv_bytes) / max(1e-9, 0.1 * model.token_s):.6g}
# {known}
kv_cache_tokens = {kv_cache_tokens}
block_size = {facts.block_size or 16}
# Not measured: as given, or vLLM's defaults.
max_num_seqs = {facts.max_num_seqs}
max_num_batched_tokens = {facts.max_num_batched_tokens}
max_model_len = {max_model_len}
"""


def _text(value: str) -> str:
    """A TOML string; quotes and control characters cannot be part of a model's name here."""
    return '"' + "".join(char for char in value if char.isprintable() and char not in '"\\') + '"'
