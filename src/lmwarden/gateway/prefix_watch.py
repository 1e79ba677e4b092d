"""Looks at prompts beside the data loop: what became of each conversation's prefix, and the traces of a recording.

Theory of operation. When a request has been sent to its engine, the data loop puts its body's members into a bounded
queue and goes on: no copy, no hash, nobody is woken. A worker thread looks many times a second, makes the segments of
each prompt (``prefix_segments``), compares them with those of the conversation's previous one (``prefix_changes``) and
leaves the finding at the job. When the request ends, the data loop takes the finding if it is there, and adds what only
the engine's counts tell. A queue that is full drops the job and counts it; a row then says "not known".

The worker shares the interpreter with the data loop, which must not wait for it. So it works for a quarter of a
millisecond and then sleeps for nine times as long, which gives the loop its turn at once; what cannot be divided
(taking the list of messages apart) is bounded by the size of the bodies that are looked at. A lower priority would do
harm: a thread that is put off while it holds the interpreter's lock holds up everybody.

Nothing of a prompt is kept but keyed hashes and lengths, in a bounded memory.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import TypeAlias

import msgspec
import structlog

from lmwarden.gateway.prefix_changes import Finding, LastTurn, compare, conclude
from lmwarden.gateway.prefix_segments import NULL, UNREADABLE, SegmentReader, Segments
from lmwarden.gateway.trace_recorder import TraceRecorder
from lmwarden.routing.fields import RequestFields
from lmwarden.trace_format import BlockHasher, TraceRequest
from lmwarden.types import ConversationKey, Dispatch, PrefixChange, Usage

log = structlog.get_logger("lmwarden.gateway")

MOST_QUEUED = 1000
MOST_QUEUED_BYTES = 64 * 1024 * 1024
MOST_BODY_BYTES = 4 * 1024 * 1024
"""Larger bodies (images, mostly) are not to be put here: taking one apart would hold the interpreter for too long."""
MOST_HELD_BYTES = 48 * 1024 * 1024
"""Of all conversations together: 15,000 of a hundred turns."""
_BYTES_OF_ONE = 512
_BYTES_OF_SEGMENT = 25
"""What the last prompt of a conversation takes, measured: so much, and so much for each of its segments."""
MOST_CONVERSATIONS = 50_000
"""Whose last prompt and turn are remembered."""
_PAUSE_S = 0.02
"""Between two looks at the queue. An answer takes longer than this, so its finding is there when it ends."""
_WORK_S = 0.00025
_BREATH_S = 0.00225
"""A tenth of a core at most: about 10 MB of bodies a second. When more comes, prompts are dropped, not requests."""
_PATIENCE_RATIO = 4.0
"""Whoever wakes late has waited for a busy data loop, and leaves it alone for so many times as long."""


class PrefixJob(msgspec.Struct, eq=False, gc=False):
    """One request that is looked at."""

    fields: RequestFields | None
    """Until it was looked at."""
    size_bytes: int
    key: ConversationKey | None
    """Of the conversation whose turn it is; None: of none."""
    parent: ConversationKey | None
    sent_at: float
    number: int
    """No other job has it."""
    compared: bool
    """With the conversation's previous prompt; else it is only recorded."""
    compacted: bool
    finding: Finding | None = None
    """Set by the worker."""
    blocks: BlockHasher | None = None
    """Of a recording; None also where the prompt could not be read."""


class _End(msgspec.Struct, frozen=True, gc=False):
    """That a recorded request ended."""

    job: PrefixJob
    ended_at: float
    usage: Usage


_Work: TypeAlias = "PrefixJob | _End"


