"""What the data loop spends on a body before its request goes on, for the oddest bodies that a caller can send.

    ./run python benchmarks/bodies.py [--mib 4] [--rounds 3] [--only WORD]

Prints milliseconds of processor time per MiB, the least of the rounds: ``fields`` (reading the members), ``who`` (the
opening, and whether the conversation goes on), ``edits`` (the model's name, the usage option, the billing line),
``more`` (the response that is continued, the truth of ``stream``), all of these together, and beside them what
``msgspec`` takes to make objects of the same bytes, halves of characters aside. Claim: at most 15 ms per MiB each,
whatever the body: there is no Python in proportion to it, and 64 MiB may come.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import msgspec

from lmwarden.gateway.billing_line import without_billing_line
from lmwarden.gateway.responses import continued_response
from lmwarden.gateway.splice import CannotSpliceError, include_usage, is_true, replace
from lmwarden.routing.fields import RequestFields, decode_fields, readable
from lmwarden.routing.opening import is_resumed, opening

_QUESTION = b'"messages":[{"role":"user","content":"x"}]}'
_IN_A_TEXT = (b'{"model":"alias","messages":[{"role":"user","content":"', b'"}]}')
_IN_A_TEXT_WITH_A_HALF = (b'{"model":"alias","messages":[{"role":"user","content":"\\ud83d ', b'"}]}')
_IN_THE_LIST = (b'{"model":"alias","messages":[', b'{"role":"user","content":"x"}]}')
_IN_THE_LIST_WITH_A_HALF = (b'{"model":"alias","messages":["\\ud83d",', b'{"role":"user","content":"x"}]}')
_IN_THE_TOOLS = (b'{"model":"alias","tools":[', b"0]," + _QUESTION)
_IN_THE_SYSTEM_BLOCKS = (b'{"model":"alias","system":[', b"0]," + _QUESTION)
_IN_THE_OPTIONS = (b'{"model":"alias","stream":true,"stream_options":{', b'"a":0},' + _QUESTION)

KINDS: dict[str, tuple[tuple[bytes, bytes], bytes]] = {
    "words": (_IN_A_TEXT, b"some words, \\n"),
    "words and half a character": (_IN_A_TEXT_WITH_A_HALF, b"some words, \\n"),
    "lists and half a character": (_IN_THE_LIST_WITH_A_HALF, b"[],"),
    "objects and half a character": (_IN_THE_LIST_WITH_A_HALF, b'{"a":1},'),
    "halves of characters": (_IN_A_TEXT, b"a\\udc80"),
    "emoji and half of one": (_IN_A_TEXT_WITH_A_HALF, b"\\ud83d\\ude00"),
    "backslashes and half a character": (_IN_A_TEXT_WITH_A_HALF, b"\\\\"),
    "blanks behind the brace": ((b"{", b'"model":"alias","stream":true,' + _QUESTION), b" "),
    "blanks behind the key": ((b'{"model"', b':"alias",' + _QUESTION), b" "),
    "the model's key as a text": (_IN_THE_LIST, b'"model",'),
    "the model's key": (_IN_THE_LIST, b'{"model":1},'),
    "the model": (_IN_THE_LIST, b'{"model":"alias"},'),
    "keys": ((b"{", b'"model":"alias",' + _QUESTION), b'"a":1,'),
    "billing lines": ((b'{"model":"alias","system":"', b'",' + _QUESTION), b"x-anthropic-\\n"),
    "blocks with a billing line": (_IN_THE_SYSTEM_BLOCKS, b'{"text":"x-anthropic-a: b\\nT","c":"y"},'),
    "system messages": (_IN_THE_LIST, b'{"role":"system","content":"a"},'),
    "system messages of blocks": (_IN_THE_LIST, b'{"role":"system","content":[%b0]},' % (b"{}," * 900)),
    "messages of a preamble": (_IN_THE_LIST, b'{"role":"user","content":"<INSTRUCTIONS></INSTRUCTIONS>"},'),
    "preambles": (_IN_A_TEXT, b"<INSTRUCTIONS></INSTRUCTIONS>"),
    "numbers": (_IN_THE_LIST, b"1,"),
    "blocks": ((b'{"model":"alias","messages":[{"role":"user","content":[', b"0]}]}"), b"{},"),
    "marks": (_IN_THE_TOOLS, b'{"cache_control":{}},'),
    "blanks before a mark": ((b'{"model":"alias","tools":[{"a":1,', b'"cache_control":null}],' + _QUESTION), b" "),
    "options": (_IN_THE_OPTIONS, b'"abcdefg":1,'),
    "a stream of lists": ((b'{"model":"alias","stream":[', b"0]," + _QUESTION), b"[],"),
}


def body_of(kind: str, size_bytes: int) -> bytes:
    """A body of about that size."""
    (before, after), unit = KINDS[kind]
    return before + unit * (size_bytes // len(unit)) + after


def milliseconds(work: Callable[[], object], rounds: int) -> float:
    """The least of the rounds, which leaves out what the machine does besides."""
    least_s = float("inf")
    for _ in range(rounds):
        began = time.thread_time()
        try:
            work()
        except CannotSpliceError:
            pass  # the caller is told, which is an end as well
        least_s = min(least_s, time.thread_time() - began)
    return least_s * 1e3


def steps_with(body: bytes, fields: RequestFields) -> dict[str, list[Callable[[], object]]]:
    """What is done with a body, by column."""
    return {
        "fields": [lambda: decode_fields(body)],
        "who": [lambda: opening(fields, secret=b"s", model="m"), lambda: is_resumed(fields)],
        "edits": [
            lambda: include_usage(body, bytes(fields.stream_options)),
            lambda: replace(body, "model", bytes(fields.model), b'"m"'),
            lambda: without_billing_line(body, fields),
        ],
        "more": [lambda: continued_response(fields), lambda: is_true(bytes(fields.stream))],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--mib", type=float, default=4.0)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--only", default="", help="kinds with this in their names")
    options = arguments.parse_args()

    print(f"{'ms per MiB':34} {'fields':>8} {'who':>8} {'edits':>8} {'more':>8} {'all':>8} {'msgspec':>9}")
    for kind in KINDS:
        if options.only not in kind:
            continue
        body = body_of(kind, int(options.mib * 1024 * 1024))
        mib = len(body) / (1024 * 1024)
        columns = [
            sum(milliseconds(step, options.rounds) for step in steps) / mib
            for steps in steps_with(body, decode_fields(body)).values()
        ]
        objects = milliseconds(partial(msgspec.json.decode, readable(body)), 1) / mib
        print(f"{kind:34} " + " ".join(f"{column:8.2f}" for column in (*columns, sum(columns))) + f" {objects:9.2f}")


if __name__ == "__main__":
    main()
