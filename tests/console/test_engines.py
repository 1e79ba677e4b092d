"""The summary of the pins."""

from __future__ import annotations

import pytest
from tests.console.made_up import CHAT, MESSAGES, engine, pin

from lmwarden.console.engines import pin_state
from lmwarden.types import PinVerdict

OK, OPEN, BAD = PinVerdict.VERIFIED, PinVerdict.UNVERIFIED, PinVerdict.FAILED


@pytest.mark.parametrize(
    ("first", "second", "state", "detail"),
    [
        ((OK, OK), (OK, OK), OK, None),
        ((OK, OK), (OK, OPEN), OPEN, "e1 /v1/messages: unverified"),
        ((OK, BAD), (OPEN, OK), BAD, "e0 /v1/messages: failed"),
        ((BAD, OK), (OK, BAD), BAD, "e0 /v1/chat/completions: failed; e1 /v1/messages: failed"),
    ],
)
def test_the_worst_endpoint_decides(
    first: tuple[PinVerdict, PinVerdict], second: tuple[PinVerdict, PinVerdict], state: PinVerdict, detail: str | None
) -> None:
    engines = [
        engine(f"e{number}", pins={CHAT: pin(chat), MESSAGES: pin(messages)})
        for number, (chat, messages) in enumerate((first, second))
    ]
    found = pin_state(engines)
    assert (found.state, found.detail, len(found.endpoints)) == (state, detail, 4)


def test_nothing_tested_is_not_verified() -> None:
    assert pin_state([engine(pins={})]).state is OPEN
    assert pin_state([]).detail == "not tested yet"
