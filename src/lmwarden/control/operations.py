"""Draining and restarting engines while the others serve.

A restart of one engine is a small story, told step by step in ``Restarts.operation``::

    draining    the router gives its replicas nothing new; conversations move on their next turn;
                over when nothing is in flight there, when the time for it is up, or when it is down: what is
                open on an engine from which nothing comes would be waited for in vain
    stopping    its supervisor ends the process tree and starts a new one
    starting    over when the watch took all its replicas in again
    (then the replicas are given back, and a rolling restart goes on with the next engine)

A rolling restart does that with one engine at a time, and goes on only when the last one serves again. A start
that fails ends it, and the rest stays as it is: a version that does not start must not take a second engine.
Unless an outage was allowed, no step is taken that would leave a model without a ready replica.

Nothing polls: the waiting conditions are looked at again whenever the control takes a snapshot, or was told that
something moved. Everything here runs on the data loop and is in memory only; a drain ends with the warden.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from lmwarden.control.snapshots import Operation, OperationKind, OperationState, Step
from lmwarden.engine.launch_state import NEXT_START, EnginePhase, LaunchError, LaunchState
from lmwarden.routing.contract import RouterContract
from lmwarden.types import Clock, ReplicaId, ReplicaState, RouterView

log = structlog.get_logger("lmwarden.control")

_UP = (ReplicaState.READY, ReplicaState.DRAINING)
_NOT_COMING = (EnginePhase.BACKING_OFF, EnginePhase.FAILED, EnginePhase.STUCK, EnginePhase.STOPPED)


class ConflictError(Exception):
    """The command cannot be carried out as things stand. One sentence that says why, and what would."""


class UnknownReplicaError(LookupError):
    """The model has no such replica."""


class EngineHandle(Protocol):
    """An engine as an operator's command reaches it."""

    @property
    def engine(self) -> str:
        """Its short name."""
        ...

    @property
    def launched(self) -> bool:
        """Whether the warden runs it, and so may restart it."""
        ...

    @property
    def log_path(self) -> Path | None:
        """Where its output goes; None: not known."""
        ...

    def state(self) -> LaunchState | None:
        """How its process stands; None: the warden does not run it."""
        ...

    async def restart(self) -> None:
        """End its process tree and start it again; returns when the new process runs (it need not serve yet)."""
        ...


class Drains:
    """Who keeps which replica from new requests: an operator, a restart, or both."""

    def __init__(self, router: RouterContract, clock: Clock) -> None:
        self._router = router
        self._clock = clock
        self.by_operator: set[ReplicaId] = set()
        self.by_restart: set[ReplicaId] = set()

    def hold(self, holders: set[ReplicaId], replicas: Iterable[ReplicaId]) -> None:
        """Drain for one of the two."""
        for replica in replicas:
            holders.add(replica)
            self._router.drain(replica, self._clock())

    def release(self, holders: set[ReplicaId], replicas: Iterable[ReplicaId]) -> None:
        """Give back what nobody else holds."""
        for replica in replicas:
            holders.discard(replica)
            if replica not in self.by_operator and replica not in self.by_restart:
                self._router.undrain(replica, self._clock())


class _NotStartedError(Exception):
    """The engine in hand does not come back by this restart; ``str()`` says why."""


