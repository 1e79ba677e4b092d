"""The ports of this process and their TLS files: opened, or one line that says which setting to change.

A host that does not resolve is the host's fault, a port in use is the port's; each is blamed where the user wrote
it (``config_errors.Origin``).
"""

from __future__ import annotations

import errno
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

from lmwarden.config import Config, ConfigError


class PortError(ConfigError):
    """A port cannot be bound."""


class Port(NamedTuple):
    """Where to listen, and where a person said so."""

    host: str
    port: int
    host_place: str
    """A flag, or a file and its key."""
    port_place: str

    def error(self, error: OSError) -> PortError:
        """Return what went wrong in one line that blames the host or the port, whichever it is."""
        if isinstance(error, socket.gaierror):
            return PortError(f"{self.host_place}: {self.host!r} cannot be resolved to an address of this machine")
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return PortError(f"{self.host_place}: {self.host} is not an address of this machine")
        reason = error.strerror or error
        return PortError(f"{self.port_place}: cannot listen on {self.host} port {self.port}: {reason}; choose another")

    def listen(self) -> socket.socket:
        """A listening socket.

        Raises:
            PortError: there is none to be had.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            family, kind, protocol, _, address = found[0]
            listener = socket.socket(family, kind, protocol)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen(128)
            except OSError:
                listener.close()
                raise
        except OSError as error:
            raise self.error(error) from None
        listener.setblocking(False)
        return listener


def client_port(config: Config) -> Port:
    """Return where agents are served."""
    client, place = config.client, config.origin.place
    host_place = place("client", "host", default="--host")
    return Port(client.host, client.port, host_place, place("client", "port", default="--port"))


def console_port(config: Config) -> Port:
    """Return where operators are served."""
    console, place = config.console, config.origin.place
    port_place = place("console", "port", default="--console-port")
    return Port(console.host, console.port, place("console", "host"), port_place)


def listen_for_console(config: Config) -> socket.socket:
    """Open the console's socket. The client port, which is opened last, is tried too.

    Raises:
        PortError: one of them cannot be had.
    """
    client, console = client_port(config), console_port(config)
    with client.listen():
        try:
            return console.listen()
        except PortError:
            if console.port != client.port or not console.port:
                raise
            places = f"{client.port_place}, {console.port_place}"
            raise PortError(f"{places}: both are port {client.port}; give one of them another number") from None


def tls_context(config: Config) -> ssl.SSLContext | None:
    """Return what the client port shows to TLS clients; None: it speaks plain HTTP.

    Raises:
        ConfigError: a file cannot be used; the text names it.
    """
    client, origin = config.client, config.origin
    if client.tls_cert is None or client.tls_key is None:
        return None
    paths = [Path(text).expanduser().absolute() for text in (client.tls_cert, client.tls_key)]
    places = [origin.place("client", key) for key in ("tls_cert", "tls_key")]
    for path, place in zip(paths, places, strict=True):
        try:
            path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{place}: {path}: {error.strerror}") from None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # A password of our own, because OpenSSL would ask the terminal for one.
        context.load_cert_chain(paths[0], paths[1], password="")
    except (OSError, ValueError):
        raise ConfigError(
            f"{places[0]}: {paths[0]} and {paths[1]} (tls_key) are not a certificate and its key in PEM form,"
            " without a password"
        ) from None
    return context
