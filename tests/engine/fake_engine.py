"""A program that behaves like an engine, well or badly. Run as ``fake_engine.py BEHAVIOUR --port N``.

Each of its processes calls in at the address in ``FAKE_ENGINE_ROLL``: it connects, says ``role pid`` and keeps
the connection, which the kernel closes when the process ends. So a test waits for starts and ends, never for time.

Behaviours, joined by ``+``:

* ``crash``: say something on standard error and exit with status 3;
* ``mute``: exit with status 0 at once, without a word;
* ``serve``: listen on the port;
* ``deaf``: ignore SIGTERM;
* ``core``: start a child that ignores SIGTERM, holds the lock file ``FAKE_ENGINE_LOCK`` and exits with 7 if it is held;
* ``stray``: start a child that leaves session and group;
* ``bare``: start a child that leaves them and drops its environment.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
from pathlib import Path


def call_in(role: str, roll: str) -> socket.socket:
    host, port = roll.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)))
    connection.sendall(f"{role} {os.getpid()}\n".encode())
    return connection


def wait_for_ever() -> None:
    while True:
        signal.pause()


def child(role: str, roll: str) -> None:
    if role == "core":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        lock = Path(os.environ["FAKE_ENGINE_LOCK"]).open("a")  # noqa: SIM115 - held until the process ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            role = "refused"
    else:
        os.setsid()
    connection = call_in(role, roll)
    wait_for_ever()
    connection.close()


def start_child(role: str, roll: str) -> None:
    if role == "bare":
        # A new program with nothing of our environment: only its parent tells whose it is.
        pid = os.fork()
        if pid == 0:
            os.execve(sys.executable, [sys.executable, __file__, "child-bare", roll], {})
    elif os.fork() == 0:
        child(role, roll)


def main() -> None:
    behaviour = sys.argv[1]
    if behaviour == "child-bare":
        child("bare", sys.argv[2])
    wishes = behaviour.split("+")
    roll = os.environ["FAKE_ENGINE_ROLL"]
    if "mute" in wishes:
        sys.exit(0)
    sys.stderr.write(f"fake engine: {sys.argv[1:]}\n")
    if "crash" in wishes:
        connection = call_in("main", roll)
        sys.stderr.write("torch.OutOfMemoryError: out of memory, as always\nnanobind: leaked 4 instances!\n")
        sys.exit(3)
    if "deaf" in wishes:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for role in ("core", "stray", "bare"):
        if role in wishes:
            start_child(role, roll)
    listener = socket.socket()
    if "serve" in wishes:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
        listener.listen()
    connection = call_in("main", roll)
    wait_for_ever()
    connection.close()


if __name__ == "__main__":
    main()
