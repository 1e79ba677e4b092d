"""Watching an engine: what cuts traffic, what does not, and what a return looks like."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable

import aiohttp
import msgspec
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import AddrInfoType
from tests.engine.fake_vllm import FakeVllm, Served, fake_vllm, page
from tests.waiting import PATIENCE_S

from lmwarden.config import Flag, WatchConfig, load
from lmwarden.engine.client import EngineClient
from lmwarden.engine.health import FleetHealth, Up
from lmwarden.engine.pins import PinReport
from lmwarden.engine.tier import NO_TIER, Tier
from lmwarden.engine.watch import EngineState, EngineWatch
from lmwarden.types import PinVerdict, ReplicaCapacity, ReplicaId, ReplicaSample


def watch_settings(**changes: float) -> WatchConfig:
    flags = [Flag("--engine", ("models",), [{"engine": {"attach": ["http://e"]}}])]
    return msgspec.structs.replace(load(None, flags).watch, **changes)


class Recorder:
    """A sink that writes down what it hears, as a transcript."""

    def __init__(self) -> None:
        self.news: list[str] = []
        self.samples: dict[ReplicaId, ReplicaSample] = {}
        self.capacities: dict[ReplicaId, ReplicaCapacity] = {}
        self.heard = asyncio.Event()

    def observe(self, replica: ReplicaId, sample: ReplicaSample) -> None:
        self.samples[replica] = sample
        self.heard.set()

    def replica_up(self, replica: ReplicaId, capacity: ReplicaCapacity, boot_id: str) -> None:
        self.capacities[replica] = capacity
        self.news.append(f"up {replica} {boot_id}")

    def replica_down(self, replica: ReplicaId) -> None:
        self.news.append(f"down {replica}")

    def engine_lost(self, engine: str) -> None:
        self.news.append(f"lost {engine}")

    def pins(self, engine: str, path: str, report: PinReport) -> None:
        self.news.append(f"pins {engine} {path} {report.verdict}")
        self.heard.set()

    def take(self) -> list[str]:
        news, self.news = self.news, []
        return news


class Process:
    """A supervisor, as far as a watch sees it."""

    def __init__(self) -> None:
        self.ours = False
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens while it is looked whose the port is."""
        self.told: list[str] = []
        self.kv_bytes_per_token: float | None = None

    async def may_serve(self) -> bool:
        self.meanwhile()
        return self.ours

    def ready(self) -> None:
        self.told.append("ready")


class Scene:
    """One engine, its watch, and what the watch said. Another engine of the model is there and ready."""

    def __init__(self, engine: FakeVllm, session: aiohttp.ClientSession, *, host: str | None = None) -> None:
        self.engine = engine
        self.host = host
        """Its name; None: its address."""
        self.sink = Recorder()
        self.now = 100.0
        self.session = session
        self.process: Process | None = None
        self.tier = NO_TIER
        self.heard: Callable[[], float | None] = lambda: None
        """When it last sent bytes of an answer."""
        self.fleet = FleetHealth(self.sink)
        self.fleet.ready("other", [])
        self.watch = self.make()

    def make(self, *, ranks: int = 2, test_pins: bool = False, **settings: float) -> EngineWatch:
        chosen = watch_settings(**settings)
        endpoint = self.engine.endpoint(ranks)
        endpoint = msgspec.structs.replace(endpoint, host=self.host or endpoint.host)
        client = EngineClient(endpoint, self.session, PATIENCE_S)
        self.watch = EngineWatch(
            endpoint,
            client,
            self.sink,
            settings=chosen,
            clock=lambda: self.now,
            max_num_seqs=32,
            tier=self.tier,
            fleet=self.fleet,
            supervised=self.process,
            traffic=lambda: self.heard(),
            test_pins=test_pins,
        )
        return self.watch

    def launch(self) -> Process:
        """Make it an engine of ours, whose process runs."""
        self.process = process = Process()
        self.make()
        self.watch.expect()
        process.ours = True
        return process

    async def looks(self, count: int) -> list[str]:
        """So many looks; the news of all."""
        for _ in range(count):
            await self.watch.look()
        return self.sink.take()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with fake_vllm() as engine, aiohttp.ClientSession() as session:
        yield Scene(engine, session)


@pytest.fixture(autouse=True)
def same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmwarden.engine.runs.token_hex", lambda size: "x")


