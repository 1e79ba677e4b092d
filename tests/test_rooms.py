"""The rooms of the house: which package may import which (docs/decisions.md), and that tests mirror the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "lmwarden"

MAY_IMPORT: dict[str, set[str]] = {
    "types": set(),
    "config_errors": {"types"},
    "config_engine": {"types", "config_errors"},
    "config_sections": {"types", "config_engine"},
    "config": {"types", "config_errors", "config_engine", "config_sections"},
    "ports": {"config"},
    "log": {"log_stream"},
    "log_stream": set(),
    "trace_format": set(),
    "files": set(),
    "routing": {"types"},
    "engine": {"types", "config", "files"},
    "access": {"types", "config", "files"},
    "ledger": {"types", "config"},
    "gateway": {"types", "config", "routing", "engine", "ledger", "access", "trace_format"},
    "control": {"types", "config", "routing", "engine", "ledger", "access", "gateway"},
    "console": {"types", "config", "control", "ledger", "access"},
    "simulation": {"types", "routing"},
    "bench": {"types", "config", "routing", "simulation", "trace_format"},
}
"""Room to the rooms that it may import besides itself. What is not listed here puts the rooms together."""

WIRING = {"assembly", "serve", "daemon", "cli", "__main__", "__init__"}

PURE = {"types", "routing"}
IMPURE_MODULES = {
    "asyncio", "aiohttp", "http", "logging", "os", "pathlib", "socket", "sqlite3", "structlog", "subprocess",
    "threading", "time", "datetime", "uvloop", "httptools",
}  # fmt: skip


def modules() -> list[tuple[str, Path]]:
    """(room, file) for every source file."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found.append((parts[0], path))
    return found


def imports(path: Path) -> list[str]:
    """Dotted names of everything a file imports, at any depth of nesting."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [node.module or ""]
            if node.module == "lmwarden":
                names += [f"lmwarden.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize(
    ("room", "path"), modules(), ids=lambda value: value.name if isinstance(value, Path) else value
)
def test_a_room_imports_only_what_it_may(room: str, path: Path) -> None:
    if room in WIRING:
        return
    assert room in MAY_IMPORT, f"{room} is no room; put it into one or into the table"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "lmwarden" or len(parts) == 1:
            continue
        assert parts[1] in MAY_IMPORT[room] | {room, "log", "__version__"}, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", [path for room, path in modules() if room in PURE], ids=lambda path: path.name)
def test_the_decision_has_no_clock_no_log_and_no_input_or_output(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path)} & IMPURE_MODULES


def test_nothing_imports_the_command_line() -> None:
    for room, path in modules():
        if room not in ("cli", "__main__"):
            assert not any(name.startswith("lmwarden.cli") for name in imports(path)), path.name


def test_every_test_stands_beside_what_it_tests() -> None:
    tests = Path(__file__).parent
    rooms = {room for room, _ in modules()}
    for path in tests.rglob("test_*.py"):
        parts = path.relative_to(tests).parts
        if len(parts) > 1:
            suites = {"real", "whole", "clients", "page", "field_cases", "security"}
            assert parts[0] in rooms | suites, f"{path}: no such room"
