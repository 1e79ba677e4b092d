"""Sessions of the console: how they begin, what they need, how each of them ends."""

from __future__ import annotations

import pytest
from tests.access.clock import Now

from lmwarden.access.sessions import IDLE_S, LIFE_S, MOST_SESSIONS, Sessions


@pytest.fixture
def now() -> Now:
    return Now(0.0)


@pytest.fixture
def sessions(now: Now) -> Sessions:
    return Sessions(now)


def test_only_the_token_opens(sessions: Sessions) -> None:
    token, other = sessions.begin(), sessions.begin()
    assert token != other
    assert sessions.use(token)
    for wrong in ("", "x", token[:-1], token + "x", "\udcff", "x" * 10_000):
        assert not sessions.use(wrong)


def test_tokens_are_kept_as_hashes(sessions: Sessions) -> None:
    token = sessions.begin()
    assert token.encode() not in b"".join(sessions._open)


def test_it_ends_without_use_and_after_its_life(sessions: Sessions, now: Now) -> None:
    idle = sessions.begin()
    now.s += IDLE_S + 1
    assert not sessions.use(idle)
    used = sessions.begin()
    while now.s < LIFE_S + IDLE_S:
        assert sessions.use(used)
        now.s += IDLE_S / 2
    now.s += IDLE_S
    assert not sessions.use(used)
    assert len(sessions) == 0


def test_it_ends_by_leaving_and_by_another_password(sessions: Sessions) -> None:
    gone, other = sessions.begin(), sessions.begin()
    sessions.end(gone)
    sessions.end("never was")
    assert not sessions.use(gone)
    assert sessions.use(other)
    sessions.end_all()
    assert not sessions.use(other)


def test_the_one_used_least_recently_gives_way(sessions: Sessions) -> None:
    tokens = [sessions.begin() for _ in range(MOST_SESSIONS)]
    assert sessions.use(tokens[0])
    sessions.begin()
    assert len(sessions) == MOST_SESSIONS
    assert sessions.use(tokens[0])
    assert not sessions.use(tokens[1])


def test_a_change_needs_the_token_of_its_own_session(sessions: Sessions, now: Now) -> None:
    token, other = sessions.begin(), sessions.begin()
    assert sessions.may_change(token, sessions.change_token(token))
    for wrong in ("", token, sessions.change_token(other), Sessions(now).change_token(token), "\udcff"):
        assert not sessions.may_change(token, wrong)


def test_marks_are_ours_only(sessions: Sessions, now: Now) -> None:
    mark = sessions.mark()
    assert sessions.is_mark(mark)
    assert mark != sessions.mark()
    for wrong in ("", ".", mark + "x", mark[:-1], "x" + mark, Sessions(now).mark(), "\udcff.\udcff", "a" * 5000):
        assert not sessions.is_mark(wrong)
    # The proof of a mark opens nothing else.
    assert not sessions.may_change(mark.partition(".")[0], mark.partition(".")[2])


def test_twelve_hours_without_use_and_seven_days_in_any_case(sessions: Sessions, now: Now) -> None:
    """What docs/security.md promises, in figures."""
    token = sessions.begin()
    for _ in range(14):
        now.s += 12 * 3600
        assert sessions.use(token)
    now.s += 1
    assert not sessions.use(token)
    token = sessions.begin()
    now.s += 12 * 3600 + 1
    assert not sessions.use(token)
