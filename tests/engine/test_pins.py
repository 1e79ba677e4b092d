"""Testing pins: what counts as proof, and what an engine is sent for it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import aiohttp
import pytest
from tests.engine.fake_vllm import CHAT, MESSAGES, PROMPT_TOKENS, FakeVllm, Served, fake_vllm
from tests.waiting import PATIENCE_S

from lmwarden.engine.client import EngineClient
from lmwarden.engine.discover import EngineFacts, discover
from lmwarden.engine.metrics import RankMetrics
from lmwarden.engine.pins import Evidence, PinReport, PinTest, PinTimes, judge, repeats, untested
from lmwarden.types import PinVerdict

QUICK = PinTimes(request_s=PATIENCE_S, patience_s=0.02, poll_s=0.001, busy_s=0.0, again_s=(0.001,))
ONCE = PinTimes(request_s=PATIENCE_S, patience_s=0.02, poll_s=0.001, busy_s=0.0, again_s=(3600.0,))


def ranks(tokens: Sequence[int | None], marks: Sequence[int | None]) -> list[RankMetrics]:
    return [RankMetrics(prompt_tokens=n, one_token_requests=mark) for n, mark in zip(tokens, marks, strict=True)]


@pytest.mark.parametrize(
    ("grown", "marks", "evidence"),
    [
        # Rank 1 was named, and the request has 20 tokens.
        ((0, 20, 0), (0, 1, 0), Evidence.OBEYED),
        ((0, 20, 0), None, Evidence.OBEYED),
        ((0, 7000, 0), (0, 1, 0), Evidence.OBEYED),
        ((0, 7000, 0), None, Evidence.OBEYED),
        ((19, 20, 0), None, Evidence.OBEYED),
        ((7000, 20, 7000), None, Evidence.BUSY),
        ((7000, 20, 7000), (0, 1, 0), Evidence.OBEYED),
        ((7000, 20, 0), (1, 1, 0), Evidence.BUSY),
        ((20, 0, 0), (1, 0, 0), Evidence.MISSED),
        ((20, 0, 0), None, Evidence.MISSED),
        ((7000, 0, 7000), None, Evidence.MISSED),
        ((20, 19, 0), None, Evidence.MISSED),
        # The named rank is busy itself, but none of its requests was ours.
        ((20, 7000, 0), (1, 0, 0), Evidence.MISSED),
        ((0, 0, 0), (0, 0, 0), Evidence.UNCOUNTED),
        ((0, 0, 0), None, Evidence.UNCOUNTED),
        ((0, 7000, 0), (0, 0, 0), Evidence.UNCOUNTED),
        # Another run began in between.
        ((0, 20, -500), None, Evidence.UNCOUNTED),
    ],
)
def test_what_the_counters_prove(grown: tuple[int, ...], marks: tuple[int, ...] | None, evidence: Evidence) -> None:
    old_marks: list[int | None] = [5, 5, 5] if marks else [None] * 3
    new_marks: list[int | None] = [5 + mark for mark in marks] if marks else [None] * 3
    before = ranks([1000, 1000, 1000], old_marks)
    after = ranks([1000 + tokens for tokens in grown], new_marks)
    assert judge(before, after, 1, 20) is evidence


def test_without_counters_nothing_is_proved() -> None:
    assert judge(ranks([None, None], [None, None]), ranks([20, 0], [None, None]), 0, 20) is Evidence.UNCOUNTED
    assert judge(ranks([0], [None]), ranks([0, 0], [None, None]), 0, 20) is Evidence.UNCOUNTED


class Scene:
    """A serving fake and a test of it."""

    def __init__(self, engine: FakeVllm, served: Served, session: aiohttp.ClientSession, times: PinTimes) -> None:
        self.engine, self.served, self.session = engine, served, session
        self.news: list[tuple[str, PinReport]] = []
        self.details: list[bool] = []
        self._heard = asyncio.Event()
        endpoint = engine.endpoint(len(served.prompt_tokens))
        self.client = EngineClient(endpoint, session, timeout_s=PATIENCE_S)
        self.test = PinTest(
            endpoint, self.client, report=self._report, report_details=self._report_details, times=times
        )

    def _report(self, path: str, report: PinReport) -> None:
        self.news.append((path, report))
        self._heard.set()

    def _report_details(self, found: bool) -> None:
        self.details.append(found)
        self._heard.set()

    async def facts(self) -> EngineFacts:
        return await discover(self.client, model=None, data_parallel_size=None)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._heard.clear()
                await self._heard.wait()

    def verdict(self, path: str) -> PinVerdict:
        return self.test.reports[path].verdict

    async def until_tested(self) -> None:
        """Both endpoints have been tested, and the details are known."""
        await self.until(lambda: {path for path, _ in self.tests()} == {CHAT, MESSAGES} and bool(self.details))

    def tests(self) -> list[tuple[str, PinReport]]:
        """The news that came from tests."""
        return [(path, report) for path, report in self.news if report.detail != "not tested yet"]


@asynccontextmanager
async def scene(
    ranks: int = 3, times: PinTimes = ONCE, prepare: Callable[[Scene], None] = lambda it: None
) -> AsyncIterator[Scene]:
    """A running test of an engine that was prepared before."""
    async with fake_vllm() as engine, aiohttp.ClientSession() as session:
        engine.served = served = Served(ranks)
        it = Scene(engine, served, session, times)
        prepare(it)
        task = asyncio.ensure_future(it.test.run())
        try:
            yield it
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_an_obedient_engine_is_verified_rank_by_rank_on_both_endpoints() -> None:
    async with scene() as it:
        it.test.begin(await it.facts())
        await it.until_tested()
        assert [it.verdict(path) for path in (CHAT, MESSAGES)] == [PinVerdict.VERIFIED] * 2
        named = [str(rank) for rank in (0, 1, 2) for _ in range(3)]
        assert it.engine.posts == [(path, rank) for path in (CHAT, MESSAGES) for rank in named]
        assert it.details == [True]
        assert {body["max_tokens"] for body in it.engine.bodies} == {1}
        assert it.engine.authorizations == {"Bearer sk-e"}


async def test_a_header_that_is_ignored_on_one_endpoint_fails_that_endpoint_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with scene() as it:
        it.served.chooses = lambda path, named: 2 if path == MESSAGES else named or 0
        it.test.begin(await it.facts())
        await it.until_tested()
        assert (it.verdict(CHAT), it.verdict(MESSAGES)) == (PinVerdict.VERIFIED, PinVerdict.FAILED)
        assert it.test.reports[MESSAGES].detail == "requests that named rank 0, 1 were served by another"
        # Four misses are enough.
        assert [named for path, named in it.engine.posts if path == MESSAGES] == ["0", "0", "0", "1"]
    said = capsys.readouterr().out
    assert said.count("does not obey the rank") == 1
    assert "Say hi" not in said


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
async def test_a_balancer_that_rotates_does_not_pass_for_an_obedient_engine(ranks: int) -> None:
    """The first request to each rank goes where it would have gone anyway."""
    async with scene(ranks) as it:
        rotation = itertools.cycle(range(ranks))
        it.served.chooses = lambda path, named: next(rotation)
        it.test.begin(await it.facts())
        await it.until_tested()
        assert [it.verdict(path) for path in (CHAT, MESSAGES)] == [PinVerdict.FAILED] * 2


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 64])
def test_luck_does_not_pass_either(ranks: int) -> None:
    assert repeats(ranks) >= 2
    assert ranks ** -(ranks * repeats(ranks)) <= 1 / 4000


async def test_one_miss_alone_is_no_verdict() -> None:
    async with scene(times=QUICK) as it:
        asked = itertools.count()
        it.served.chooses = lambda path, named: 2 if next(asked) == 1 else named or 0
        it.test.begin(await it.facts())
        await it.until_tested()
        (first, *_) = [report for path, report in it.tests() if path == CHAT]
        assert first.verdict is PinVerdict.UNVERIFIED
        assert "one test request of several" in (first.detail or "")
        await it.until(lambda: it.verdict(CHAT) is PinVerdict.VERIFIED)


async def test_two_misses_are_a_verdict() -> None:
    async with scene() as it:
        asked = itertools.count()
        it.served.chooses = lambda path, named: 2 if next(asked) in (1, 2) else named or 0
        it.test.begin(await it.facts())
        await it.until_tested()
        assert (it.verdict(CHAT), it.verdict(MESSAGES)) == (PinVerdict.FAILED, PinVerdict.VERIFIED)
        assert it.test.reports[CHAT].detail == "requests that named rank 0 were served by another"


async def test_failed_holds_until_a_test_shows_the_opposite() -> None:
    async with scene(times=QUICK) as it:
        it.served.chooses = lambda path, named: 0
        it.test.begin(await it.facts())
        await it.until(lambda: it.verdict(CHAT) is PinVerdict.FAILED)
        # Another run, and tests that tell nothing.
        it.engine.post_status = {CHAT: 500, MESSAGES: 500}
        it.test.begin(await it.facts())
        it.engine.posts.clear()
        await it.engine.until_posts(4)
        assert it.verdict(CHAT) is PinVerdict.FAILED
        it.engine.post_status = {}
        it.served.chooses = lambda path, named: named or 0
        await it.until(lambda: it.verdict(CHAT) is PinVerdict.VERIFIED)


async def test_another_run_is_tested_anew(capsys: pytest.CaptureFixture[str]) -> None:
    async with scene() as it:
        it.test.begin(await it.facts())
        await it.until_tested()
        it.news.clear()
        it.details.clear()
        it.engine.posts.clear()
        it.test.begin(await it.facts())
        assert [(path, report.verdict) for path, report in it.news] == [
            (CHAT, PinVerdict.UNVERIFIED),
            (MESSAGES, PinVerdict.UNVERIFIED),
        ]
        await it.until_tested()
        assert len(it.engine.posts) == 18
        assert it.verdict(MESSAGES) is PinVerdict.VERIFIED
    assert "pins not verified" not in capsys.readouterr().out, "that it is to be tested is no finding"


async def test_what_an_earlier_run_showed_is_not_said_of_the_next() -> None:
    """The engine ignores ranks, and is exchanged in the middle of its test for one that obeys."""
    async with scene() as it:
        first, second = await it.facts(), await it.facts()
        it.served.chooses = lambda path, named: 0

        def exchanged() -> None:
            if it.engine.posts[-1] == (CHAT, "1"):
                it.served.chooses, it.served.meanwhile = lambda path, named: named or 0, lambda: None
                it.test.begin(second)

        it.served.meanwhile = exchanged
        it.test.begin(first)
        await it.until_tested()
        assert [(path, report.verdict) for path, report in it.tests()] == [
            (CHAT, PinVerdict.VERIFIED),
            (MESSAGES, PinVerdict.VERIFIED),
        ]


async def test_an_engine_that_counts_one_token_requests_is_verified_under_load() -> None:
    def others(it: Scene) -> Callable[[], None]:
        def run() -> None:
            it.served.prompt_tokens = [tokens + 7000 for tokens in it.served.prompt_tokens]

        return run

    async with scene() as it:
        it.served.meanwhile = others(it)
        it.test.begin(await it.facts())
        await it.until_tested()
        assert it.verdict(CHAT) is PinVerdict.VERIFIED
    async with scene(times=QUICK) as it:
        it.served.meanwhile = others(it)
        it.served.one_token_requests = []
        it.test.begin(await it.facts())
        await it.until_tested()
        assert it.test.reports[CHAT].detail == "too busy to tell"
        # Tried again later, until it can be told.
        it.served.meanwhile = lambda: None
        await it.until(lambda: it.verdict(CHAT) is PinVerdict.VERIFIED)


@pytest.mark.parametrize(
    ("status", "detail"),
    [
        (404, "the engine has no such endpoint"),
        (400, "the engine answers the test with 400"),
        (503, "the engine answers the test with 503"),
    ],
)
async def test_an_endpoint_that_does_not_serve_is_unverified(status: int, detail: str) -> None:
    async with scene() as it:
        it.engine.post_status = {MESSAGES: status}
        it.test.begin(await it.facts())
        await it.until_tested()
        assert it.verdict(CHAT) is PinVerdict.VERIFIED
        report = it.test.reports[MESSAGES]
        assert (report.verdict, report.detail) == (PinVerdict.UNVERIFIED, detail)


async def test_counters_that_stand_still_prove_nothing() -> None:
    async with scene() as it:
        it.served.serve = lambda path, rank: None  # type: ignore[method-assign]
        it.test.begin(await it.facts())
        await it.until_tested()
        assert it.test.reports[CHAT].detail == "the engine's counters do not show the test request"


async def test_an_engine_that_goes_away_is_unverified() -> None:
    async with scene() as it:
        facts = await it.facts()
        await it.engine.stop()
        it.test.begin(facts)
        await it.until(lambda: len(it.tests()) == 2)
        assert "does not accept connections" in (it.test.reports[CHAT].detail or "")
        await it.engine.start()


@pytest.mark.parametrize(("details", "found", "requests"), [(True, True, 1), (None, True, 3), (False, False, 3)])
async def test_one_rank_needs_no_test_but_is_asked_for_its_usage(
    details: bool | None, found: bool, requests: int
) -> None:
    async with scene(ranks=1) as it:
        it.served.details = details
        it.test.begin(await it.facts())
        await it.until(lambda: bool(it.details))
        assert it.details == [found]
        assert it.engine.posts == [(CHAT, None)] * requests
        assert it.test.reports == untested(1, "")
        assert it.verdict(CHAT) is PinVerdict.VERIFIED


@pytest.mark.parametrize("details", [True, None, False])
async def test_several_ranks_with_obeyed_pins_are_asked_for_their_usage_too(details: bool | None) -> None:
    async with scene(ranks=2) as it:
        it.served.details = details
        it.test.begin(await it.facts())
        await it.until_tested()
        assert it.verdict(CHAT) is PinVerdict.VERIFIED
        assert it.details == [details is not False]
        assert None not in {rank for _, rank in it.engine.posts}, "none is sent without a rank"


async def test_a_server_that_is_no_vllm_is_sent_nothing() -> None:
    async with scene(ranks=1, times=QUICK) as it:
        it.engine.served = None
        it.engine.metrics_status = 404
        it.engine.models = {"data": [{"id": "tiny", "owned_by": "llamacpp"}]}
        facts = await it.facts()
        assert not facts.is_vllm
        it.test.begin(facts)
        for _ in range(20):
            await it.client.health()
        assert it.engine.posts == []
        assert it.details == []


async def test_the_prompt_is_counted_over_all_fields_of_an_anthropic_usage() -> None:
    """Cached tokens stand apart there: without them, somebody's 10 tokens could pass for the request's own."""

    def others(it: Scene) -> None:
        it.served.prompt_tokens[0] += PROMPT_TOKENS - 10

    async with scene(ranks=2) as it:
        it.served.one_token_requests = []
        it.served.chooses = lambda path, named: 1
        it.served.meanwhile = lambda: others(it)
        it.test.begin(await it.facts())
        await it.until_tested()
        assert it.verdict(MESSAGES) is PinVerdict.FAILED
