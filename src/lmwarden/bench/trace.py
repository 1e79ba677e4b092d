"""A recorded trace, as the load tester plays it. The format is in ``lmwarden.trace_format``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lmwarden.bench.errors import PlanError
from lmwarden.bench.workload import Workload, load_workload, typed_path
from lmwarden.trace_format import TraceHead as TraceHead
from lmwarden.trace_format import TraceRequest as TraceRequest
from lmwarden.trace_format import TraceWriter as TraceWriter

_RECORDED = "recorded"
_TRACE = "trace:"


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A whole trace, in the order of sending. ``hashes[i]`` are all block hashes of request ``i``."""

    name: str
    head: TraceHead
    requests: tuple[TraceRequest, ...]
    hashes: tuple[tuple[str, ...], ...]

    def think_named(self, name: str) -> None:
        """Accept ``none`` and ``recorded``, as a workload accepts its own gaps.

        Raises:
            PlanError: it is another name.
        """
        if name not in ("none", _RECORDED):
            raise PlanError(f"--think {name}: a trace has none, {_RECORDED}")

    def keeps_gaps(self, think: str) -> bool:
        """Whether the recorded gaps between turns are wanted."""
        return think == _RECORDED

    def tokens_per_unit(self) -> float:
        """Tokens of one unit: 1, or for bytes what the engine counted over all prompts (a quarter if it did not)."""
        if self.head.unit == "tokens":
            return 1.0
        counted = [(request.prompt_tokens, request.prompt) for request in self.requests if request.prompt_tokens]
        total_bytes = sum(prompt for _, prompt in counted)
        return sum(tokens for tokens, _ in counted if tokens) / total_bytes if total_bytes else 0.25


def load_played(name: str, *, open_loop: str | None) -> Workload | Trace:
    """Load what ``--workload`` names: a shipped workload, the path of a ``.toml`` file, or ``trace:FILE``.

    Args:
        name: of the workload.
        open_loop: as it was typed; only a trace has recorded starts.

    Raises:
        PlanError: there is none, it cannot be used, or it has no recorded starts.
    """
    if name.startswith(_TRACE):
        return read_trace(typed_path(name.removeprefix(_TRACE)))
    if open_loop == _RECORDED:
        raise PlanError(f"--open-loop {_RECORDED} needs --workload {_TRACE}FILE")
    return load_workload(name)


def read_trace(path: Path) -> Trace:
    """Read a trace.

    Raises:
        PlanError: it cannot be read, or a line is not as this module's text says; the line is named.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise PlanError(f"--workload trace:{path}: {error.strerror}") from error
    found: list[tuple[TraceRequest, tuple[str, ...]]] = []
    last: dict[str, tuple[str, ...]] = {}
    number = 1
    try:
        head = msgspec.json.decode(lines[0] if lines else b"", type=TraceHead)
        for line in lines[1:]:
            number += 1
            request = msgspec.json.decode(line, type=TraceRequest)
            before = last.get(request.conversation, ())
            if request.same > len(before):
                raise ValueError(f"same is {request.same}, but the request before it has {len(before)} blocks")
            whole = before[: request.same] + request.blocks
            if len(whole) * head.block > request.prompt:
                raise ValueError(f"{len(whole)} blocks are more than a prompt of {request.prompt} {head.unit} has")
            last[request.conversation] = whole
            found.append((request, whole))
    except (msgspec.DecodeError, ValueError) as error:
        raise PlanError(f"--workload trace:{path}: line {number}: {' '.join(str(error).split())}") from error
    if not found:
        raise PlanError(f"--workload trace:{path}: it holds no request")
    found.sort(key=lambda one: one[0].t_s)
    requests, hashes = zip(*found, strict=True)
    return Trace(name=f"trace:{path.name}", head=head, requests=requests, hashes=hashes)
