"""A model's engines: do they answer, obey, and report?"""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from lmwarden.console.findings import Check, Level, Param, fault, known, ok, warning
from lmwarden.control import SLOW_START_S, Crash, EngineSnapshot, LaunchState, ModelSnapshot
from lmwarden.types import PinVerdict, ReplicaState

STALE_SCRAPE_S = 10.0
"""Twice the age beyond which the router ignores a scrape."""


def check_engines(model: ModelSnapshot) -> Iterator[Check]:
    """All of them."""
    yield from _replicas(model)
    for engine in model.engines:
        for check in (*_process(engine, model.name), *_scrape(engine), *_pins(engine), *_usage_details(engine)):
            yield msgspec.structs.replace(check, engine=engine.engine)


def _replicas(model: ModelSnapshot) -> Iterator[Check]:
    states = [replica.state for replica in model.view.replicas]
    ready = states.count(ReplicaState.READY)
    text = f"{ready} of {len(states)} replicas take requests"
    say_why = "the lines about its engines and replicas say why"
    if not ready:
        yield fault("replicas", text, say_why, ready=ready, all=len(states))
    elif ready < len(states):
        yield warning("replicas", text, say_why, ready=ready, all=len(states))
    else:
        yield ok("replicas", text, ready=ready, all=len(states))
    if model.panic:
        yield fault(
            "panic",
            "the probes of all its engines fail, so they are tried all the same",
            "look what stands between the warden and the engines, and whether they are overloaded",
        )


def _process(engine: EngineSnapshot, model: str) -> Iterator[Check]:
    name, launch = engine.engine, engine.launch
    if launch is not None and launch.phase in _PHASES:
        yield _phase(engine, launch, model)
    elif engine.state == "down":
        why = f": {engine.complaint}" if engine.complaint else ""
        code, text = "engine_down", f"{name} at {engine.url} does not answer{why}"
        what_to_do = "start it, or look why it is unreachable"
        if launch is not None:  # its process lives
            code, text = "engine_hangs", f"{name} runs and does not answer{why}"
            what_to_do = f"{_LOOK}, or {_RESTART}".format(engine=name, model=model)
        yield fault(code, text, what_to_do, engine=name, url=engine.url, why=engine.complaint)
    elif engine.state == "starting":
        text = f"{name} at {engine.url} has not answered yet"
        yield warning("engine_starting", text, "wait, or look at its log", engine=name, url=engine.url)
    else:
        version = f", version {engine.version}" if engine.version else ""
        yield ok(
            "engine", f"{name} at {engine.url} answers{version}", engine=name, url=engine.url, version=engine.version
        )
    if launch is not None and launch.outdated:
        yield warning(
            "engine_outdated",
            f"{name} runs with another command than the configuration says now",
            f"a rolling restart applies it: POST /api/models/{model}/rolling-restart",
            engine=name,
        )


def _phase(engine: EngineSnapshot, launch: LaunchState, model: str) -> Check:
    """A launched engine that does not serve. One that crashed is said to have until it serves again."""
    crash = launch.last_crash
    if crash is not None and (crash.over_at is not None or launch.phase not in ("starting", "backing_off", "failed")):
        crash = None
    restarts = crash is not None and launch.phase == "starting"
    code, level, what_to_do = _PHASES["backing_off" if restarts else launch.phase]
    detail = launch.detail.rstrip(".")
    if crash is not None and restarts:
        detail = f"{crash.sentence} and is started again"
    last_line = f"{launch.last_lines[-1]:.300}" if launch.last_lines and level is Level.FAULT else None
    lasts_s = time.time() - launch.since
    minutes = round(lasts_s / 60) if launch.phase == "starting" and lasts_s > SLOW_START_S else None
    complaint = engine.complaint if engine.state == "starting" else None
    told = [
        detail,
        f" ({launch.step})" if launch.step else "",
        f" (its last line: {last_line})" if last_line and last_line not in detail else "",
        f", for {minutes} min now" if minutes is not None else "",
        f", but {complaint}" if complaint else "",
    ]
    params: dict[str, Param | None] = {
        "engine": engine.engine,
        "detail": "".join(told),
        "step": launch.step,
        "last_line": last_line,
        "minutes": minutes,
        "complaint": complaint,
        **({"reason": detail} if crash is None else _crash(crash, launch)),
    }
    return Check(
        code=code,
        level=level,
        text=f"{engine.engine}: {''.join(told)}",
        what_to_do=what_to_do.format(engine=engine.engine, model=model),
        params=known(params),
    )


