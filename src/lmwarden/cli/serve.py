"""``lmwarden serve``: the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

from lmwarden.cli.errors import UsageError

if TYPE_CHECKING:
    from lmwarden.config import Config

_DEFAULT_FILE = Path("lmwarden.toml")
"""Read where no other is named, if it is there."""


def register(app: cyclopts.App) -> None:
    """Add the command."""
    app.command(serve)


def serve(
    *,
    config: Annotated[Path | None, cyclopts.Parameter(help="Default: lmwarden.toml here, if there is one.")] = None,
    host: Annotated[str | None, cyclopts.Parameter(help="Address of the client port.")] = None,
    port: Annotated[int | None, cyclopts.Parameter(help="Client port.")] = None,
    console_port: Annotated[int | None, cyclopts.Parameter(help="Console port.")] = None,
    data_dir: Annotated[str | None, cyclopts.Parameter(help="Data folder.")] = None,
    engine: Annotated[
        list[str] | None, cyclopts.Parameter(help="URL of a running vLLM server; repeatable.", negative=())
    ] = None,
    model: Annotated[str | None, cyclopts.Parameter(help="Which of the engine's models.")] = None,
    data_parallel_size: Annotated[
        int | None, cyclopts.Parameter(help="Ranks of each engine, where its metrics do not tell.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, cyclopts.Parameter(help="The engine's own; the spill threshold is a quarter of it.")
    ] = None,
) -> int:
    """Stand between the clients and vLLM, keeping each conversation on its replica."""
    settings = load_config(
        config,
        host=host,
        port=port,
        console_port=console_port,
        data_dir=data_dir,
        engines=engine or [],
        model=model,
        data_parallel_size=data_parallel_size,
        max_num_seqs=max_num_seqs,
    )
    from lmwarden.daemon import run
    from lmwarden.log import configure_logging

    configure_logging()
    return run(settings)


def default_file() -> Path | None:
    """The configuration that is read where none is named; None: it is not there, or not for us to see."""
    try:
        return _DEFAULT_FILE if _DEFAULT_FILE.exists() else None
    except PermissionError:  # another user's folder, as of ``sudo -u``
        return None


def load_config(
    path: Path | None,
    *,
    host: str | None,
    port: int | None,
    console_port: int | None,
    data_dir: str | None,
    engines: list[str],
    model: str | None,
    data_parallel_size: int | None,
    max_num_seqs: int | None,
) -> Config:
    """The configuration of a file and the command's flags.

    Raises:
        ConfigError: the result is unusable.
        UsageError: flags that do not go together.
    """
    from lmwarden.config import Flag, load

    if path is None and not engines:
        path = default_file()
    about_engines = {
        "--model": ("model", model),
        "--data-parallel-size": ("data_parallel_size", data_parallel_size),
        "--max-num-seqs": ("max_num_seqs", max_num_seqs),
    }
    flags = [
        Flag(name, key, value)
        for name, key, value in (
            ("--host", ("client", "host"), host),
            ("--port", ("client", "port"), port),
            ("--console-port", ("console", "port"), console_port),
            ("--data-dir", ("storage", "dir"), data_dir),
        )
        if value is not None
    ]
    if engines:
        # The flags describe the only model: what a file says of models would be in the way.
        flags.append(Flag("--engine", ("models",), [{"engine": {"attach": engines}}]))
    for name, (key, value) in about_engines.items():
        if value is not None and not engines:
            raise UsageError(f"{name}: goes with --engine; in a file it is models.engine.{key}")
        if value is not None:
            flags.append(Flag(name, ("models", 0, "engine", key), value))
    return load(path, flags)
