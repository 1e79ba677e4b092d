"""What is wrong with a running installation, in plain words, and what to do about it.

Each check looks at a snapshot and gives one line: ok, a warning (it works, but worse than it could) or a fault (it
does not work as promised). ``GET /api/checks`` answers with all of them, for ``lmwarden doctor``; the model's page
shows those that are not ok as its warnings. The codes are public: scripts may look for them.

What is not known gives no line: silence is better than a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from lmwarden.access.keys import KeyStore
from lmwarden.access.secrets import StorageError
from lmwarden.config import ClientConfig, is_loopback
from lmwarden.console.check_client import check_client
from lmwarden.console.check_engines import check_engines
from lmwarden.console.check_same import check_same
from lmwarden.console.check_work import check_work
from lmwarden.console.findings import Check, Level, Param, fault, ok, warning
from lmwarden.control import ModelSnapshot, Snapshot

STUCK_S = 30.0
"""A snapshot is taken once a second; one so old means that the data loop does not run."""


class ModelWarning(msgspec.Struct, frozen=True, kw_only=True):
    """A check that is not ok, on its model's page."""

    code: str
    level: Level
    text: str
    what_to_do: str | None
    params: Mapping[str, Param] = {}
    """As ``Check.params``."""


def check_all(
    snapshot: Snapshot,
    now: float,
    console_host: str | None,
    *,
    has_password: bool = False,
    client: ClientConfig | None = None,
    keys: KeyStore | None = None,
) -> list[Check]:
    """Everything.

    Args:
        snapshot: the latest.
        now: Unix seconds.
        console_host: what the console is bound to; None: not known.
        has_password: the console asks for one.
        client: ``[client]``; None: not known.
        keys: the data folder's; None: not known.
    """
    checks = [*_data_loop(snapshot, now), *_ledger(snapshot), *_console(console_host, has_password)]
    checks += check_client(client) if client is not None else ()
    checks += _keys(keys, required=client is not None and client.key_required) if keys is not None else ()
    checks += _orphans(snapshot)
    for model in snapshot.models:
        checks += check_model(model)
    return checks


def check_model(model: ModelSnapshot) -> list[Check]:
    """One model with its engines."""
    checks = (*check_engines(model), *check_same(model), *check_work(model))
    return [msgspec.structs.replace(check, model=model.name) for check in checks]


def warnings_of(model: ModelSnapshot) -> list[ModelWarning]:
    """What its page warns of, faults first."""
    found = [check for check in check_model(model) if check.level is not Level.OK]
    found.sort(key=lambda check: check.level is not Level.FAULT)
    return [
        ModelWarning(
            code=check.code, level=check.level, text=check.text, what_to_do=check.what_to_do, params=check.params
        )
        for check in found
    ]


def _data_loop(snapshot: Snapshot, now: float) -> Iterator[Check]:
    age_s = now - snapshot.taken_at
    if age_s > STUCK_S:
        yield fault(
            "data_loop",
            f"the part that relays requests has not moved for {age_s:.0f} s",
            "restart the warden; under systemd its watchdog does. Its log says where it stood",
            age_s=round(age_s),
        )
    else:
        yield ok(
            "data_loop",
            f"requests are relayed; counting since {snapshot.counting_since}",
            since=snapshot.counting_since,
        )


def _ledger(snapshot: Snapshot) -> Iterator[Check]:
    if snapshot.ledger_trouble is not None:
        yield warning(
            "ledger",
            f"history and homes: {snapshot.ledger_trouble.rstrip('.')}",
            "if the disk of the data folder is full, make room on it, and what waits is written by itself; for all else"
            " see docs/operations.md, When the disk is full or the file is damaged. Requests are served meanwhile",
            trouble=snapshot.ledger_trouble.rstrip("."),
        )
    elif snapshot.ledger_dropped_rows:
        yield warning(
            "ledger_dropped",
            f"{snapshot.ledger_dropped_rows} rows of the history were lost because the disk could not follow",
            "give the data folder a faster disk, or raise storage.max_queued_rows",
            rows=snapshot.ledger_dropped_rows,
        )
    else:
        yield ok("ledger", "history and homes are written")


def _keys(keys: KeyStore, *, required: bool) -> Iterator[Check]:
    try:
        known = keys.digests()
    except StorageError as error:
        trouble = str(error)
        yield fault(
            "keys_unreadable",
            f"new API keys and revocations do not hold: {trouble}",
            "give the file to the user that runs the warden (chown), or put a sound one there; until then the keys of"
            " before stay good, and after a restart none is",
            trouble=trouble,
        )
        return
    if required and not known:
        yield warning(
            "no_keys",
            "the client port asks for a key and there is none, so every request is refused",
            "make one: lmwarden keys create NAME, on the warden's data folder, or on the console's page Keys",
        )


def _orphans(snapshot: Snapshot) -> Iterator[Check]:
    for engine, pids in snapshot.orphans.items():
        numbers = ", ".join(map(str, pids))
        yield warning(
            "orphan",
            f"{engine} is not configured any more, and its processes cannot be ended: {numbers}",
            "they may hold GPUs: look at them with ps and nvidia-smi",
            engine=engine,
            pids=numbers,
        )


def _console(host: str | None, has_password: bool) -> Iterator[Check]:
    if host is None:
        return
    if has_password:
        yield ok("console_open", "the console asks for its password", guard="password")
    elif is_loopback(host):
        yield ok("console_open", "the console is reachable from this machine only", guard="this_machine")
    else:
        yield warning(
            "console_open",
            f"the console listens on {host}: whoever reaches the port can read it, without sign-in",
            'set console.password_file; or console.host = "127.0.0.1", and reach it through a tunnel',
            host=host,
        )
