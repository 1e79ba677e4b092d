"""``lmwarden keys create|list|revoke``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

if TYPE_CHECKING:
    from lmwarden.access.keys import KeyStore

DataDir = Annotated[Path | None, cyclopts.Parameter(help="The data folder of the warden.")]
ConfigFile = Annotated[Path | None, cyclopts.Parameter(help="Configuration file that names the data folder.")]


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
    print(_store(data_dir, config).create(name, scope))


def list_keys(*, data_dir: DataDir = None, config: ConfigFile = None) -> None:
    """List the names of the keys, when they were made, and the models that each may use."""
    for key in _store(data_dir, config).stored():
        print(f"{key.name}\t{key.created}\t{'all models' if key.models is None else ', '.join(key.models)}")


def revoke(name: str, /, *, data_dir: DataDir = None, config: ConfigFile = None) -> None:
    """Delete a key; a running warden refuses it within a second.

    Parameters
    ----------
    name: str
        The key's name.
    """
    _store(data_dir, config).revoke(name)


def _store(data_dir: Path | None, config: Path | None) -> KeyStore:
    from lmwarden.access.keys import KeyStore
    from lmwarden.access.secrets import load_secrets
    from lmwarden.config import Flag, load_storage

    flags = [] if data_dir is None else [Flag("--data-dir", ("storage", "dir"), str(data_dir))]
    storage, origin = load_storage(config, flags)
    place = origin.place("storage", "dir", default="--data-dir")
    return KeyStore(storage.path, load_secrets(storage.path, place).keys)