class PrefixWatch:
    """One for all models. ``start``; then ``sent`` and ``ended`` on the data loop; then ``stop``.

    Args:
        secret: the installation's, keys the hashes.
        analyse: compare prompts.
        recorder: writes traces; None: nothing is recorded.
        most_conversations: so many are remembered at most; more than the routers know would be of no use.
    """

    def __init__(
        self,
        secret: bytes,
        *,
        analyse: bool = True,
        recorder: TraceRecorder | None = None,
        most_conversations: int = MOST_CONVERSATIONS,
    ) -> None:
        self.dropped = 0
        """Requests that were not looked at: the queue was full, or the body too large, which the caller counts."""
        self._secret = secret
        self._analyse = analyse
        self._recorder = recorder
        self._most_conversations = min(MOST_CONVERSATIONS, most_conversations)
        self._queue: deque[_Work] = deque()
        self._put = 0
        self._put_bytes = 0
        self._done = 0
        self._done_bytes = 0
        """The first two are the loop's, the others the worker's: nobody adds to another's number."""
        self._turns: OrderedDict[ConversationKey, LastTurn] = OrderedDict()
        self._memory: OrderedDict[ConversationKey, Segments] = OrderedDict()
        self._held_bytes = 0
        self._began_at: float | None = None
        """On the callers' clock: when the first request was sent."""
        self._work_until = 0.0
        self._late_s = 0.0
        """By so much it woke too late the last time."""
        self._stopping = threading.Event()
        self._idle = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the worker."""
        self._thread = threading.Thread(target=self._run, name="lmwarden-prefixes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish what is queued and end the worker."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._recorder is not None:
            self._recorder.close()

    def settle(self, timeout_s: float) -> bool:
        """Wait until the worker has done all that was put so far; False: not within the time. Not on the data loop."""
        put = self._put
        with self._idle:
            return self._idle.wait_for(lambda: self._done >= put, timeout_s)

    # -- the data loop --------------------------------------------------------------------------------------

    def sent(
        self,
        fields: RequestFields,
        size_bytes: int,
        *,
        key: ConversationKey | None,
        parent: ConversationKey | None,
        auxiliary: bool,
        compacted: bool,
        sent_at: float,
    ) -> PrefixJob | None:
        """A generation was sent to its engine. Returns a job, to be given to ``ended``, if it is looked at.

        Args:
            fields: of its body, which they keep alive until they were looked at.
            size_bytes: of the body.
            key: its conversation.
            parent: of a subagent.
            auxiliary: it is no turn of its conversation.
            compacted: the client says that it has just replaced its history.
            sent_at: seconds on any clock, the same for ``ended``.
        """
        if auxiliary:
            key = None
        compared = self._analyse and key is not None
        if not compared and self._recorder is None:
            return None
        if fields.previous_response_id and fields.previous_response_id != NULL:
            return None  # the engine adds what came before: the body is not the prompt
        number, put_bytes = self._put + 1, self._put_bytes + size_bytes
        if number - self._done > MOST_QUEUED or put_bytes - self._done_bytes > MOST_QUEUED_BYTES:
            self.dropped += 1
            return None
        self._put, self._put_bytes = number, put_bytes
        job = PrefixJob(fields, size_bytes, key, parent, sent_at, number, compared, compacted)
        self._queue.append(job)
        return job

    def ended(
        self,
        job: PrefixJob,
        action: Dispatch,
        replica: str | None,
        runs: Mapping[str, int],
        usage: Usage,
        ended_at: float,
    ) -> tuple[PrefixChange | None, float | None, int | None]:
        """The request ended: what its row says of its prefix.

        Args:
            job: from ``sent``.
            action: where it was sent.
            replica: the same as text; None: the engine chose it itself.
            runs: by engine, the number of its present run.
            usage: what the engine counted.
            ended_at: seconds.

        Returns:
            The change, the shared ratio and the recomputed tokens, each None where it is not known.
        """
        if self._recorder is not None:
            self._put += 1
            self._queue.append(_End(job, ended_at, usage))
        key, finding = job.key, job.finding
        if key is None or not job.compared:
            return None, None, None
        turns = self._turns
        last, restarted = turns.get(key), False
        if last is not None:
            turns.move_to_end(key)
            restarted = runs.get(last.engine, 0) != last.run
        change, recomputed = conclude(finding, last, replica, action.decision, usage, restarted=restarted)
        if usage.prompt_tokens is not None:
            turns[key] = LastTurn(replica, action.engine, runs.get(action.engine, 0), usage.prompt_tokens)
            if len(turns) > self._most_conversations:
                turns.popitem(last=False)
        return change, None if finding is None else finding.shared_ratio, recomputed

    # -- the worker -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(_PAUSE_S):
            self._work()
        self._work()

    def _work(self) -> None:
        """Do all that is queued."""
        if not self._queue:
            return
        self._work_until = time.perf_counter() + _WORK_S
        while self._queue:
            work = self._queue.popleft()
            if isinstance(work, PrefixJob):
                self._look(work)
                work.fields = None
                self._done_bytes += work.size_bytes
            else:
                self._record(work)
            self._done += 1
        if self._recorder is not None:
            self._recorder.flush()
        with self._idle:
            self._idle.notify_all()

    def _look(self, job: PrefixJob) -> None:
        assert job.fields is not None
        reader = SegmentReader(self._secret)
        blocks = None if self._recorder is None else self._recorder.hasher()
        if self._began_at is None:
            self._began_at = job.sent_at
        try:
            for piece in reader.pieces(job.fields):
                if job.compared:
                    reader.take(piece)
                if blocks is not None:
                    blocks.take(piece.text)
                self._breathe()
        except UNREADABLE:
            return  # it is the engine's to refuse
        except Exception as error:  # whatever it is, rows and other prompts are not to suffer, and it may hold text
            log.error("a prompt could not be looked at", error=type(error).__name__)
            return
        job.blocks = blocks
        if job.compared and job.key is not None:
            segments = reader.segments()
            job.finding = compare(self._memory.get(job.key), segments, compacted=job.compacted)
            self._remember(job.key, segments)

    def _breathe(self) -> None:
        """Let the data loop have its turn, if this thread has worked for a while."""
        now = time.perf_counter()
        if now >= self._work_until:
            pause_s = max(_BREATH_S, _PATIENCE_RATIO * self._late_s)
            self._stopping.wait(pause_s)
            woke = time.perf_counter()
            self._late_s = woke - now - pause_s
            self._work_until = woke + _WORK_S

    def _remember(self, key: ConversationKey, segments: Segments) -> None:
        memory = self._memory
        before = memory.pop(key, None)
        memory[key] = segments
        self._held_bytes += _size_bytes(segments) - (0 if before is None else _size_bytes(before))
        while self._held_bytes > MOST_HELD_BYTES or len(memory) > self._most_conversations:
            self._held_bytes -= _size_bytes(memory.popitem(last=False)[1])

    def _record(self, end: _End) -> None:
        recorder, job, usage, began_at = self._recorder, end.job, end.usage, self._began_at
        assert recorder is not None
        assert began_at is not None
        if job.blocks is None:
            return
        recorder.add(
            TraceRequest(
                t_s=max(0.0, job.sent_at - began_at),
                ended_s=max(0.0, end.ended_at - began_at),
                conversation=recorder.label(job.key if job.key is not None else job.number.to_bytes(8, "big")),
                parent=None if job.parent is None else recorder.label(job.parent),
                prompt=job.blocks.length,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                output_tokens=usage.completion_tokens,
                finish_reason=usage.finish_reason,
            ),
            job.blocks,
        )


def _size_bytes(segments: Segments) -> int:
    return _BYTES_OF_ONE + _BYTES_OF_SEGMENT * len(segments)
