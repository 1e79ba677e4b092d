"""Does this console belong to this endpoint?

Arms are switched on a console and measured at an endpoint. If the two are not one warden, the table compares
nothing, and somebody else's routing is switched meanwhile. So before the first switch one small request is sent
through the endpoint, pinned to a replica that the console lists:

* its answer must name a decision: otherwise no warden is there;
* the console's counter of that decision must rise. Other traffic hardly ever moves it, because clients that pin
  are rare, so a busy console of another warden is not taken for this one.
"""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec

from lmwarden.bench.console import Console, RoutingState
from lmwarden.bench.conversation import Api
from lmwarden.bench.errors import BenchError, plain_reason

_REQUEST_LIMIT_S = 60.0
_MOVES_LIMIT_S = 10.0
"""A console shows a new snapshot each second, unless it was configured to look more rarely."""
_MOVES_PERIOD_S = 0.1


async def check_pair(
    url: str, console: Console, before: RoutingState, *, model: str, api: Api, key: str | None
) -> None:
    """Find out before anything is switched.

    Args:
        url: the endpoint.
        console: the console.
        before: its state.
        model: what is measured.
        api: which API to ask.
        key: the endpoint's.

    Raises:
        BenchError: they are not one warden, or one of them does not answer.
    """
    ready = [row.replica for row in before.replicas if row.state == "ready"]
    if not ready:
        raise BenchError(f"--console {console.url}: no replica of {model} is ready there")
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_REQUEST_LIMIT_S)) as http:
        ask = _Question(http, url, model, api, key)
        status, decision, sentence = await ask.send(ready[-1])
        if status == 400 and (await ask.send(None))[0] == 200:
            raise _strangers(url, console, f"which knows no replica {ready[-1]}")
    if status != 200:
        raise BenchError(f"--url {url}: a test request answered {status}: {sentence}")
    if decision is None:
        raise BenchError(
            f"--url {url}: answers name no decision (X-LMWarden-Decision), so no warden is there whose routing could be"
            " switched; --arms as-is measures it as it is"
        )
    loop = asyncio.get_running_loop()
    limit_s = loop.time() + _MOVES_LIMIT_S
    while (await console.state()).decisions.get(decision, 0) <= before.decisions.get(decision, 0):
        if loop.time() > limit_s:
            raise _strangers(url, console, "whose requests it does not count")
        await asyncio.sleep(_MOVES_PERIOD_S)


def _strangers(url: str, console: Console, detail: str) -> BenchError:
    return BenchError(
        f"--console {console.url}: not the console of --url {url}, {detail}; nothing was switched, name the right one"
    )


class _Question:
    """The test request."""

    def __init__(self, http: aiohttp.ClientSession, url: str, model: str, api: Api, key: str | None) -> None:
        self._http = http
        self._where = f"--url {url}"
        self._url = url.rstrip("/") + ("/v1/messages" if api is Api.MESSAGES else "/v1/chat/completions")
        self._body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]}
        self._headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"

    async def send(self, replica: str | None) -> tuple[int, str | None, str]:
        """Return the status, the decision that the answer names, and the beginning of its text.

        Raises:
            BenchError: no answer.
        """
        headers = self._headers | ({} if replica is None else {"X-LMWarden-Replica": replica})
        try:
            async with self._http.post(self._url, data=msgspec.json.encode(self._body), headers=headers) as response:
                text = " ".join((await response.content.read(300)).decode(errors="replace").split())
                return response.status, response.headers.get("X-LMWarden-Decision"), text
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BenchError(f"{self._where}: a test request failed: {plain_reason(error)}") from error
