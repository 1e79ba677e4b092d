"""The one command, ``lmwarden``.

Each subcommand lives in a module of its own, which registers it and imports the rooms that it needs only
when it runs: ``lmwarden --help`` must not wait for an HTTP client. A command that cannot go on raises; here
the exception becomes one line on stderr and an exit status: 0 done, 1 a check failed, 2 unusable arguments
or configuration. A traceback is a bug.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import cyclopts

from lmwarden import __version__
from lmwarden.cli import bench, calibrate, connect, demo, doctor, keys, serve, simulate, simulated_engine


def make_app() -> cyclopts.App:
    """The command with all its subcommands."""
    app = cyclopts.App(
        name="lmwarden",
        version=f"lmwarden {__version__}",
        help="Keeps every agent conversation on the vLLM replica that has read it before.",
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for command in (demo, serve, simulated_engine, bench, simulate, calibrate, connect, doctor, keys):
        command.register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: without the program's name; None: the process's own.

    Returns:
        The exit status.
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = make_app()(tokens)
    except cyclopts.CycloptsError as error:
        return _fail(f"{_plain(error, tokens)} ({_help_of(error)} lists what is allowed)", 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output left (| head). Keep the interpreter's own flush at exit quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        status = getattr(error, "exit_status", None)
        if not isinstance(status, int):
            raise
        return _fail(str(error), status)
    return result if isinstance(result, int) else 0


def _plain(error: cyclopts.CycloptsError, tokens: Sequence[str]) -> str:
    """cyclopts's text without line breaks and its full stop.

    Its list of commands ends after the eighth, so the list here is our own; and of what is not there at all it says
    that it "requires an argument".
    """
    if isinstance(error, cyclopts.MissingArgumentError) and error.argument is not None:
        name = error.argument.name
        if name not in tokens:
            return f"{name} is missing"
    if isinstance(error, cyclopts.UnusedCliTokensError):
        surplus = ", ".join(repr(token) for token in error.unused_tokens or ())
        return f"unexpected argument {surplus}"
    text = " ".join(str(error).split())
    if isinstance(error, cyclopts.UnknownCommandError) and error.app is not None:
        commands = ", ".join(name for name in error.app if not name.startswith("-"))
        text = f"{text.partition(' Available commands: ')[0]} Available commands: {commands}"
    return text.rstrip(".")


def _help_of(error: cyclopts.CycloptsError) -> str:
    """The command whose help tells more."""
    return " ".join(["lmwarden", *(error.command_chain or ()), "--help"])


def _fail(sentence: str, status: int) -> int:
    print(f"lmwarden: {' '.join(sentence.split())}", file=sys.stderr)
    return status