def _crash(crash: Crash, launch: LaunchState) -> dict[str, Param | None]:
    """The same in values, for another language."""
    status = crash.exit_status
    return {
        "when": "running" if crash.was_ready else "starting",
        "exit_status": status if status is None or status >= 0 else None,
        "signal": -status if status is not None and status < 0 else None,
        "pause_s": (crash.pause_s or None) if launch.phase == "backing_off" else None,
    }


_LOOK = "read its log (GET /api/engines/{engine}/logs) and mend the cause"
_RESTART = "restart it: POST /api/models/{model}/replicas/{engine}/0/restart"
_PHASES = {
    "failed": ("engine_failed", Level.FAULT, f"{_LOOK}; then {_RESTART}"),
    "stuck": ("engine_stuck", Level.FAULT, "none is started beside it: look at the old one with ps and nvidia-smi"),
    "backing_off": ("engine_crashed", Level.FAULT, f"it is started again by itself; if it goes on, {_LOOK}"),
    "starting": ("engine_starting", Level.WARNING, "wait; large models take minutes"),
    "stopping": ("engine_stopping", Level.WARNING, "wait"),
    "stopped": ("engine_stopped", Level.WARNING, _RESTART),
}
"""Phases of a launched engine that does not serve: code, level, what to do."""


def _scrape(engine: EngineSnapshot) -> Iterator[Check]:
    if engine.state != "up" or engine.is_vllm is False:
        return
    age_s = engine.scrape_age_s
    if age_s is None:
        yield warning(
            "no_metrics",
            f"{engine.engine} shows no metrics: its capacity and its restarts are hard to see",
            "start vLLM without --disable-log-stats, and let /metrics through to the warden",
            engine=engine.engine,
        )
    elif age_s > STALE_SCRAPE_S:
        yield warning(
            "stale_metrics",
            f"the last good look at the metrics of {engine.engine} is {age_s:.0f} s old",
            "look whether it is overloaded, or the way to it is slow; the warden goes on with its own counts",
            engine=engine.engine,
            age_s=round(age_s),
        )
    else:
        yield ok("metrics", f"{engine.engine} reports its load", engine=engine.engine)


def _pins(engine: EngineSnapshot) -> Iterator[Check]:
    if engine.ranks == 1:
        return  # no rank is named
    obeyed = []
    for path, report in sorted(engine.pins.items()):
        detail = f": {report.detail.rstrip('.')}" if report.detail else ""
        if report.verdict is PinVerdict.VERIFIED:
            obeyed.append(path)
        elif report.verdict is PinVerdict.FAILED:
            yield fault(
                "pin_failed",
                f"{engine.engine} does not obey the rank that we name on {path}{detail}",
                "requests there go without a rank, so they have no affinity: look for a proxy in between that drops the"
                " header X-data-parallel-rank, use a vLLM that takes it, or run one server per replica",
                engine=engine.engine,
                path=path,
                detail=report.detail,
            )
        else:
            yield warning(
                "pin_unverified",
                f"it is not known yet whether {engine.engine} obeys a rank on {path}{detail}",
                "wait for a quieter moment: it is tried again",
                engine=engine.engine,
                path=path,
                detail=report.detail,
            )
    if obeyed:
        paths = ", ".join(obeyed)
        yield ok("pins", f"{engine.engine} obeys the rank that we name on {paths}", engine=engine.engine, paths=paths)


def _usage_details(engine: EngineSnapshot) -> Iterator[Check]:
    if engine.usage_details is False:
        yield warning(
            "no_usage_details",
            f"the answers of {engine.engine} do not say how much of a prompt was cached; all of it counts as computed",
            "start vLLM with --enable-prompt-tokens-details",
            engine=engine.engine,
        )
    elif engine.usage_details:
        text = f"the answers of {engine.engine} say how much of a prompt was cached"
        yield ok("usage_details", text, engine=engine.engine)
