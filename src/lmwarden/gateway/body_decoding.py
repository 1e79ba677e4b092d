"""Request bodies that came compressed, on their way to being read.

Theory of operation. A body is decoded when it is complete, before anything looks at it: from there on the request is
like any other, and its engine gets it without a coding. Few bytes can stand for very many, so decoding is bounded in
every way: the size of the result (``max_body_bytes``), its ratio to what was sent, what all bodies take together
(``BufferBudget``, which also makes it wait), how many are decoded at once (each has a window of up to 16 MiB), and the
time that all of this may take (``buffer_wait_s``).

The loop is not held: a small body is decoded at once, up to a size that takes a fraction of a millisecond; every other
one a step at a time by worker threads, which let the loop run meanwhile. Brotli always goes there: it fills its window
before it gives anything, and 400 bytes can make it fill 16 MiB. Between two steps the loop counts what was made.

The end of a decoding belongs to its task's done callback and not to the task: a client may send its body and leave
within one turn of the loop, and a task that is cancelled before its first step runs nothing of itself, no ``finally``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from lmwarden.gateway import envelope
from lmwarden.gateway.buffers import BufferBudget
from lmwarden.gateway.client_side import ClientConnection
from lmwarden.gateway.codings import CorruptError, Decoder
from lmwarden.gateway.envelope import Problem
from lmwarden.gateway.request import ClientRequest
from lmwarden.gateway.settings import GatewaySettings

_AT_ONCE_BYTES = 32 * 1024
"""Larger bodies go to a worker."""
_AT_ONCE_DECODED_BYTES = 128 * 1024
_PIECE_BYTES = 16 * 1024
"""Of input, at a time. What a decoder does not take at once is copied."""
_STEP_BYTES = 1024 * 1024
"""Of output, or of input where that is more, between two looks at the budget."""
_STEP_MEMBERS = 32
"""And so many members: an empty one makes nothing and takes up to 11 microseconds."""
_FREE_BYTES = 4 * 1024 * 1024
"""Up to this size any ratio will do: a short text may repeat itself."""
_MAX_RATIO = 200
"""Histories of agents compress to a tenth or a twentieth."""
_MOST_AT_ONCE = 4
_WORKERS = 2

Begin = Callable[[ClientConnection, ClientRequest], None]


class _RefusedError(Exception):
    """The body is not decoded any further."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class BodyDecoding:
    """All bodies of one gateway that are being decoded. Belongs to the data loop."""

    def __init__(
        self, settings: GatewaySettings, budget: BufferBudget, begin: Begin, dropped: Callable[[], None]
    ) -> None:
        """
        Args:
            budget: what the bodies count in.
            begin: is given each request when its body is decoded, or has become its ``problem``.
            dropped: is called where it is not, because nobody wants the body any more.
        """
        self.settings = settings
        self.budget = budget
        self.begin = begin
        self.dropped = dropped
        self.free = asyncio.Semaphore(_MOST_AT_ONCE)
        self.workers = ThreadPoolExecutor(_WORKERS, "lmwarden-decode")
        self.open: set[_Work] = set()

    def decode(self, connection: ClientConnection, request: ClientRequest) -> bool:
        """Decode the body of a complete request.

        Returns:
            True: done, or it has a ``problem``. False: ``begin`` will be called.
        """
        if request.coding != "br" and len(request.body) <= _AT_ONCE_BYTES:
            decoder = Decoder(request.coding)
            try:
                pieces, at = _step(decoder, memoryview(request.body), 0, _AT_ONCE_DECODED_BYTES)
            except CorruptError:
                self.refuse(request, _corrupt(request))
                return True
            if decoder.hungry and at == len(request.body):
                self._decoded_at_once(request, decoder, pieces)
                return True
        work = _Work(self, connection, request)
        self.open.add(work)
        work.start()
        return False

    def _decoded_at_once(self, request: ClientRequest, decoder: Decoder, pieces: list[bytes]) -> None:
        if not decoder.finished:
            self.refuse(request, _corrupt(request))
        elif decoder.out_bytes > self.settings.max_body_bytes:
            self.refuse(request, envelope.too_large(self.settings.max_body_bytes))
        else:
            self.budget.take(decoder.out_bytes)
            self.replace(request, b"".join(pieces))

    def replace(self, request: ClientRequest, body: bytes) -> None:
        """The request gets its decoded body, which is counted already."""
        self.budget.give_back(len(request.body))
        request.body = body
        request.coding = ""

    def refuse(self, request: ClientRequest, problem: Problem) -> None:
        """The request gets a problem in the place of its body."""
        self.budget.give_back(len(request.body))
        request.body = b""
        request.problem = problem

    async def close(self) -> None:
        """End what is still open: its requests get no answer."""
        tasks = [work.task for work in self.open]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.workers.shutdown(wait=False, cancel_futures=True)