HEALTH = {"/health"}
UP = ["up e0/0 process-1000.500", "up e0/1 process-1000.500"]
DOWN = ["down e0/0", "down e0/1"]


async def test_first_look_brings_it_up_with_figures(scene: Scene) -> None:
    await scene.watch.look()
    assert scene.sink.take() == UP
    assert scene.sink.capacities[ReplicaId("e0", 1)] == ReplicaCapacity(kv_cache_tokens=4096, max_num_seqs=32)
    sample = scene.sink.samples[ReplicaId("e0", 1)]
    assert (sample.taken_at, sample.running, sample.kv_used_ratio) == (100.0, 2, 0.25)
    assert scene.watch.scraped_at == 100.0
    await scene.watch.look()
    assert scene.sink.take() == []


async def test_one_refused_look_cuts_nothing_and_two_do(scene: Scene) -> None:
    await scene.watch.look()
    await scene.engine.stop()
    scene.sink.take()
    await scene.watch.look()
    assert scene.sink.take() == []
    await scene.watch.look()
    assert scene.sink.take() == [*DOWN, "lost e0"]
    await scene.watch.look()
    assert scene.sink.take() == []
    await scene.engine.start()
    scene.engine.metrics = page(started=2000.0)
    await scene.watch.look()
    # Its open requests were lost when nobody listened; what it was sent since is not.
    assert scene.sink.take() == ["up e0/0 process-2000.000", "up e0/1 process-2000.000"]


async def test_whose_port_it_is_was_asked_of_another_process(scene: Scene) -> None:
    """While it was looked, ours ended and was started anew: who listens there now was never looked at."""

    def restarted() -> None:
        scene.watch.process_ended()
        scene.watch.process_started()

    scene.launch().meanwhile = restarted
    await scene.watch.look()
    assert scene.engine.asked == []


