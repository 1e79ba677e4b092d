"""HTTP in, HTTP out: the data plane.

One event loop, plain asyncio protocols on both sides. A request's way through the modules: ``client_side`` reads
it, ``request`` judges its head, ``intake`` offers it to the router, ``driver`` carries the decision out,
``exchange`` sends it over ``upstream`` and relays the answer through ``relay`` and ``usage``.
"""

from lmwarden.gateway.counters import TIME_TO_FIRST_BYTE_BOUNDS_S, GatewaySnapshot
from lmwarden.gateway.gateway import Gateway
from lmwarden.gateway.settings import Authenticator, GatewaySettings, RequestLog, ServedModel

__all__ = [
    "TIME_TO_FIRST_BYTE_BOUNDS_S",
    "Authenticator",
    "Gateway",
    "GatewaySettings",
    "GatewaySnapshot",
    "RequestLog",
    "ServedModel",
]
