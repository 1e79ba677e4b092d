"""Ports that are held for engines."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from lmwarden.engine.port_hold import PortHold, foreign_listener, listens_alone

HERE = os.getpid()


def server(port: int, *options: int) -> socket.socket:
    listener = socket.socket()
    try:
        for option in options:
            listener.setsockopt(socket.SOL_SOCKET, option, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


@pytest.mark.parametrize(
    "options", [(socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)]
)
def test_an_engine_listens_beside_the_hold_also_a_second_time(options: tuple[int, ...]) -> None:
    hold = PortHold()
    try:
        for _ in range(2):
            with server(hold.port, *options) as engine, socket.create_connection(("127.0.0.1", hold.port)) as client:
                taken, _ = engine.accept()
                with taken:
                    assert client.getpeername() == engine.getsockname()
                    assert listens_alone(hold.port, [HERE])
            assert not listens_alone(hold.port, [HERE])
    finally:
        hold.close()
        hold.close()


def test_a_held_port_is_refused_to_others() -> None:
    hold = PortHold()
    with pytest.raises(OSError, match="in use"):
        server(hold.port).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", hold.port))
    hold.close()
    server(hold.port).close()


def test_a_port_that_is_taken_cannot_be_held() -> None:
    with server(0, socket.SO_REUSEADDR) as other, pytest.raises(OSError, match="in use"):
        PortHold(other.getsockname()[1])


def test_many_holds_have_different_ports() -> None:
    holds = [PortHold() for _ in range(200)]
    try:
        assert len({hold.port for hold in holds}) == 200
    finally:
        for hold in holds:
            hold.close()


def test_who_listens() -> None:
    with server(0) as listener:
        port = listener.getsockname()[1]
        assert listens_alone(port, [1, HERE])
        assert foreign_listener(port, [HERE]) is None
        assert not listens_alone(port, [])
        assert (foreign_listener(port, ()) or "").startswith(f"process {HERE} (")
    assert foreign_listener(port, ()) is None


def test_a_listener_on_all_addresses_counts_and_one_on_another_does_not() -> None:
    with socket.socket() as everywhere, socket.socket() as elsewhere:
        everywhere.bind(("0.0.0.0", 0))
        everywhere.listen()
        assert listens_alone(everywhere.getsockname()[1], [HERE])
        hold = PortHold()  # or somebody else may come to listen on this very port
        elsewhere.bind(("127.0.0.2", hold.port))
        elsewhere.listen()
        assert not listens_alone(hold.port, [HERE])
        assert foreign_listener(hold.port, ()) is None
        hold.close()
    if not socket.has_dualstack_ipv6():  # of the machine; what Python was built with says nothing of it
        return
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as six:
        assert listens_alone(six.getsockname()[1], [HERE])


def test_two_listeners_of_which_one_is_a_stranger_s() -> None:
    """The kernel would share the connections out between them."""
    reuse = socket.SO_REUSEPORT
    with server(0, reuse) as engine:
        port = engine.getsockname()[1]
        heard, said = os.pipe()
        pid = os.fork()
        if pid == 0:
            own = server(port, reuse)
            engine.close()
            os.write(said, b"it listens")
            signal.pause()
            own.close()
            os._exit(0)
        os.close(said)  # so that reading ends with it
        try:
            assert os.read(heard, 1)
            assert not listens_alone(port, [HERE])
            assert (foreign_listener(port, [HERE]) or "").startswith(f"process {pid} ")
            assert listens_alone(port, [HERE, pid])
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(heard)


def test_where_strangers_cannot_be_seen_it_is_asked_whether_one_of_ours_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmwarden.engine.port_hold.sys.platform", "darwin")
    with server(0) as engine, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = engine.getsockname()[1]
        assert listens_alone(port, [2**30, HERE])
        assert not listens_alone(port, [2**30])
        assert not listens_alone(bound.getsockname()[1], [HERE])
        assert foreign_listener(port, []) is None
