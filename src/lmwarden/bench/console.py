"""The load tester's view of a warden's console: its routing settings and its replicas.

The console's answer names for each replica the engine's own ``running``; that is polled for *replicas
busy*. A password is sent only to a console that asks for one.
"""

from __future__ import annotations

import base64
from types import TracebackType
from urllib.parse import quote

import aiohttp
import msgspec

from lmwarden.bench.arms import console_patch
from lmwarden.bench.errors import BenchError, plain_reason
from lmwarden.bench.results import Balancer

_TIMEOUT_S = 10.0
_USER = "lmwarden"
"""A console has one password and no users; HTTP's basic sign-in wants a name."""


class ReplicaRow(msgspec.Struct, frozen=True):
    """One replica in the console's answer; only what is used here."""

    replica: str
    running: int | None = None
    """By the engine's last scrape, which a dead engine leaves behind."""
    state: str = "ready"


class Admission(msgspec.Struct, frozen=True):
    """The waiting room in the console's answer; only what is used here."""

    mode: str = "off"
    engaged: bool = False
    why_code: str = "off"
    """Why it is engaged, or is not."""
    gap_s: float | None = None
    """A quarter of the pauses between two turns exceeds it."""
    demand_ratio: float | None = None
    """Context of the conversations in use over what the replicas keep."""


class RoutingState(msgspec.Struct, frozen=True):
    """``GET /api/models/{name}/routing``; only what is used here."""

    affinity: bool
    in_flight: int
    replicas: list[ReplicaRow]
    placement: str = "least-loaded"
    admission: Admission = Admission()
    decisions: dict[str, int] = {}
    """Requests by their final decision, since the warden's start."""

    def balancer(self) -> Balancer:
        """Who balances while affinity is off: the engine where there is only one, else an imitation."""
        engines = {row.replica.rpartition("/")[0] for row in self.replicas}
        return "engine" if len(engines) <= 1 else "emulated"

    def busy(self) -> int | None:
        """Replicas with a request running by the engine's own count; None if one does not report it."""
        running = [0 if row.state == "down" else row.running for row in self.replicas]
        if not running or None in running:
            return None
        return sum(count is not None and count > 0 for count in running)


class Console:
    """Reads and switches one model's routing; an async context manager.

    ``url`` None: there is no console, and nothing is switched.
    """

    def __init__(self, url: str | None, model: str, *, password: str | None = None) -> None:
        self.url = url
        self._password = password
        self._auth: dict[str, str] = {}
        self._model = model
        self._routing_url = f"{url.rstrip('/')}/api/models/{quote(model)}/routing" if url else None
        self._http: aiohttp.ClientSession | None = None

    @property
    def password_unused(self) -> bool:
        """Whether a password was given and nobody asked for it."""
        return self._password is not None and not self._auth

    @property
    def known(self) -> bool:
        """Whether there is a console."""
        return self._routing_url is not None

    async def __aenter__(self) -> Console:
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def state(self) -> RoutingState:
        """Read the routing's state.

        Raises:
            BenchError: the console does not answer, or not in this form.
        """
        return await self._routing("GET", None)

    async def apply(self, arm: str) -> None:
        """Switch to an arm.

        Raises:
            BenchError: the console does not answer, or refuses.
        """
        patch = console_patch(arm)
        if patch:
            await self._routing("PATCH", patch)

    async def restore(self, before: RoutingState) -> None:
        """Set back what ``apply`` may have changed.

        Raises:
            BenchError: the console does not answer, or refuses.
        """
        settings: dict[str, bool | str] = {"affinity": before.affinity, "placement": before.placement}
        await self._routing("PATCH", settings | {"admission": before.admission.mode})

    async def _routing(self, method: str, patch: dict[str, bool | str] | None) -> RoutingState:
        if self._http is None or self._routing_url is None:
            raise BenchError("the console's address is unknown: give --console URL")
        where = f"--console {self.url}"
        try:
            async with self._http.request(method, self._routing_url, json=patch, headers=self._auth) as response:
                answer = await response.read()
                if response.status == 401 and self.password_unused:
                    self._auth = _basic(self._password or "")
                    return await self._routing(method, patch)
                if response.status == 401:
                    said = "refuses the password" if self._auth else "asks for a password: --console-password-file"
                    raise BenchError(f"{where}: {said}")
                if response.status == 404:
                    raise BenchError(f"{where}: serves no model {self._model}: {_sentence(answer)}")
                if response.status != 200:
                    raise BenchError(f"{where}: {method} answered {response.status}: {_sentence(answer)}")
                return msgspec.json.decode(answer, type=RoutingState)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BenchError(
                f"{where}: {plain_reason(error)}; --console names the warden's console, --arms as-is needs none"
            ) from error
        except msgspec.DecodeError as error:
            raise BenchError(f"{where}: the answer has another form: {error}") from error


def _basic(password: str) -> dict[str, str]:
    """HTTP's basic sign-in."""
    return {"Authorization": "Basic " + base64.b64encode(f"{_USER}:{password}".encode()).decode()}


def _sentence(answer: bytes) -> str:
    """A server's error text, short and on one line."""
    return " ".join(answer[:300].decode(errors="replace").split())
