"""A busy day of agents at full speed, in a process of its own.

    python -m benchmarks.soaking.load < plan.json

``Plan`` says what. One line of JSON a second tells how far it is, the last one (``"ended": true``) is the ``Report``.

Each agent has one connection and plays conversations that live and die: a dozen turns whose prompt grows, streamed or
not, on either API; between them what else a busy host sees (``KINDS``). The day has 24 hours of equal numbers of
requests, and each hour its own share of the agents at work. Every answer is checked: the status that was to be
expected, the number that belongs to this request, the end of the stream, no usage that nobody asked for. Nothing is
sent twice: what went wrong is in the report, with its time.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from typing import Any, cast

import msgspec
import uvloop
from benchmarks.soaking.plan import (
    EXPECTED,
    HOURS,
    KINDS,
    ROUTED,
    RUSH_HOURS,
    RUSH_LOST_RATIO,
    RUSH_PAUSE_MS,
    Plan,
    Report,
    Trouble,
)

_SYSTEM = "You are a coding agent. " + "Keep to the rules of the house. " * 40
_MOST_TROUBLES = 2000
_AFTER_TROUBLE_S = 0.5
"""Before an agent that got a 5xx goes on."""
_ANSWER_LIMIT_S = 90.0
"""No engine here takes a second: a request without an answer for so long is lost."""


class Day:
    """What all agents share."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chance = random.Random(plan.seed)
        self.report = Report(by_kind={}, statuses={}, troubles=[])
        self.kinds: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.over = asyncio.Event()
        self.began_at = time.monotonic()
        self._names = list(KINDS)
        self._weights = list(KINDS.values())
        self._deck: list[str] = []
        self.agents: list[Agent] = []
        self.parked: list[Agent] = []
        self.wanted = 0

    def kind(self) -> str:
        """What an agent does next."""
        if not self._deck:
            self._deck = self.chance.choices(self._names, self._weights, k=1000)
        return self._deck.pop()

    def hour(self) -> int:
        """Of the day, 0 to 23."""
        done = self.report.sent / self.plan.requests
        if self.plan.seconds is not None:
            done = (time.monotonic() - self.began_at) / self.plan.seconds
        return min(23, int(done * 24))

    def look_at_the_clock(self) -> None:
        """Have as many agents at work as the hour wants."""
        self.wanted = max(2, round(self.plan.agents * HOURS[self.hour()]))
        while self.parked and len(self.agents) - len(self.parked) < self.wanted:
            self.parked.pop().next()

    def number(self) -> int | None:
        """Of a new request; None: the day is over."""
        report, plan = self.report, self.plan
        late = plan.seconds is not None and time.monotonic() - self.began_at >= plan.seconds
        if report.sent >= plan.requests or late:
            return None
        report.sent += 1
        return report.sent

    def trouble(self, kind: str, what: str) -> None:
        """Write it down."""
        if len(self.report.troubles) < _MOST_TROUBLES:
            self.report.troubles.append(Trouble(time.monotonic(), kind, what))

    def ended(self, agent: Agent) -> None:
        """An agent found the day over."""
        self.agents.remove(agent)
        if not self.agents:
            self.over.set()


