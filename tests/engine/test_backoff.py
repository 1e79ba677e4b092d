"""Pauses before an engine is started again."""

from __future__ import annotations

from tests.engine.launching import load_launch

from lmwarden.engine.backoff import Backoff


def test_failed_starts_wait_ever_longer_and_end() -> None:
    backoff = Backoff(load_launch())
    assert [backoff.failed_start() for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, None, None]
    backoff.forget()
    assert [backoff.no_start() for _ in range(10)] == [1.0] * 10, "nobody's failure"
    assert backoff.failed_start() == 1.0


def test_becoming_ready_forgives_failed_starts() -> None:
    backoff = Backoff(load_launch())
    for _ in range(4):
        backoff.failed_start()
    backoff.ready()
    assert backoff.failed_starts == 0
    assert backoff.failed_start() == 1.0


def test_crashes_of_a_ready_engine_are_never_given_up() -> None:
    backoff = Backoff(load_launch())
    assert [backoff.crash(1.0) for _ in range(10)] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert backoff.crash(59.9) == 60.0
    assert backoff.crash(60.0) == 0.0
    assert backoff.crash(1.0) == 1.0
    for _ in range(2000):
        backoff.crash(0.0)
    assert backoff.crash(0.0) == 60.0