class Restarts:
    """The restarts of one model; at most one operation at a time."""

    def __init__(
        self, model: str, router: RouterContract, handles: Mapping[str, EngineHandle], drains: Drains, clock: Clock
    ) -> None:
        """Args:
        model: its name, for the log.
        router: its router.
        handles: its engines by name; all of them launched.
        drains: shared with the operator's own drains.
        clock: the router's.
        """
        self.operation: Operation | None = None
        """The latest: running, or how it ended."""
        self._model = model
        self._router = router
        self._handles = handles
        self._drains = drains
        self._clock = clock
        self._looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._restarting: set[asyncio.Future[None]] = set()

    @property
    def running(self) -> Operation | None:
        """The operation that goes on; None: none does."""
        operation = self.operation
        return operation if operation is not None and operation.state is OperationState.RUNNING else None

    def look(self) -> None:
        """Something may have moved: look at what is waited for."""
        self._looked.set()

    def begin(self, kind: OperationKind, engines: Sequence[str], *, drain_s: float, allow_outage: bool) -> None:
        """Begin to restart engines, one after the other. Those that serve nobody come first.

        Args:
            kind: for showing.
            engines: their names; each has a handle.
            drain_s: real seconds that open requests of an engine get to finish.
            allow_outage: go on where no other replica is ready.

        Raises:
            ConflictError: another operation runs, or it would leave no ready replica.
        """
        if self.running is not None:
            raise ConflictError(
                f"a {self.running.kind} of {self._model} is running already; wait for it, or cancel it with"
                f" DELETE /api/models/{self._model}/operation"
            )
        view = self._view()
        order = sorted(engines, key=lambda engine: _serves(view, engine))
        if not allow_outage:
            # The others are looked at when it is their turn: by then this one may serve.
            self._check_outage(view, order[0])
        now = time.time()
        self.operation = Operation(
            kind=kind,
            state=OperationState.RUNNING,
            engines=tuple(order),
            step_since=now,
            started_at=now,
            sentence=f"about to restart {', '.join(order)}",
        )
        self._task = asyncio.create_task(self._run(order, drain_s, allow_outage, after=self._task))

    def cancel(self) -> None:
        """End the running operation where it stands. An engine that is being restarted already starts all the same.

        Raises:
            ConflictError: none runs.
        """
        if self.running is None or self._task is None:
            raise ConflictError(f"no restart of {self._model} is running")
        at = self.running
        done = f"; serving again: {', '.join(at.done)}" if at.done else ""
        stopped_at = {
            Step.DRAINING: f"cancelled while {at.engine} was draining; it was not restarted",
            Step.STOPPING: f"cancelled; the restart of {at.engine} had begun and goes on",
            Step.STARTING: f"cancelled; the restart of {at.engine} had begun and goes on",
            None: "cancelled before it began",
        }
        self._end(OperationState.CANCELLED, stopped_at[at.step] + done)
        self._task.cancel()

    async def close(self) -> None:
        """End whatever runs here."""
        if self.running is not None:
            self.cancel()
        ending: list[asyncio.Future[None]] = [*self._restarting, *([self._task] if self._task else [])]
        for future in ending:
            future.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _run(
        self, engines: Sequence[str], drain_s: float, allow_outage: bool, after: asyncio.Task[None] | None
    ) -> None:
        if after is not None:
            await asyncio.wait([after])  # a cancelled one gives its replicas back first
        try:
            for engine in engines:
                await self._restart(engine, drain_s, allow_outage)
                assert self.operation is not None
                self.operation = msgspec.structs.replace(self.operation, done=(*self.operation.done, engine))
        except (_NotStartedError, ConflictError) as error:
            self._end(OperationState.FAILED, f"{error}{self._left(engines)}")
        except Exception as error:
            log.exception("a restart failed", model=self._model)
            self._end(OperationState.FAILED, f"restarting failed: {error}{self._left(engines)}")
        else:
            self._end(OperationState.DONE, f"restarted and serving: {', '.join(engines)}")

    def _left(self, engines: Sequence[str]) -> str:
        """What a failed operation did not touch, in words."""
        at = self.operation.engine if self.operation is not None else None
        left = engines[engines.index(at) + 1 :] if at in engines else engines
        return f"; not restarted: {', '.join(left)}" if left else ""

    async def _restart(self, engine: str, drain_s: float, allow_outage: bool) -> None:
        view = self._view()
        if not allow_outage:
            self._check_outage(view, engine)
        replicas = [replica.replica for replica in view.replicas if replica.replica.engine == engine]
        together = f"{engine} with all its {len(replicas)} replicas" if len(replicas) > 1 else engine
        self._drains.hold(self._drains.by_restart, replicas)
        try:
            sentence = f"{together} takes no new requests; the open ones have {drain_s:g} s to finish"
            self._step(engine, Step.DRAINING, sentence)
            await self._until(lambda: self._in_flight(engine) == 0 or self._is_down(engine), drain_s)
            if open_requests := self._in_flight(engine):
                why = "the engine is down" if self._is_down(engine) else "they did not finish in time"
                log.warning("open requests are cut", why=why, engine=engine, in_flight=open_requests)
            self._step(engine, Step.STOPPING, f"{together} is being stopped")
            pid = await self._replace(engine)
            self._step(engine, Step.STARTING, f"{together} is starting")
            await self._until(lambda: self._is_back(engine, pid))
        finally:
            self._drains.release(self._drains.by_restart, replicas)

    async def _replace(self, engine: str) -> int | None:
        """Have the supervisor restart it. Returns the new process's id.

        Raises:
            _NotStartedError: it could not be.
        """
        handle = self._handles[engine]
        # On its own: a cancelled operation must not leave a supervisor half way.
        restarting = asyncio.ensure_future(handle.restart())
        self._restarting.add(restarting)
        restarting.add_done_callback(self._restarted)
        await self._until(restarting.done)
        try:
            restarting.result()
        except LaunchError as error:
            raise _NotStartedError(str(error).rstrip(".")) from None
        state = handle.state()
        return state.pid if state is not None else None

    def _restarted(self, restarting: asyncio.Future[None]) -> None:
        self._restarting.discard(restarting)
        if not restarting.cancelled() and restarting.exception() is not None and self.running is None:
            log.error("a restart that went on after its operation failed", error=str(restarting.exception()))
        self.look()

    def _is_back(self, engine: str, pid: int | None) -> bool:
        """Whether it serves again.

        Raises:
            _NotStartedError: its process ended.
        """
        state = self._handles[engine].state()
        if state is not None and (state.phase in _NOT_COMING or state.pid != pid):
            raise _NotStartedError(_why(engine, state))
        running = state is None or state.phase is EnginePhase.RUNNING
        ranks = [replica for replica in self._view().replicas if replica.replica.engine == engine]
        return running and all(replica.state in _UP for replica in ranks)

    def _check_outage(self, view: RouterView, engine: str) -> None:
        others = any(
            replica.state is ReplicaState.READY for replica in view.replicas if replica.replica.engine != engine
        )
        if not others and _serves(view, engine):
            raise ConflictError(
                f"no other replica of {self._model} is ready, so nobody would serve while {engine} restarts;"
                " it restarts all the same where an outage is allowed (allow_outage)"
            )

    def _in_flight(self, engine: str) -> int:
        """Requests open on an engine, those without a rank included."""
        ours = [replica for replica in self._view().replicas if replica.replica.engine == engine]
        return sum(replica.in_flight for replica in ours) + max(replica.unrouted_in_flight for replica in ours)

    def _is_down(self, engine: str) -> bool:
        """Whether no rank of it is offered: it was found dead or says that it is ill, or neither a look nor a byte came
        for too long."""
        ours = [replica for replica in self._view().replicas if replica.replica.engine == engine]
        return all(replica.state is ReplicaState.DOWN for replica in ours)

    def _view(self) -> RouterView:
        return self._router.view(self._clock())

    def _step(self, engine: str, step: Step, sentence: str) -> None:
        assert self.operation is not None
        number = f" ({len(self.operation.done) + 1} of {len(self.operation.engines)})"
        sentence += number if len(self.operation.engines) > 1 else ""
        log.info("restarting an engine", model=self._model, engine=engine, step=step)
        self.operation = msgspec.structs.replace(
            self.operation, engine=engine, step=step, step_since=time.time(), sentence=sentence
        )

    def _end(self, state: OperationState, sentence: str) -> None:
        assert self.operation is not None
        now = time.time()
        at = {} if state is not OperationState.DONE else {"engine": None, "step": None}
        self.operation = msgspec.structs.replace(
            self.operation, state=state, sentence=sentence, step_since=now, ended_at=now, **at
        )
        log.info("a restart ended", model=self._model, state=state, sentence=sentence)

    async def _until(self, condition: Callable[[], bool], limit_s: float | None = None) -> bool:
        """Wait until something holds, looked at whenever something may have moved. False: the time was up."""
        try:
            async with asyncio.timeout(limit_s):
                while not condition():
                    self._looked.clear()
                    await self._looked.wait()
        except TimeoutError:
            return condition()
        return True


def _serves(view: RouterView, engine: str) -> bool:
    """Whether one of its replicas is ready."""
    return any(replica.state is ReplicaState.READY for replica in view.replicas if replica.replica.engine == engine)


def _why(engine: str, state: LaunchState) -> str:
    # This is said of one start, and stays: what the supervisor does next does not belong to it.
    detail = state.detail.partition(NEXT_START)[0].rstrip(".")
    last_line = f"{state.last_lines[-1]:.300}" if state.last_lines else ""
    last = f" (last line: {last_line})" if last_line and last_line not in detail else ""
    return f"{engine} did not start: {detail}{last}"
