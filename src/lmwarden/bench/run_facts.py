"""The facts of a run: the machine, the versions, the command, and how it was measured."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from lmwarden import __version__
from lmwarden.bench.language import Language
from lmwarden.bench.notes import most_repeats
from lmwarden.bench.results import BenchResult, LevelResult, RunFacts, arm_names

_SECRET_FLAGS = ("--key",)
_HIDDEN = "***"
_LIBRARIES = ("aiohttp", "uvloop", "msgspec")


def command_line(arguments: Sequence[str]) -> str:
    """Return a command line as it can be repeated, with secrets hidden."""
    shown, hide = ["lmwarden"], False
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        if hide:
            shown.append(_HIDDEN)
        elif equals and flag in _SECRET_FLAGS:
            shown.append(f"{flag}={_HIDDEN}")
        else:
            shown.append(argument)
        hide = not hide and argument in _SECRET_FLAGS
    return shlex.join(shown)


def utc_now() -> str:
    """Return the wall time, e.g. 2026-11-29T23:10:00Z."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def machine() -> str:
    """Describe this host."""
    memory_gib = psutil.virtual_memory().total / (1 << 30)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cores} cores, {memory_gib:.0f} GiB, {platform.system()} {platform.release()}"


def versions() -> dict[str, str]:
    """Versions of what took part."""
    found = {"lmwarden": __version__, "python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def fact_rows(result: BenchResult, words: Language) -> list[tuple[str, str]]:
    """Return what a page says about a run: name and value, in a language."""
    rows: list[tuple[str, str]] = []
    run = result.run
    if run is not None:
        rows += [("command", run.command), ("started", run.started), ("machine", run.machine)]
        rows.append(("versions", ", ".join(f"{name} {number}" for name, number in run.versions.items())))
    rows.append(("workload", result.workload))
    if result.hardware is not None:
        rows.append(("hardware", result.hardware))
    rows += _how(result.levels, run, words)
    return [(words.text(f"fact.{key}"), value) for key, value in rows]


def _how(levels: Sequence[LevelResult], run: RunFacts | None, words: Language) -> list[tuple[str, str]]:
    if not levels:
        return []
    seconds = max(row.seconds for row in levels)
    warmup = f"{run.warmup_s:g}" if run is not None else "0"
    arms = " → ".join(arm_names(levels))
    repeats = most_repeats(levels)
    rows = [
        ("seconds", words.text("fact.seconds_value", seconds=f"{seconds:g}", warmup=warmup)),
        ("loop", words.text(f"fact.loop_{levels[0].loop}")),
        ("order", words.text("fact.order_value" if repeats > 1 else "fact.order_single", order=arms)),
        ("repeats", str(repeats)),
        ("seeds", ", ".join(str(seed) for seed in dict.fromkeys(row.seed for row in levels))),
    ]
    if run is None:
        return rows
    if run.replicas is not None:
        rows.append(("replicas", str(run.replicas)))
    rows += [
        ("think", run.think),
        ("caches", words.text(f"fact.caches_{_caches(levels, run)}")),
        ("prompt_reuse", words.text(f"fact.reuse_{run.prompt_reuse}")),
        ("network", f"{run.network_s:g} s"),
    ]
    if run.speed != 1:
        rows.append(("speed", words.text("fact.speed_value", speed=f"{run.speed:g}")))
    if run.tester_lag_p99_s is not None:
        rows.append(("lag", f"{1000 * run.tester_lag_p99_s:.1f} ms"))
    return rows


def _caches(levels: Sequence[LevelResult], run: RunFacts) -> str:
    if run.caches == "warm":
        return "warm"
    return "emptied" if all(row.caches_emptied for row in levels) else "unique"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