class Agent(asyncio.Protocol):
    """One agent, with its connection."""

    def __init__(self, day: Day, model: str) -> None:
        self._day = day
        self._model = model
        self._chance = day.chance
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[Any] | None = None
        self._unsent = b""
        self._in = b""
        self._kind: str | None = None
        """Of the request that is on its way."""
        self._number = 0
        self._asked_at = 0.0
        self._streamed = False
        self._messages_api = False
        self._text = ""
        """The conversation's messages so far."""
        self._new_conversation()

    # -- what it does ---------------------------------------------------------------------------------------

    def next(self) -> None:
        """Do the next thing, or nothing more."""
        day = self._day
        if len(day.agents) - len(day.parked) > day.wanted and self._turns_left <= 0:
            day.parked.append(self)
            return
        number = day.number()
        if number is None:
            day.ended(self)
            if self._transport is not None:
                self._transport.close()
            return
        kind = day.kind()
        day.kinds[kind] += 1
        day.report.routed += kind in ROUTED
        self._number = number
        self._kind = kind
        self._asked_at = time.monotonic()
        self._in = b""
        self._send(self._request(kind))

    def _request(self, kind: str) -> bytes:
        chance, plan = self._chance, self._day.plan
        if kind == "listing":
            return self._head(b"GET", "/v1/models", plan.keys[0], "", 0)
        if kind == "health":
            return self._head(b"GET", "/healthz", plan.keys[0], "", 0)
        if self._turns_left <= 0:
            self._new_conversation()
        model = "nobody-serves-this" if kind == "no-model" else self._model
        key = {"no-key": "", "wrong-key": f"sk-{self._number}"}.get(kind, self._key)
        self._streamed = kind == "leave-midway" or (kind in ("turn", "one-shot", "pin") and chance.random() < 0.7)
        lines, words, text = "", [str(self._number)], self._text
        path = "/v1/messages" if self._messages_api else "/v1/chat/completions"
        session = self._session
        if kind == "turn":
            self._turns_left -= 1
            self._text = text = text + self._turn()
        elif kind in ("one-shot", "large"):
            session = f"once-{chance.getrandbits(64):x}"
            text = f'{{"role":"user","content":"{"x" * (150_000 if kind == "large" else 300)}"}}'
        elif kind == "count":
            path, self._messages_api = "/v1/messages/count_tokens", True
        elif kind == "title":
            lines = "x-claude-code-request-class: auxiliary\r\n"
        elif kind in ("pin", "bad-pin"):
            replica = "e77/3" if kind == "bad-pin" else "e3/1" if model == "ranks" else "e1/0"
            lines = f"X-LMWarden-Replica: {replica}\r\n"
        elif kind == "engine-error":
            words.append("status=400")
        elif kind == "leave":
            words.append(f"pause={chance.randrange(100, 400)}")
        elif kind == "leave-midway":
            words += ["chunks=50", "pause=15"]
        rush = kind == "turn" and model == "ranks" and self._day.hour() in RUSH_HOURS
        if rush:
            words.append(f"pause={RUSH_PAUSE_MS}")
            if chance.random() < RUSH_LOST_RATIO:
                words.append("cold")
        if self._streamed:
            words.append("stream")
            if kind != "leave-midway":
                words.append(f"chunks={chance.randrange(2, 9)}")
                if not rush and chance.random() < 0.06:
                    words.append(f"pause={chance.randrange(1, 12)}")
        if kind != "anonymous" and session:
            lines += (
                f"X-Claude-Code-Session-Id: {session}\r\n" if self._messages_api else f"X-Session-Id: {session}\r\n"
            )
        body = b'{"model":' if kind == "no-json" else self._body(model, text)
        lines += f"X-Soak: {','.join(words)}\r\n"
        return self._head(b"POST", path, key, lines, len(body)) + body

    def _head(self, method: bytes, path: str, key: str, lines: str, length: int) -> bytes:
        credential = f"Authorization: Bearer {key}\r\n" if key else ""
        framing = f"Content-Type: application/json\r\nContent-Length: {length}\r\n" if method == b"POST" else ""
        return b"%b %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % (
            method, path.encode(), f"{credential}{framing}{lines}".encode(),
        )  # fmt: skip

    def _body(self, model: str, messages: str) -> bytes:
        stream = "true" if self._streamed else "false"
        common = f'"model":"{model}","max_tokens":256,"stream":{stream},"tools":[{{"name":"run"}}]'
        if self._messages_api:
            return f'{{{common},"system":"{_SYSTEM}","messages":[{messages}]}}'.encode()
        return f'{{{common},"messages":[{{"role":"system","content":"{_SYSTEM}"}},{messages}]}}'.encode()

    def _new_conversation(self) -> None:
        chance, plan = self._chance, self._day.plan
        self._day.report.conversations += 1
        self._session = f"{chance.getrandbits(96):024x}"
        self._turns_left = 1 + int(chance.expovariate(1 / 10))
        self._key = chance.choice(plan.keys)
        self._messages_api = chance.random() < 0.5
        self._text = f'{{"role":"user","content":"Task {self._session}: {"do this " * chance.randrange(5, 60)}"}}'

    def _turn(self) -> str:
        return (
            f',{{"role":"assistant","content":"done"}},{{"role":"user","content":"{"and that " * 12}{self._number}"}}'
        )

    # -- its connection -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what waits."""
        self._transport = cast(asyncio.Transport, transport)
        self._day.report.connections += 1
        unsent, self._unsent = self._unsent, b""
        self._write(self._transport, unsent)

    def connection_lost(self, exc: Exception | None) -> None:
        """The warden closed, or this agent left."""
        self._transport = None
        if self._kind is not None:
            self._day.report.cut += 1
            self._day.trouble(self._kind, "cut")
            self._done()

    def data_received(self, data: bytes) -> None:
        """An answer, or a part of one."""
        if self._kind is None:
            self._wrong("bytes that nobody asked for")
            return
        self._in = self._in + data if self._in else data
        if self._kind == "leave-midway" and b"text" in self._in:
            self._leave(self._number)
            return
        at = self._in.find(b"\r\n\r\n")
        if at < 0:
            return
        length_at = self._in.find(b"ontent-Length: ", 0, at)
        if length_at >= 0:
            length = int(self._in[length_at + 15 : self._in.index(b"\r\n", length_at)])
            complete = len(self._in) >= at + 4 + length
        else:
            complete = self._in.endswith(b"\r\n0\r\n\r\n")
        if complete:
            self._answered(int(self._in[9:12]), self._in[at + 4 :])

    def _answered(self, status: int, body: bytes) -> None:
        kind, day = self._kind, self._day
        assert kind is not None
        day.statuses[f"{kind} {status}"] += 1
        pause_s = 0.0
        if status >= 500:
            day.report.failed += 1
            day.trouble(kind, f"status {status}")
            pause_s = _AFTER_TROUBLE_S
        elif status != EXPECTED.get(kind, 200):
            self._wrong(f"status {status}")
        elif status == 200 and kind in ROUTED and kind != "count":
            fault = self._fault(body)
            if fault is not None:
                self._wrong(fault)
        closes = b"\r\nConnection: close" in self._in
        self._done(reconnect=closes or self._chance.random() < 0.03, pause_s=pause_s)

    def _fault(self, body: bytes) -> str | None:
        """What is wrong with a good answer."""
        if b'"n%d"' % self._number not in body:
            return "the answer to another request"
        if self._streamed:
            if b'"choices":[]' in body:
                return "usage that nobody asked for"
            if not body.endswith(b"0\r\n\r\n") or (b"message_stop" if self._messages_api else b"[DONE]") not in body:
                return "a stream without its end"
        return None

    def _wrong(self, what: str) -> None:
        self._day.report.wrong += 1
        self._day.trouble(str(self._kind), what)

    def give_up_if_lost(self, now: float) -> None:
        """Nobody answered."""
        if self._kind is not None and now - self._asked_at > _ANSWER_LIMIT_S:
            self._wrong("no answer")
            self._done(reconnect=True)

    def _leave(self, number: int) -> None:
        """Give the answer up."""
        if self._kind is None or self._number != number:
            return
        self._day.report.left += 1
        self._done(reconnect=True)

    def _done(self, *, reconnect: bool = False, pause_s: float = 0.0) -> None:
        self._kind = None
        if reconnect and self._transport is not None:
            self._transport.close()
            self._transport = None
        loop = asyncio.get_running_loop()
        if pause_s:
            loop.call_later(pause_s, self.next)
        else:
            loop.call_soon(self.next)

    def _send(self, request: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._write(self._transport, request)
        else:
            self._unsent = request
            self._opening = asyncio.ensure_future(self._connect())

    def _write(self, transport: asyncio.Transport, request: bytes) -> None:
        transport.write(request)
        if self._kind == "leave":
            asyncio.get_running_loop().call_later(0.02, self._leave, self._number)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        connection = _Wire(self)
        try:
            await loop.create_connection(lambda: connection, "127.0.0.1", self._day.plan.port)
        except OSError as error:
            self._wrong(f"no connection: {error.strerror}")
            await asyncio.sleep(0.1)
            self._done()


class _Wire(asyncio.Protocol):
    """One connection of an agent, which ignores those that it gave up."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._agent.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._agent._transport is self._transport:
            self._agent.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._agent._transport is self._transport:
            self._agent.data_received(data)


async def play(plan: Plan) -> Report:
    """Play the day and tell how it goes."""
    day = Day(plan)
    # One in four asks for the last model, whose waiting room is full in the rush hours, and must not hold up the day.
    day.agents = [Agent(day, plan.models[-1] if n % 4 == 3 else plan.models[0]) for n in range(plan.agents)]
    day.wanted = len(day.agents)
    for agent in list(day.agents):
        agent.next()
    while not day.over.is_set():
        day.look_at_the_clock()
        for agent in list(day.agents):
            agent.give_up_if_lost(time.monotonic())
        if day.report.sent >= plan.requests or (plan.seconds is not None and day.hour() == 23):
            day.wanted = len(day.agents)  # so that those who are parked see the end of the day
            day.look_at_the_clock()
        print(f'{{"ended": false, "sent": {day.report.sent}, "hour": {day.hour()}}}', flush=True)
        try:
            await asyncio.wait_for(day.over.wait(), 1.0)
        except TimeoutError:
            pass
    day.report.seconds = time.monotonic() - day.began_at
    day.report.by_kind, day.report.statuses = dict(day.kinds), dict(day.statuses)
    return day.report


async def main() -> None:
    """Read the plan, play it, print the report."""
    report = await play(msgspec.json.decode(sys.stdin.buffer.read(), type=Plan))
    print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
