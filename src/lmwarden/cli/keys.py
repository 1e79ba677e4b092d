"""``lmwarden keys create|list|revoke``.

The keys belong to one data folder, and the warden on it reads what is written here. So root, who is nobody's warden,
acts as the user whose warden made the folder's secret; and a folder that no warden has used yet is said to be one,
because the usual cause is that the warden's is another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

from lmwarden.cli.serve import default_file

if TYPE_CHECKING:
    from lmwarden.access.keys import KeyStore

DataDir = Annotated[str | None, cyclopts.Parameter(help="The data folder of the warden.")]
ConfigFile = Annotated[
    Path | None,
    cyclopts.Parameter(
        help="Configuration file that names the data folder. Default: lmwarden.toml here, if it is there."
    ),
]


def register(app: cyclopts.App) -> None:
    """Add the command."""
    keys = cyclopts.App(name="keys", help="Make, list and revoke API keys. A running warden follows.")
    keys.command(create)
    keys.command(list_keys, name="list")
    keys.command(revoke)
    app.command(keys)


def create(name: str, /, *, models: str | None = None, data_dir: DataDir = None, config: ConfigFile = None) -> None:
    """Make a key and print it. It is shown this once; only a hash is kept.

    Parameters
    ----------
    name: str
        What to call it, e.g. the person or the machine that will use it.
    models: str
        Names of the served models that it may use, separated by commas, aliases included with their model; without
        this flag all.
    """
    scope = None if models is None else [part.strip() for part in models.split(",")]
    with _store(data_dir, config, makes=True) as store:
        print(store.create(name, scope))
    served = _served(_file(data_dir, config)) if scope else None
    if served and not set(scope or ()) <= set(served):
        print(f"lmwarden: keys: note: the file serves {', '.join(served)} (an alias is no name)", file=sys.stderr)


def list_keys(*, data_dir: DataDir = None, config: ConfigFile = None) -> None:
    """List the names of the keys, when they were made, and the models that each may use."""
    with _store(data_dir, config) as store:
        keys = store.stored()
    for key in keys:
        print(f"{key.name}\t{key.created}\t{'all models' if key.models is None else ', '.join(key.models)}")


def revoke(name: str, /, *, data_dir: DataDir = None, config: ConfigFile = None) -> None:
    """Delete a key; a running warden refuses it within a second.

    Parameters
    ----------
    name: str
        The key's name.
    """
    with _store(data_dir, config) as store:
        store.revoke(name)


@contextmanager
def _store(data_dir: str | None, config: Path | None, *, makes: bool = False) -> Iterator[KeyStore]:
    """The keys of a data folder; only who ``makes`` one makes a folder that is not there."""
    from lmwarden.access.keys import KeyStore
    from lmwarden.access.secrets import is_used, load_secrets, owner_of
    from lmwarden.config import Flag, load_storage

    flags = [] if data_dir is None else [Flag("--data-dir", ("storage", "dir"), data_dir)]
    storage, origin = load_storage(_file(data_dir, config), flags)
    folder, place = storage.path.absolute(), origin.place("storage", "dir", default="--data-dir")
    with _acting_as(owner_of(folder, place)):
        used = is_used(folder)
        yield KeyStore(folder, load_secrets(folder, place).keys if makes or used else b"")
    if not used:
        done = f"made a new data folder, {folder}: only" if makes else f"no warden has used {folder} yet: only"
        print(f"lmwarden: keys: {done} a warden on this folder (--data-dir) knows its keys", file=sys.stderr)


def _file(data_dir: str | None, config: Path | None) -> Path | None:
    """The configuration file: where none is named, the one that a warden reads which is started here."""
    return default_file() if config is None and data_dir is None else config


def _served(config: Path | None) -> list[str] | None:
    """Names of the models of a file; None: it does not tell them all."""
    from lmwarden.config import ConfigError, load

    try:
        names = [] if config is None else [model.served_name for model in load(config).models]
    except ConfigError:  # made for flags, perhaps; a warden will say it
        return None
    known = [name for name in names if name is not None]
    return known if len(known) == len(names) else None


@contextmanager
def _acting_as(owner: tuple[int, int] | None) -> Iterator[None]:
    """Root makes and reads files as another user and group; for everybody else, or of no other, nothing happens."""
    user, group = os.geteuid(), os.getegid()
    if owner is None or user != 0 or owner[0] == 0:
        yield
        return
    os.setegid(owner[1])
    os.seteuid(owner[0])
    try:
        yield
    finally:
        os.seteuid(user)
        os.setegid(group)
