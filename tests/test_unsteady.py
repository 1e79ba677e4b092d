"""What disturbs the tests takes nothing from them but time."""

from __future__ import annotations

import random
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from tests import unsteady
from tests.waiting import PATIENCE_S


def test_a_socket_is_late_and_loses_nothing() -> None:
    looks = 0
    select = unsteady.late(selectors.DefaultSelector.select, random.Random(1))
    ours, theirs = socket.socketpair()
    with selectors.DefaultSelector() as selector, ours, theirs:
        selector.register(ours, selectors.EVENT_READ, "ours")
        for number in range(200):
            theirs.send(bytes([number]))
            told: unsteady.Events = []
            while not told:
                told, looks = select(selector, PATIENCE_S), looks + 1
            assert [(key.data, mask) for key, mask in told] == [("ours", selectors.EVENT_READ)]
            assert ours.recv(2) == bytes([number])
        assert select(selector, 0.0) == []
    assert looks > 200


@pytest.fixture
def child() -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield psutil.Process(process.pid)
        process.kill()


def is_stopped(process: psutil.Process) -> bool:
    """A stop is no sooner there than the process would have run."""
    patient_until = time.monotonic() + PATIENCE_S
    while process.status() != psutil.STATUS_STOPPED and time.monotonic() < patient_until:
        pass
    return process.status() == psutil.STATUS_STOPPED


def test_a_process_stands_still_and_goes_on(child: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    stood: list[bool] = []
    monkeypatch.setattr(time, "sleep", lambda pause_s: stood.append(is_stopped(child)))
    unsteady.disturb([child], random.Random(1))
    assert stood == [True]
    child.send_signal(signal.SIGKILL)
    assert child.wait(PATIENCE_S) == -signal.SIGKILL
    unsteady.disturb([child], random.Random(1))  # gone


def test_one_that_somebody_else_stopped_is_left_alone(child: psutil.Process) -> None:
    child.suspend()
    assert is_stopped(child)
    unsteady.disturb([child], random.Random(1))
    assert child.status() == psutil.STATUS_STOPPED