class BrokenNetwork(AbstractResolver):
    """This machine's own: sockets that cannot be had, names that do not resolve."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.error: OSError | None = None
        self.knows_names = True

    def open(self, info: AddrInfoType) -> socket.socket:
        if self.error is not None:
            raise self.error
        return socket.socket(*info[:3])

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if not self.knows_names:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        flags = socket.AI_NUMERICHOST
        return [ResolveResult(hostname=host, host=self.address, port=port, family=family, proto=0, flags=flags)]

    async def close(self) -> None:
        pass


@pytest.fixture
async def broken() -> AsyncIterator[tuple[Scene, BrokenNetwork]]:
    """An engine that has a name, and connections that are never kept."""
    async with fake_vllm() as engine:
        network = BrokenNetwork(engine.endpoint().host)
        connector = aiohttp.TCPConnector(
            force_close=True, resolver=network, socket_factory=network.open, use_dns_cache=False
        )
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Scene(engine, session, host="engine.example"), network


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL])
async def test_what_is_missing_here_tells_nothing_of_an_engine(
    broken: tuple[Scene, BrokenNetwork], number: int
) -> None:
    scene, network = broken
    await scene.make(silent_down_s=1e-9).look()
    scene.sink.take()
    network.error = OSError(number, os.strerror(number))
    assert await scene.looks(4) == []
    assert scene.watch.state is EngineState.UP
    network.error = None
    assert await scene.looks(1) == []


async def test_a_way_that_is_broken_is_a_silence(broken: tuple[Scene, BrokenNetwork]) -> None:
    """No open request is cut for it: connections outlive a name server and a switch."""
    scene, network = broken
    for silent_down_s, news in ((1000.0, []), (1e-9, DOWN)):
        await scene.make(silent_down_s=silent_down_s).look()
        scene.sink.take()
        network.knows_names = False
        assert await scene.looks(3) == news
        network.knows_names, network.error = True, OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
        assert await scene.looks(3) == []
        network.error = None
    assert await scene.looks(1) == UP


async def test_a_good_look_between_two_bad_ones_forgives_the_first(scene: Scene) -> None:
    await scene.watch.look()
    scene.sink.take()
    for status in (503, 200, 503, 200):
        scene.engine.health_status = status
        await scene.watch.look()
    assert scene.sink.take() == []
    scene.engine.health_status = 503
    await scene.watch.look()
    await scene.watch.look()
    assert scene.sink.take() == DOWN


async def test_silence_cuts_nothing_until_it_lasted(scene: Scene) -> None:
    await scene.make(silent_down_s=1000.0).look()
    scene.sink.take()
    scene.engine.breaks = HEALTH
    assert await scene.looks(3) == []
    scene.engine.breaks = set()
    await scene.make(silent_down_s=1e-9).look()
    scene.sink.take()
    scene.engine.breaks = HEALTH
    assert await scene.looks(2) == DOWN


async def test_an_answered_look_ends_a_silence(scene: Scene) -> None:
    """Two looks without an answer, and one with an answer between them, are no silence that lasts."""
    await scene.make(silent_down_s=1e-9).look()
    scene.sink.take()
    for breaks in (HEALTH, set(), HEALTH, set()):
        scene.engine.breaks = breaks
        await scene.watch.look()
    assert scene.sink.take() == []


async def test_a_silent_engine_whose_answers_flow_stays(scene: Scene) -> None:
    """Own traffic first: its probes are unanswered for as long as one likes."""
    await scene.make(silent_down_s=1e-9).look()
    scene.sink.take()
    scene.engine.breaks = HEALTH
    scene.heard = asyncio.get_running_loop().time
    assert await scene.looks(6) == []
    assert scene.watch.state is EngineState.UP
    # The last byte counts as the last answer, and from there on it is silent.
    last = asyncio.get_running_loop().time()
    scene.heard = lambda: last
    assert await scene.looks(2) == DOWN


async def test_what_was_heard_before_the_silence_does_not_help(scene: Scene) -> None:
    await scene.make(silent_down_s=1e-9).look()
    scene.sink.take()
    scene.heard = lambda: 0.0
    scene.engine.breaks = HEALTH
    assert await scene.looks(2) == DOWN


async def test_a_silent_engine_that_returns_as_another_run_lost_its_requests(scene: Scene) -> None:
    await scene.make(silent_down_s=1e-9).look()
    scene.engine.breaks = HEALTH
    await scene.looks(2)
    scene.engine.breaks = set()
    scene.engine.metrics = page(started=2000.0)
    assert await scene.looks(1) == ["lost e0", "up e0/0 process-2000.000", "up e0/1 process-2000.000"]


async def test_a_silent_engine_that_then_refuses_is_lost(scene: Scene) -> None:
    await scene.make(silent_down_s=1e-9).look()
    scene.sink.take()
    scene.engine.breaks = HEALTH
    assert await scene.looks(2) == DOWN
    await scene.engine.stop()
    assert await scene.looks(3) == ["lost e0"]
    await scene.engine.start()


async def test_when_all_probes_fail_the_engine_is_still_offered(scene: Scene) -> None:
    await scene.watch.look()
    scene.fleet.gone("other", [])
    scene.sink.take()
    scene.engine.health_status = 503
    assert await scene.looks(3) == []
    assert (scene.watch.state, scene.fleet.panic) == (EngineState.DOWN, True)
    # It comes back as another run, and has taken requests meanwhile: they must not be cut.
    scene.engine.health_status = 200
    scene.engine.metrics = page(started=2000.0)
    assert await scene.looks(1) == ["up e0/0 process-2000.000", "up e0/1 process-2000.000"]
    assert not scene.fleet.panic
    # Known dead is not tried.
    await scene.engine.stop()
    assert await scene.looks(2) == [*DOWN, "lost e0"]
    await scene.engine.start()


async def test_a_panic_takes_a_failing_engine_back_in(scene: Scene) -> None:
    await scene.watch.look()
    scene.sink.take()
    scene.engine.health_status = 500
    assert await scene.looks(2) == DOWN
    scene.fleet.failing("other", [])
    assert scene.sink.take() == UP
    scene.fleet.ready("other", [Up(ReplicaId("other", 0), ReplicaCapacity(), "b")])
    assert scene.sink.take() == ["up other/0 b", *DOWN]


async def test_a_restart_between_two_looks_is_seen(scene: Scene) -> None:
    await scene.watch.look()
    scene.sink.take()
    scene.engine.metrics = page(started=2000.0)
    await scene.watch.look()
    assert scene.sink.take() == ["up e0/0 process-2000.000", "up e0/1 process-2000.000"]


async def test_without_a_start_time_fallen_counters_tell_a_restart(scene: Scene) -> None:
    for tokens in (1000, 1200):
        scene.engine.metrics = page(started=None, prompt_tokens=tokens)
        await scene.watch.look()
    assert scene.sink.take() == ["up e0/0 run-x-1", "up e0/1 run-x-1"]
    scene.engine.metrics = page(started=None, prompt_tokens=50)
    await scene.watch.look()
    assert scene.sink.take() == ["up e0/0 run-x-2", "up e0/1 run-x-2"]


async def test_it_does_not_come_up_with_another_model_or_another_number_of_ranks(scene: Scene) -> None:
    scene.engine.models = {"data": [{"id": "other"}]}
    await scene.watch.look()
    assert scene.sink.take() == []
    scene.engine.models = {"data": [{"id": "tiny"}]}
    scene.engine.metrics = page(ranks=4)
    await scene.watch.look()
    assert scene.watch.state is EngineState.DOWN
    assert scene.sink.take() == DOWN
    scene.engine.metrics = page(ranks=2)
    await scene.watch.look()
    assert scene.sink.take() == UP


async def test_one_page_of_other_ranks_cuts_nothing(scene: Scene) -> None:
    await scene.watch.look()
    scene.sink.take()
    scene.engine.metrics = page(ranks=1)
    assert await scene.looks(1) == []
    scene.engine.metrics = page()
    assert await scene.looks(1) == []


@pytest.mark.parametrize(
    ("status", "metrics", "breaks"),
    [
        (200, "<html>vllm:num_requests_running</html>", False),
        (500, "", False),
        (404, "", False),
        (200, 'vllm:num_requests_running{engine="0"} many\n', False),
        (200, "", True),
    ],
)
async def test_a_metrics_page_that_is_none_is_never_fatal_and_no_restart(
    scene: Scene, status: int, metrics: str, breaks: bool
) -> None:
    """Its figures grow old, and that is all; not even when it was away in between is that another run."""
    await scene.make(silent_down_s=1e-9).look()
    scene.sink.take()
    scene.now = 200.0
    scene.engine.metrics_status, scene.engine.metrics = status, metrics
    scene.engine.breaks = {"/metrics"} if breaks else set()
    assert await scene.looks(4) == []
    assert (scene.watch.state, scene.watch.scraped_at) == (EngineState.UP, 100.0)
    scene.engine.health_status = 503
    assert await scene.looks(2) == DOWN
    scene.engine.health_status = 200
    assert await scene.looks(3) == UP
    scene.engine.metrics_status, scene.engine.metrics, scene.engine.breaks = 200, page(), set()
    # The same run once more, now with its capacity.
    assert await scene.looks(1) == UP
    assert await scene.looks(1) == []
    assert scene.sink.capacities[ReplicaId("e0", 0)].kv_cache_tokens == 4096
    assert scene.watch.scraped_at == 200.0


async def test_an_engine_that_comes_up_waits_a_little_for_its_figures(scene: Scene) -> None:
    """Else it would come up as a run without a name, and a look later as another one, with its homes forgotten."""
    scene.engine.metrics_status = 500
    assert await scene.looks(2) == []
    scene.engine.metrics_status = 200
    assert await scene.looks(1) == UP
    assert await scene.looks(1) == []


async def test_an_engine_whose_figures_never_work_comes_up_all_the_same(scene: Scene) -> None:
    scene.engine.metrics_status = 500
    assert await scene.looks(3) == ["up e0/0 run-x-1", "up e0/1 run-x-1"]


async def test_ranks_have_boot_ids_of_their_own(scene: Scene) -> None:
    scene.engine.metrics = page(created=(1.0, 2.0))
    assert await scene.looks(2) == ["up e0/0 counters-1.000", "up e0/1 counters-2.000"]
    scene.engine.metrics = page(created=(1.0, 3.0))
    assert await scene.looks(2) == ["up e0/0 counters-1.000", "up e0/1 counters-3.000"]
    assert scene.watch.facts is not None
    assert scene.watch.facts.boot_ids == ("counters-1.000", "counters-3.000")


async def test_a_rank_that_holds_requests_and_does_not_move_is_stalled(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    stalls: list[bool] = []
    for second in range(6):
        scene.now = 100.0 + 20 * second
        scene.engine.metrics = page(generation_tokens=7 if second < 5 else 8)
        await scene.watch.look()
        stalls.append(scene.sink.samples[ReplicaId("e0", 1)].stalled)
    assert stalls == [False, False, False, True, True, False]
    said = capsys.readouterr().out
    assert said.count("holds requests and moved nothing") == 2  # once for each of the two ranks
    assert said.count("moves again") == 2
    assert scene.watch.stalled == (False, False)


async def test_what_it_says_of_itself_is_read_when_it_comes_up(scene: Scene) -> None:
    heard: list[int | None] = []
    scene.sink.replica_up = lambda *news: heard.append(  # type: ignore[method-assign]
        scene.watch.facts.max_model_len if scene.watch.facts else None
    )
    await scene.watch.look()
    assert heard == [32768, 32768]
    assert scene.watch.facts is not None
    assert (scene.watch.facts.version, scene.watch.facts.is_vllm) == ("0.32.0", True)


async def test_a_process_that_ended_is_down_at_once(scene: Scene) -> None:
    process = scene.launch()
    scene.watch.process_started()
    await scene.watch.look()
    assert scene.sink.take() == ["up e0/0 ", "up e0/1 ", *DOWN, *UP]
    assert process.told == ["ready"]
    scene.watch.process_ended()
    assert scene.sink.take() == [*DOWN, "lost e0"]
    scene.watch.process_ended()
    process.ours = False
    assert await scene.looks(3) == []
    scene.watch.process_started()
    process.ours = True
    scene.engine.metrics = page(started=2000.0)
    assert await scene.looks(2) == ["up e0/0 process-2000.000", "up e0/1 process-2000.000"]
    assert process.told == ["ready", "ready"]


async def test_a_new_process_without_a_boot_id_is_another_run(scene: Scene) -> None:
    scene.engine.metrics_status = 404
    await scene.watch.look()
    scene.watch.process_ended()
    scene.watch.process_started()
    scene.sink.take()
    assert await scene.looks(1) == ["up e0/0 run-x-2", "up e0/1 run-x-2"]


async def test_a_process_that_started_without_a_word_of_the_end_of_the_last(scene: Scene) -> None:
    await scene.watch.look()
    scene.sink.take()
    scene.watch.process_started()
    assert scene.sink.take() == [*DOWN, "lost e0"]
    assert scene.watch.state is EngineState.STARTING


async def test_a_stranger_on_the_port_of_our_engine_is_not_spoken_to(scene: Scene) -> None:
    scene.process = Process()
    scene.make()
    scene.watch.expect()
    scene.sink.take()
    assert await scene.looks(3) == []
    assert scene.engine.asked == []


async def test_a_start_of_our_own_engine_is_its_supervisors_to_tell(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.launch()
    scene.sink.take()
    scene.engine.health_status = 503
    assert await scene.looks(4) == []
    assert scene.watch.state is EngineState.STARTING
    assert "engine is down" not in capsys.readouterr().out


async def test_our_own_engine_that_answers_and_cannot_be_used_is_said_once(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.launch()
    scene.watch.process_started()
    scene.sink.take()
    scene.engine.models = {"data": [{"id": "another"}]}
    assert await scene.looks(3) == []
    assert scene.watch.state is EngineState.STARTING
    assert scene.watch.complaint is not None
    assert "does not serve tiny (it serves another)" in scene.watch.complaint
    assert capsys.readouterr().out.count("engine answers, but is not ready") == 1
    scene.watch.process_ended()
    scene.watch.process_started()
    assert scene.watch.complaint is None


@pytest.mark.parametrize(("wanted", "level"), [(True, "[info"), (False, "[warning")])
async def test_only_an_end_that_nobody_wanted_is_warned_of(
    scene: Scene, capsys: pytest.CaptureFixture[str], wanted: bool, level: str
) -> None:
    await scene.watch.look()
    capsys.readouterr()
    scene.watch.process_ended(wanted=wanted)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "engine is down" in line]
    assert level in line


async def test_a_look_that_began_before_the_process_ended_is_worth_nothing(scene: Scene) -> None:
    await scene.watch.look()
    scene.sink.take()
    scene.engine.let_answer.clear()
    scene.engine.health_asked.clear()
    looking = asyncio.ensure_future(scene.watch.look())
    await scene.engine.health_asked.wait()
    scene.watch.process_ended()
    scene.engine.let_answer.set()
    await looking
    assert scene.sink.take() == [*DOWN, "lost e0"]
    assert scene.watch.state is EngineState.DOWN


async def test_pins_are_tested_beside_the_looks(scene: Scene) -> None:
    scene.engine.served = Served(ranks=2)
    watch = scene.make(test_pins=True, interval_s=0.001)
    task = asyncio.ensure_future(watch.run())
    try:
        while any(report.verdict is not PinVerdict.VERIFIED for report in watch.pins.values()):
            scene.sink.heard.clear()
            await asyncio.wait_for(scene.sink.heard.wait(), PATIENCE_S)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert watch.facts is not None
    assert watch.facts.usage_details is True
    assert [news for news in scene.sink.take() if news.startswith("pins")] == [
        "pins e0 /v1/chat/completions verified",
        "pins e0 /v1/messages verified",
    ]


async def test_untested_pins_say_so(scene: Scene) -> None:
    assert {report.detail for report in scene.watch.pins.values()} == {"not tested"}
    assert {report.verdict for report in scene.make(ranks=1).pins.values()} == {PinVerdict.VERIFIED}


async def test_without_metrics_it_serves_and_has_no_figures(scene: Scene) -> None:
    scene.engine.metrics_status = 404
    await scene.watch.look()
    assert scene.sink.take() == ["up e0/0 run-x-1", "up e0/1 run-x-1"]
    assert scene.sink.samples == {}
    assert scene.watch.scraped_at is None


async def test_the_hit_ratio_counts_from_the_first_look_and_survives_a_restart(scene: Scene) -> None:
    for queries, hits, started in ((1000, 900, 1.0), (1100, 950, 1.0), (100, 100, 2.0)):
        scene.engine.metrics = page(queries=queries, hits=hits, started=started)
        await scene.watch.look()
    assert scene.watch.prefix_totals[0].hit_ratio == 0.75


async def test_run_looks_again_and_again_and_survives_its_own_errors(scene: Scene) -> None:
    watch = scene.make(interval_s=0.001)
    task = asyncio.ensure_future(watch.run())
    try:
        for _ in range(3):
            scene.sink.heard.clear()
            await asyncio.wait_for(scene.sink.heard.wait(), PATIENCE_S)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert scene.sink.take() == UP


async def test_what_the_operator_said_holds_before_an_engine_answers() -> None:
    """Its capacity is known, yet no request goes there; and its first boot id is no restart."""
    async with fake_vllm() as engine, aiohttp.ClientSession() as session:
        recorder = Recorder()
        watch = EngineWatch(
            engine.endpoint(ranks=1),
            EngineClient(engine.endpoint(ranks=1), session, timeout_s=PATIENCE_S),
            recorder,
            settings=watch_settings(),
            clock=lambda: 0.0,
            max_num_seqs=64,
        )
        watch.expect()
        assert recorder.take() == ["up e0/0 ", "down e0/0"]
        assert recorder.capacities[ReplicaId("e0", 0)].max_num_seqs == 64
        assert watch.state is EngineState.STARTING
        engine.metrics = page(ranks=1)
        await watch.look()
        (news,) = recorder.take()
        assert news.startswith("up e0/0 ")
        assert recorder.capacities[ReplicaId("e0", 0)] == ReplicaCapacity(kv_cache_tokens=4096, max_num_seqs=64)


async def test_a_tier_is_told_as_soon_as_the_log_says_what_a_token_takes(scene: Scene) -> None:
    scene.tier = Tier(gib=1.0)
    process = scene.launch()
    assert await scene.looks(1)
    replica = scene.watch.replicas[0]
    assert scene.sink.capacities[replica].cpu_cache_tokens is None
    process.kv_bytes_per_token = 1024.0
    assert (await scene.looks(1))[0].startswith(f"up {replica}")
    capacity = scene.sink.capacities[replica]
    assert (capacity.cpu_cache_tokens, capacity.max_num_seqs) == (1 << 20, 32)
    assert scene.watch.kv_bytes_per_token == 1024.0
    assert await scene.looks(2) == []  # and not again


async def test_a_stated_tier_of_an_attached_engine(scene: Scene) -> None:
    scene.tier = Tier(stated_tokens=100_000)
    scene.make()
    await scene.looks(1)
    assert scene.sink.capacities[scene.watch.replicas[1]].cpu_cache_tokens == 100_000
    assert scene.watch.kv_bytes_per_token is None