class _Work:
    """One body that is decoded by the workers. It is its connection's ``Answering`` until then."""

    __slots__ = ("_all", "_connection", "_gone", "_held_bytes", "_request", "_room", "_waited", "task")

    task: asyncio.Task[bytes | Problem]

    def __init__(self, all_of_them: BodyDecoding, connection: ClientConnection, request: ClientRequest) -> None:
        self._all = all_of_them
        self._connection = connection
        self._request = request
        self._room = asyncio.Event()
        self._waited = False
        self._gone = False
        self._held_bytes = 0
        """Counted in the budget, beside what was sent."""

    def start(self) -> None:
        """Begin."""
        self._connection.answering = self
        self.task = asyncio.get_running_loop().create_task(self._run())
        self.task.add_done_callback(self._ended)

    def client_gone(self) -> None:
        """The client left: nobody wants the body any more."""
        self._gone = True  # the task may be done, and only its callback be due
        self.task.cancel()

    def client_slow(self, slow: bool) -> None:
        """Nothing is being sent to it."""

    def resume_body(self) -> None:
        """The budget has room again."""
        self._room.set()

    async def _run(self) -> bytes | Problem:
        request, decoding = self._request, self._all
        try:
            async with asyncio.timeout(decoding.settings.buffer_wait_s), decoding.free:
                return await self._decode()
        except CorruptError:
            return _corrupt(request)
        except _RefusedError as error:
            return error.problem
        except TimeoutError:
            return envelope.no_buffer(request.api)

    def _ended(self, task: asyncio.Task[bytes | Problem]) -> None:
        """Enter the end into the books, whatever it was, and hand the request on if its client is there."""
        request, decoding, connection = self._request, self._all, self._connection
        dropped = self._gone or task.cancelled()
        fault = None if task.cancelled() else task.exception()
        made = envelope.DRAINING if dropped or fault is not None else task.result()  # which nobody reads
        decoding.open.discard(self)
        decoding.budget.forget(self)
        if isinstance(made, Problem):
            decoding.refuse(request, made)
        else:
            self._held_bytes -= len(made)
            decoding.replace(request, made)
        decoding.budget.give_back(self._held_bytes)
        if not dropped:
            connection.answering = None
        if fault is not None:
            connection.abort()
            decoding.dropped()
            raise fault  # one of ours: the loop reports it
        if dropped:
            decoding.dropped()
        else:
            decoding.begin(connection, request)

    async def _decode(self) -> bytes:
        loop, workers = asyncio.get_running_loop(), self._all.workers
        decoder = Decoder(self._request.coding)
        source = memoryview(self._request.body)
        made: list[bytes] = []
        at = 0
        while not (decoder.hungry and at == len(source)):
            before = decoder.out_bytes
            pieces, at = await loop.run_in_executor(workers, _step, decoder, source, at, _STEP_BYTES)
            made += pieces
            self._check(decoder, len(source))
            await self._count(decoder.out_bytes - before)
        if not decoder.finished:
            raise CorruptError("cut off")
        self._take(decoder.out_bytes)  # for a moment the pieces and the whole are there
        body = await loop.run_in_executor(workers, b"".join, made)
        made.clear()
        self._held_bytes -= len(body)
        self._all.budget.give_back(len(body))
        return body

    def _check(self, decoder: Decoder, sent_bytes: int) -> None:
        limit = self._all.settings.max_body_bytes
        if decoder.out_bytes > limit:
            raise _RefusedError(envelope.too_large(limit))
        if decoder.out_bytes > max(_FREE_BYTES, _MAX_RATIO * sent_bytes):
            raise _RefusedError(envelope.expands_too_much(_MAX_RATIO))

    async def _count(self, size_bytes: int) -> None:
        """Count bytes that were made, and wait until there is room for them."""
        if self._take(size_bytes):
            return
        self._room.clear()
        self._all.budget.wait(self, again=self._waited)
        self._waited = True
        await self._room.wait()

    def _take(self, size_bytes: int) -> bool:
        self._held_bytes += size_bytes
        return self._all.budget.take(size_bytes)


def _step(decoder: Decoder, source: memoryview, at: int, most_bytes: int) -> tuple[list[bytes], int]:
    """Decode on from ``source[at]``, until ``most_bytes`` were made or read, or many members; or the input is used up.

    Returns:
        What was made, and where the input goes on.

    Raises:
        CorruptError: the input is wrong.
    """
    pieces: list[bytes] = []
    made_bytes, last, members = 0, at + most_bytes, decoder.members + _STEP_MEMBERS
    while made_bytes < most_bytes and at <= last and decoder.members < members:
        if decoder.hungry:
            if at == len(source):
                break
            piece = source[at : at + _PIECE_BYTES]
            at += len(piece)
            decoder.feed(piece)
        made = decoder.decode(most_bytes - made_bytes)
        if made:
            pieces.append(made)
            made_bytes += len(made)
    return pieces, at


def _corrupt(request: ClientRequest) -> Problem:
    return envelope.undecodable(request.coding)
