"""The worker beside the data loop: findings for rows, bounds that hold, and a trace of what went by."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.gateway.conftest import Response, Scene, SceneMaker, post
from tests.stub_engine import Act, Peer, Seen, whole
from tests.waiting import PATIENCE_S

from lmwarden.bench.trace import read_trace
from lmwarden.gateway import intake, prefix_watch
from lmwarden.gateway.prefix_segments import SegmentReader
from lmwarden.gateway.prefix_watch import PrefixJob, PrefixWatch
from lmwarden.gateway.trace_recorder import FOLDER, TraceRecorder
from lmwarden.routing.fields import decode_fields
from lmwarden.types import Decision, Dispatch, Grounds, Outcome, PrefixChange, RefuseReason, ReplicaId, Usage

SECRET = b"s" * 32
KEY = b"k" * 16
RUNS = {"e0": 0}


def body(*turns: str, **more: Any) -> bytes:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(turns)]
    return json.dumps({"model": "m", "messages": messages} | more).encode()


def put(watch: PrefixWatch, data: bytes, key: bytes | None = KEY, **changes: Any) -> PrefixJob | None:
    values: dict[str, Any] = {"parent": None, "auxiliary": False, "compacted": False, "sent_at": 1.0}
    return watch.sent(decode_fields(data), len(data), key=key, **(values | changes))


def finish(
    watch: PrefixWatch,
    job: PrefixJob | None,
    *,
    rank: int = 0,
    prompt: int = 1000,
    cached: int | None = 0,
    ended_at: float = 8.0,
) -> tuple[PrefixChange | None, float | None, int | None]:
    assert job is not None
    action = Dispatch(1, ReplicaId("e0", rank), "e0", Decision.STICKY)
    usage = Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=10)
    return watch.ended(job, action, f"e0/{rank}", RUNS, usage, ended_at)


@pytest.fixture
def watch() -> Iterator[PrefixWatch]:
    made = PrefixWatch(SECRET)
    made.start()
    yield made
    made.stop()


def turn(watch: PrefixWatch, data: bytes, **end: Any) -> tuple[PrefixChange | None, float | None, int | None]:
    job = put(watch, data)
    assert watch.settle(PATIENCE_S)
    return finish(watch, job, **end)


def test_a_conversation_is_followed_from_turn_to_turn(watch: PrefixWatch) -> None:
    assert turn(watch, body("a")) == ("first", None, None)
    assert turn(watch, body("a", "b", "c"), prompt=2000, cached=992) == ("extends", 1.0, 8)
    assert turn(watch, body("a", "b", "c", "d", "e"), prompt=3000, cached=100) == ("evicted", 1.0, 1900)
    assert turn(watch, body("a", "b", "c", "d", "e"), rank=1, prompt=3000, cached=0) == ("moved", 1.0, 3000)
    change, ratio, recomputed = turn(watch, body("a", "b", "x", "d", "e"), rank=1, prompt=3000, cached=1500)
    assert (change, recomputed) == ("history_edited", 1500)
    assert ratio == pytest.approx(0.4, abs=0.1)


def test_a_run_of_the_engine_that_ended_is_the_cause(watch: PrefixWatch) -> None:
    turn(watch, body("a"))
    RUNS["e0"] += 1
    assert turn(watch, body("a", "b", "c"), cached=0)[0] is PrefixChange.ENGINE_RESTARTED
    assert turn(watch, body("a", "b", "c"), cached=0)[0] is PrefixChange.EVICTED


def test_conversations_are_not_compared_with_each_other(watch: PrefixWatch) -> None:
    put(watch, body("a"))
    job = put(watch, body("b"), b"o" * 16)
    assert watch.settle(PATIENCE_S)
    assert finish(watch, job) == ("first", None, None)


def test_a_request_that_ends_before_its_prompt_was_looked_at_has_no_finding() -> None:
    watch = PrefixWatch(SECRET)  # nobody works
    first, second = put(watch, body("a")), put(watch, body("a"))
    assert finish(watch, first) == (None, None, None)
    assert finish(watch, second, cached=0) == (None, None, 1000)
    watch.stop()


@pytest.mark.parametrize(
    "changes",
    [{"key": None}, {"auxiliary": True}],
    ids=["no conversation", "auxiliary"],
)
def test_what_is_no_turn_is_not_looked_at(watch: PrefixWatch, changes: dict[str, Any]) -> None:
    assert put(watch, body("a"), **changes) is None
    assert watch.dropped == 0


def test_a_response_that_goes_on_from_another_is_not_looked_at(watch: PrefixWatch) -> None:
    assert put(watch, body("a", previous_response_id="resp_1")) is None
    assert put(watch, body("a", previous_response_id=None)) is not None


def test_an_odd_body_hurts_nobody(watch: PrefixWatch) -> None:
    odd = put(watch, b'{"messages": [3, {"role": 4}], "tools": [[]]}')
    assert watch.settle(PATIENCE_S)
    assert finish(watch, odd) == (None, None, None)
    assert turn(watch, body("a"))[0] is PrefixChange.FIRST


def test_whatever_goes_wrong_the_worker_lives_and_tells_no_text(
    watch: PrefixWatch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("MARKER-7")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentReader, "take", fail)
        assert turn(watch, body("MARKER-7")) == (None, None, None)
    assert turn(watch, body("a"))[0] is PrefixChange.FIRST
    assert "MARKER" not in "".join(capsys.readouterr())


def test_what_the_queue_cannot_hold_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_watch, "MOST_QUEUED", 3)
    watch = PrefixWatch(SECRET)
    jobs = [put(watch, body("a")) for _ in range(5)]
    assert [job is None for job in jobs] == [False, False, False, True, True]
    assert watch.dropped == 2
    watch.start()
    assert watch.settle(PATIENCE_S)
    assert put(watch, body("a")) is not None
    watch.stop()


def test_the_queue_is_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_watch, "MOST_QUEUED_BYTES", 3 * len(body("a")))
    watch = PrefixWatch(SECRET)
    assert [put(watch, body("a")) is None for _ in range(4)] == [False, False, False, True]
    assert watch.dropped == 1
    watch.start()
    assert watch.settle(PATIENCE_S)
    assert put(watch, body("a")) is not None
    watch.stop()


async def test_a_body_that_is_too_large_is_counted_and_not_looked_at(
    make_scene: SceneMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MOST_BODY_BYTES", len(body("a")))
    watch = PrefixWatch(SECRET)
    async with make_scene(prefixes=watch) as scene:
        scene.engine.default = whole(CHAT % (10, b'"x":1'))
        for turns, dropped in (("a", 0), ("aa", 1), ("b", 1)):
            assert (await ask(scene, body(turns))).status == 200
            assert watch.dropped == dropped
    assert watch._put == 2


def test_memory_is_bounded_and_the_conversation_used_last_is_kept(
    watch: PrefixWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_watch, "MOST_HELD_BYTES", 2000)
    for number in range(20):
        put(watch, body("a", "b", "c"), bytes([number]) * 16)
    assert watch.settle(PATIENCE_S)
    assert watch._held_bytes == sum(map(prefix_watch._size_bytes, watch._memory.values())) <= 2000
    assert list(watch._memory) == [bytes([number]) * 16 for number in (17, 18, 19)]


def test_what_a_conversation_takes_is_not_far_from_what_is_counted(watch: PrefixWatch) -> None:
    """Else a supply of new ids with short prompts would take many times the memory that is allowed."""
    for texts in (("a",), ("a", "b", "c"), tuple(map(str, range(100)))):
        put(watch, body(*texts), b"k" * 16)
        assert watch.settle(PATIENCE_S)
        (kept,) = watch._memory.values()
        parts = (kept, kept.kinds, kept.hashes, kept.masked, kept.sizes, kept.billing, b"k" * 16)
        in_the_table_bytes = 100
        taken = sum(map(sys.getsizeof, parts)) + in_the_table_bytes
        assert 0.6 < taken / prefix_watch._size_bytes(kept) < 1.3


@pytest.mark.parametrize(("most", "known"), [(2, 200_000), (50_000, 2)])
def test_no_more_are_remembered_than_the_bound_or_than_anybody_knows(
    monkeypatch: pytest.MonkeyPatch, most: int, known: int
) -> None:
    monkeypatch.setattr(prefix_watch, "MOST_CONVERSATIONS", most)
    watch = PrefixWatch(SECRET, most_conversations=known)
    watch.start()
    for number in range(5):
        finish(watch, put(watch, body("a"), bytes([number]) * 16))
    assert watch.settle(PATIENCE_S)
    watch.stop()
    assert list(watch._turns) == list(watch._memory) == [b"\x03" * 16, b"\x04" * 16]
    assert watch._held_bytes == sum(map(prefix_watch._size_bytes, watch._memory.values()))


def test_nothing_of_a_prompt_is_kept_but_hashes(watch: PrefixWatch) -> None:
    job = put(watch, body("MARKER-7 " * 100, "MARKER-7"))
    assert watch.settle(PATIENCE_S)
    assert job is not None and job.fields is None
    assert b"MARKER" not in repr(list(watch._memory.values())).encode()


# -- recording


def test_a_recording_is_written_with_what_the_engine_counted(tmp_path: Path) -> None:
    watch = PrefixWatch(SECRET, recorder=TraceRecorder(tmp_path))
    watch.start()
    first = put(watch, body("a" * 1000), sent_at=5.0)
    finish(watch, first)
    second = put(watch, body("a" * 1000, "b", "c"), sent_at=6.0)
    title = put(watch, body("t"), auxiliary=True, sent_at=6.5)
    child = put(watch, body("x"), b"c" * 16, parent=KEY, sent_at=7.0)
    for job in (child, title, second):
        finish(watch, job)
    watch.stop()
    (file,) = (tmp_path / FOLDER).iterdir()
    trace = read_trace(file)
    assert [one.t_s for one in trace.requests] == [0.0, 1.0, 1.5, 2.0]
    assert {one.ended_s for one in trace.requests} == {3.0}
    main, again, other, sub = trace.requests
    assert main.conversation == again.conversation == sub.parent
    assert len({main.conversation, other.conversation, sub.conversation}) == 3
    assert trace.hashes[1][: len(trace.hashes[0])] == trace.hashes[0] != ()
    assert (main.prompt_tokens, main.cached_tokens, main.output_tokens) == (1000, 0, 10)
    assert main.prompt == 1005  # the role, and the text


def test_recording_alone_compares_nothing(tmp_path: Path) -> None:
    watch = PrefixWatch(SECRET, analyse=False, recorder=TraceRecorder(tmp_path))
    watch.start()
    job = put(watch, body("a"))
    assert watch.settle(PATIENCE_S)
    assert finish(watch, job) == (None, None, None)
    assert not watch._memory and not watch._turns
    watch.stop()
    assert len(list((tmp_path / FOLDER).iterdir())) == 1


# -- in the gateway

CHAT = b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":5,%s}}'


def test_whoever_wakes_late_leaves_the_data_loop_alone_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It wakes late where the loop is busy, and early again when the loop has caught up."""
    watch, now = PrefixWatch(SECRET), 0.0
    late_s = iter((0.0, 0.005, 0.005, 0.0, 0.0))
    pauses: list[float] = []

    def wait(pause_s: float) -> bool:
        nonlocal now
        pauses.append(pause_s)
        now += pause_s + next(late_s)
        return False

    monkeypatch.setattr(prefix_watch, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(watch, "_stopping", SimpleNamespace(wait=wait))
    for _ in range(5):
        watch._breathe()
        now += prefix_watch._WORK_S
    usual = prefix_watch._BREATH_S
    assert pauses == [usual, usual, pytest.approx(0.02), pytest.approx(0.02), usual]
    now -= prefix_watch._WORK_S / 2
    watch._breathe()
    assert len(pauses) == 5, "it goes on working as long as it may"


def looked_at(watch: PrefixWatch, prompt: int, cached: int) -> Act:
    """Answers when the prompt was looked at, as a real answer does."""
    details = b'"prompt_tokens_details":{"cached_tokens":%d}' % cached

    async def act(peer: Peer, seen: Seen) -> None:
        await asyncio.to_thread(watch.settle, PATIENCE_S)
        await whole(CHAT % (prompt, details))(peer, seen)

    return act


async def ask(scene: Scene, data: bytes, *lines: str) -> Response:
    return await scene.ask(post("/v1/chat/completions", data, "X-Session-Id: abcdef", *lines))


async def test_rows_say_who_asked_why_it_went_there_and_what_the_prefix_did(make_scene: SceneMaker) -> None:
    watch = PrefixWatch(SECRET)
    watch.start()
    grounds = Grounds(b"g" * 16, "above", "e0/1", 9, 8, None)
    async with make_scene(prefixes=watch) as scene:
        scene.router.found = {1: grounds, 2: grounds}
        scene.engine.script.extend([looked_at(watch, 1000, 0), looked_at(watch, 1200, 100)])
        answer = await ask(scene, body("a"), "User-Agent: curl/8")
        assert answer.header("X-LMWarden-Conversation") == (b"g" * 4).hex()
        await ask(scene, body("a", "b", "c"), "User-Agent: curl/8")
        await scene.at_rest()
    first, second = scene.rows
    assert (first.conversation_key, first.why, first.home, first.home_in_flight) == (b"g" * 16, "above", "e0/1", 9)
    assert {row.conversation for row in scene.rows} == {(b"g" * 4).hex()}  # the router's: an id may stand for several
    assert (first.client, first.kind, first.body_bytes) == ("curl", "main", len(body("a")))
    assert (first.prefix_change, first.prefix_shared_ratio, first.recomputed_tokens) == ("first", None, None)
    assert (second.prefix_change, second.prefix_shared_ratio, second.recomputed_tokens) == ("evicted", 1.0, 900)
    watch.stop()


async def test_who_is_refused_has_no_grounds_and_no_prefix(make_scene: SceneMaker) -> None:
    watch = PrefixWatch(SECRET)
    async with make_scene(prefixes=watch) as scene:
        scene.router.choose = lambda request: RefuseReason.NO_REPLICA
        await ask(scene, body("a"))
        await scene.at_rest()
    (row,) = scene.rows
    assert row.outcome is Outcome.REFUSED
    assert (row.why, row.home, row.spill_threshold, row.prefix_change) == (None, None, None, None)
    assert row.conversation_key is not None
    assert row.conversation_key[:4].hex() == row.conversation
    watch.stop()


async def test_a_request_that_is_sent_again_is_looked_at_once(make_scene: SceneMaker) -> None:
    watch = PrefixWatch(SECRET)
    watch.start()
    async with make_scene(engines=2, prefixes=watch) as scene:
        scene.router.retry_at = ReplicaId("e1", 0)
        scene.engine.script.append(whole(b"{}", 503))
        scene.engines[1].script.append(looked_at(watch, 1000, 0))
        await ask(scene, body("a"))
        await scene.at_rest()
    (row,) = scene.rows
    assert (row.retried, row.prefix_change) == (True, "first")
    assert watch._put == 1
    watch.stop()


async def test_nobody_looks_at_what_is_no_generation(make_scene: SceneMaker) -> None:
    watch = PrefixWatch(SECRET)
    async with make_scene(prefixes=watch) as scene:
        await scene.ask(post("/v1/embeddings", {"model": "m", "input": "x"}))
    assert watch._put == 0
    watch.stop()


async def test_without_anybody_who_looks_rows_are_written_all_the_same(make_scene: SceneMaker) -> None:
    async with make_scene() as scene:
        await ask(scene, body("a"))
        await scene.at_rest()
    (row,) = scene.rows
    assert (row.prefix_change, row.kind) == (None, "main")


async def test_the_end_of_an_engine_s_run_reaches_the_rows(make_scene: SceneMaker) -> None:
    watch = PrefixWatch(SECRET)
    watch.start()
    async with make_scene(prefixes=watch) as scene:
        scene.engine.script.extend([looked_at(watch, 1000, 0), looked_at(watch, 1000, 0)])
        await ask(scene, body("a"))
        scene.gateway.engine_restarted("m", "e0")
        await ask(scene, body("a", "b", "c"))
        await scene.at_rest()
    assert [row.prefix_change for row in scene.rows] == ["first", "engine_restarted"]
    watch.stop()


async def test_the_snapshot_counts_prompts_that_were_not_looked_at(
    make_scene: SceneMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_watch, "MOST_QUEUED", 0)
    watch = PrefixWatch(SECRET)
    async with make_scene(prefixes=watch) as scene:
        await ask(scene, body("a"))
        assert scene.gateway.snapshot()["m"].unread_prompts == 1
    watch.stop()
