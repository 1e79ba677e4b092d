"""Does an engine obey the rank that we name? Never believed, always tried.

vLLM ignores a rank header in several cases without a word (another endpoint, a proxy in between that drops it, a
version that does not know it), and every turn would then read its whole history again on a rank that never saw it.
So after each start of an engine with several ranks, for each of the two endpoints on which ranks are named, tiny
requests (fixed text, one token of output) are sent with a rank's header, and the engine's own counters are read
before and after each::

    target   the named rank's prompt tokens grew by at least the request's own
    alone    no other rank can have served it: each grew by less; or, where the engine counts the requests that may
             produce one token only, none of those was another rank's

    target and alone           obeyed
    not target, another grew   missed: conclusive however busy the engine is, because counters never fall
    target, not alone          other traffic ended in the same moment: again, a few times; then "too busy to tell"
    nobody grew                the engine does not count: cannot be told

**Once per rank is not enough.** A balancer that ignores the header answers too, and one that rotates serves ranks
named in order 0, 1, 2, ... exactly as named (seen on vLLM 0.32.0 behind a proxy that dropped the header: all
"obeyed"). So each rank is named several times in a row, which a rotation cannot follow, and so often in all that
a balancer that draws lots passes with a chance below 1 in 4,000.

Two misses make the endpoint ``failed`` (one may be a page that lags behind): no rank is named there any more. What
cannot be told stays ``unverified`` and is tried again later. The tests run beside the looks, one request at a time,
each with its time limit; the text of an answer is neither kept nor logged.

The chat answer also shows whether the engine reports cached tokens (``prompt_tokens_details``). Versions that leave
the field out of an answer without cached tokens get one longer prompt twice before that counts as "no". An engine
with one rank needs no test of pins, so it is sent that one question only; a server that is no vLLM is sent
nothing, because loading a model or writing an invoice may be its answer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import msgspec
import structlog

from lmwarden.engine.client import EngineClient, EngineError
from lmwarden.engine.discover import EngineFacts
from lmwarden.engine.metrics import RankMetrics
from lmwarden.types import EngineEndpoint, PinVerdict

log = structlog.get_logger("lmwarden.engine")

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
PATHS = (CHAT, MESSAGES)
"""Endpoints that are tested, each by itself."""

TRIES = 4
"""Of one request, before it is too busy to tell."""
MISSES = 2
"""Of one endpoint: a verdict."""
ENOUGH_MISSES = 4
"""No more are looked for, to name the ranks."""
CHANCE_BITS = 12
"""Blind luck passes with a chance of 1 in 2 to this power."""

_NOT_YET = "not tested yet"
_TEXT = "Say hi."
_LONG_TEXT = "Count from one to ten. " * 60
"""Some 400 tokens: more than a block of the prefix cache."""


class PinReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one endpoint of one engine."""

    verdict: PinVerdict
    detail: str | None = None
    """A plain sentence, or a word or two; None: nothing to add."""
    tested_at: float | None = None
    """Unix seconds of the last test; None: there was none."""


def untested(ranks: int, why: str) -> dict[str, PinReport]:
    """The reports of an engine with that many ranks before any test; one rank needs none."""
    if ranks == 1:
        return dict.fromkeys(PATHS, PinReport(verdict=PinVerdict.VERIFIED, detail="one rank"))
    return dict.fromkeys(PATHS, PinReport(verdict=PinVerdict.UNVERIFIED, detail=why))


def repeats(ranks: int) -> int:
    """How often each of so many ranks is named in a row: at least twice."""
    return max(2, math.ceil(CHANCE_BITS / (ranks * math.log2(ranks))))


class PinTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds; the defaults are for real engines."""

    request_s: float = 60.0
    """One test request: an engine under load lets it wait like any other."""
    patience_s: float = 2.0
    """For the counters to show what the answer already told."""
    poll_s: float = 0.1
    """Between two looks at the counters."""
    busy_s: float = 0.5
    """Between two tries on a busy engine."""
    again_s: tuple[float, ...] = (30.0, 120.0, 600.0)
    """Before the next test after one that told nothing; the last holds from there on, and for failed ones."""


class Evidence(Enum):
    """What the counters say of one test request."""

    OBEYED = "obeyed"
    MISSED = "missed"
    BUSY = "busy"
    UNCOUNTED = "uncounted"


def judge(before: Sequence[RankMetrics], after: Sequence[RankMetrics], rank: int, prompt_tokens: int) -> Evidence:
    """Where one request was served, by all ranks' counters before and after it.

    Args:
        before: scraped before it was sent.
        after: scraped after it was answered.
        rank: the one it named.
        prompt_tokens: the request's own, at least 1.
    """
    if len(before) != len(after):
        return Evidence.UNCOUNTED
    grown = [_growth(old.prompt_tokens, new.prompt_tokens) for old, new in zip(before, after, strict=True)]
    marks = [_growth(old.one_token_requests, new.one_token_requests) for old, new in zip(before, after, strict=True)]
    if any(tokens is None or tokens < 0 for tokens in grown):
        return Evidence.UNCOUNTED
    reached = [tokens is not None and tokens >= prompt_tokens for tokens in grown]
    marked = [bool(mark) for mark in marks] if all(mark is not None for mark in marks) else None
    others = [index for index in range(len(grown)) if index != rank]
    if not reached[rank] or (marked is not None and not marked[rank]):
        return Evidence.MISSED if any(reached[other] for other in others) else Evidence.UNCOUNTED
    if not any(reached[other] for other in others):
        return Evidence.OBEYED
    if marked is not None and not any(marked[other] for other in others):
        return Evidence.OBEYED
    return Evidence.BUSY


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


class _UndecidedError(Exception):
    """This test cannot tell. The text says why; ``settled``: nor will the next."""

    def __init__(self, why: str, *, settled: bool = False) -> None:
        super().__init__(why)
        self.settled = settled


class PinTest:
    """Tests one engine, each run of it anew. ``run`` until cancelled."""

    def __init__(
        self,
        endpoint: EngineEndpoint,
        client: EngineClient,
        *,
        report: Callable[[str, PinReport], None],
        report_details: Callable[[bool], None],
        times: PinTimes | None = None,
    ) -> None:
        """Args:
        endpoint: the engine.
        client: asks it.
        report: takes each endpoint's report when it changes.
        report_details: takes whether answers say how much was cached, once per run.
        times: pauses and limits.
        """
        self.reports = untested(endpoint.ranks, _NOT_YET)
        """The latest of each endpoint."""
        self._engine = endpoint.engine
        self._ranks = endpoint.ranks
        self._client = client
        self._report = report
        self._report_details = report_details
        self._times = times if times is not None else PinTimes()
        self._bodies = {text: _body(endpoint.model, text) for text in (_TEXT, _LONG_TEXT)}
        self._facts: EngineFacts | None = None
        self._begun = asyncio.Event()
        self._settled: set[str] = set()
        self._details: bool | None = None
        self._no_chat = False
        """The engine has no such endpoint, so its details cannot be asked for."""

    def begin(self, facts: EngineFacts) -> None:
        """Another run of the engine answers: test it."""
        self._facts = facts
        self._settled.clear()
        self._details, self._no_chat = None, False
        for path in self._tested_paths():
            self._tell(path, PinVerdict.UNVERIFIED, _NOT_YET)
        self._begun.set()

    async def run(self) -> None:
        """Test whenever a run begins, and again later what could not be told, or failed."""
        pauses = 0
        while True:
            pause_s = None
            if not self._begun.is_set() and self._unsettled():
                pause_s = self._times.again_s[min(pauses, len(self._times.again_s) - 1)]
                pauses += 1
            try:
                async with asyncio.timeout(pause_s):
                    await self._begun.wait()
                pauses = 0
            except TimeoutError:
                pass
            self._begun.clear()
            try:
                await self._test()
            except Exception:
                log.exception("testing an engine's pins failed", engine=self._engine)

    def _unsettled(self) -> bool:
        """Whether another test could tell more."""
        facts = self._facts
        if facts is None or not facts.is_vllm:
            return False
        open_paths = [path for path in self._tested_paths() if path not in self._settled]
        return bool(open_paths) or self._wants_details

    @property
    def _wants_details(self) -> bool:
        return self._details is None and not self._no_chat

    def _tested_paths(self) -> Sequence[str]:
        return PATHS if self._ranks > 1 else ()

    async def _test(self) -> None:
        """Everything that is not settled for this run."""
        facts = self._facts
        if facts is None or not facts.is_vllm:
            return
        for path in self._tested_paths():
            if path not in self._settled:
                verdict, detail, settled = await self._test_path(path)
                if self._facts is not facts:
                    return
                if settled:
                    self._settled.add(path)
                self._tell(path, verdict, detail, tested=True)
        if self._wants_details:
            await self._look_for_details(facts)

    async def _test_path(self, path: str) -> tuple[PinVerdict, str | None, bool]:
        """One endpoint, rank by rank: verdict, detail, and whether that is settled for this run."""
        missed: list[int] = []
        why, settled = "one test request of several seemed to be served by another rank", False
        try:
            await self._name_ranks(path, missed)
        except _UndecidedError as error:
            why, settled = str(error), error.settled
        except EngineError as error:
            why = str(error)
        else:
            if not missed:
                return PinVerdict.VERIFIED, None, True
        if len(missed) < MISSES:
            return PinVerdict.UNVERIFIED, why, settled
        ranks = ", ".join(str(rank) for rank in sorted(set(missed)))
        return PinVerdict.FAILED, f"requests that named rank {ranks} were served by another", False

    async def _name_ranks(self, path: str, missed: list[int]) -> None:
        """Name each rank several times in a row; those that others served are added to ``missed``.

        Raises:
            _UndecidedError, EngineError: it cannot be told.
        """
        for rank in range(self._ranks):
            for _ in range(repeats(self._ranks)):
                if not await self._obeys(path, rank):
                    missed.append(rank)
                if len(missed) >= ENOUGH_MISSES:
                    return

    async def _obeys(self, path: str, rank: int) -> bool:
        """Whether ``rank`` serves one request that names it.

        Raises:
            _UndecidedError, EngineError: it cannot be told.
        """
        for number in range(TRIES):
            if number:
                await asyncio.sleep(self._times.busy_s)
            evidence = await self._try(path, rank)
            if evidence is Evidence.UNCOUNTED:
                raise _UndecidedError("the engine's counters do not show the test request")
            if evidence is not Evidence.BUSY:
                return evidence is Evidence.OBEYED
        raise _UndecidedError("too busy to tell")

    async def _try(self, path: str, rank: int) -> Evidence:
        before = (await self._client.metrics()).ranks
        usage = await self._send(path, _TEXT, rank)
        tokens = max(1, _prompt_tokens(usage))
        if path == CHAT and usage.get("prompt_tokens_details") is not None:
            self._found_details(True)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._times.patience_s
        while True:
            after = (await self._client.metrics()).ranks
            evidence = judge(before, after, rank, tokens)
            # Neither of these two becomes another by waiting.
            if evidence in (Evidence.OBEYED, Evidence.BUSY) or loop.time() >= give_up_at:
                return evidence
            await asyncio.sleep(self._times.poll_s)

    async def _send(self, path: str, text: str, rank: int | None) -> dict[str, Any]:
        """Send one test request; the usage of its answer.

        Raises:
            _UndecidedError: it is not served.
            EngineError: as ever.
        """
        status, answer = await self._client.generate(
            path, self._bodies[text], rank=rank, timeout_s=self._times.request_s
        )
        if status != 200:
            missing = status in (404, 405, 501)
            why = "the engine has no such endpoint" if missing else f"the engine answers the test with {status}"
            raise _UndecidedError(why, settled=missing)
        try:
            usage = msgspec.json.decode(answer, type=dict[str, Any]).get("usage")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _UndecidedError("the engine's answer to the test is no JSON object") from None
        return usage if isinstance(usage, dict) else {}

    async def _look_for_details(self, facts: EngineFacts) -> None:
        """One short question; without details in its answer a longer one twice, for a hit in the prefix cache."""
        rank = 0 if self._ranks > 1 else None
        try:
            for text in (_TEXT, _LONG_TEXT, _LONG_TEXT):
                usage = await self._send(CHAT, text, rank)
                if self._facts is not facts:
                    return
                if usage.get("prompt_tokens_details") is not None:
                    self._found_details(True)
                    return
        except _UndecidedError as error:
            self._no_chat = error.settled
            return
        except EngineError:
            return
        self._found_details(False)

    def _found_details(self, found: bool) -> None:
        if self._details is None:
            self._details = found
            self._report_details(found)

    def _tell(self, path: str, verdict: PinVerdict, detail: str | None, *, tested: bool = False) -> None:
        old = self.reports[path]
        if old.verdict is PinVerdict.FAILED and verdict is PinVerdict.UNVERIFIED:
            return  # what was seen once is not undone by a test that saw nothing
        tested_at = time.time() if tested else old.tested_at
        report = PinReport(verdict=verdict, detail=detail, tested_at=tested_at)
        self.reports[path] = report
        if (old.verdict, old.detail) != (verdict, detail) or tested:
            self._report(path, report)
        if tested and (old.verdict, old.detail) != (verdict, detail):
            self._log(path, report)

    def _log(self, path: str, report: PinReport) -> None:
        if report.verdict is PinVerdict.VERIFIED:
            log.info("pins verified", engine=self._engine, endpoint=path, ranks=self._ranks)
        elif report.verdict is PinVerdict.FAILED:
            log.error(
                "an engine does not obey the rank that is named; requests to this endpoint go without one",
                engine=self._engine,
                endpoint=path,
                detail=report.detail,
            )
        else:
            log.warning("pins not verified", engine=self._engine, endpoint=path, reason=report.detail)


def _body(model: str, text: str) -> bytes:
    """The same for both APIs."""
    messages = [{"role": "user", "content": text}]
    return msgspec.json.encode({"model": model, "messages": messages, "max_tokens": 1, "temperature": 0})


def _prompt_tokens(usage: dict[str, Any]) -> int:
    """The whole prompt: OpenAI counts it in one field, Anthropic in three."""
    names = ("prompt_tokens", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(value for name in names if isinstance(value := usage.get(name), int))
