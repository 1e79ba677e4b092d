"""The list of cases is complete, and what it names exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from tests.field_cases.cases import CASES, HERE

from lmwarden.cli import main

ROOT = Path(__file__).parents[2]


@cache
def defined(path: Path) -> frozenset[str]:
    """``function`` and ``Class::function`` of a file's tests."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}::{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.add(node.targets[0].id)  # a state machine's case
    return frozenset(name for name in found if name.rpartition("::")[2].lower().startswith("test"))


def test_all_thirty_two_are_there() -> None:
    assert list(CASES) == [f"D{number:02}" for number in range(1, 33)]


@pytest.mark.parametrize("case", CASES)
def test_each_test_that_a_case_names_exists(case: str) -> None:
    assert CASES[case].tests
    for name in CASES[case].tests:
        file, _, function = name.partition("::")
        path = ROOT / file
        assert path.is_file(), name
        assert not function or function in defined(path), name
        assert function or defined(path), name


def test_each_test_here_belongs_to_its_case() -> None:
    for path in Path(__file__).parent.glob("test_*_cases.py"):
        for function in defined(path):
            case = function.split("_")[1].upper()
            assert f"{HERE}{path.name}::{function}" in CASES[case].tests, function


# -- cases that need no gateway ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--workers", "--processes", "--threads"])
def test_d08_several_workers_are_not_offered(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A second one would be a second truth about what is in flight."""
    assert main(["serve", "--engine", "http://127.0.0.1:1", option, "4"]) == 2
    assert option in capsys.readouterr().err


def test_d32_no_time_of_the_load_tester_comes_from_the_wall_clock() -> None:
    """So none can be negative when that is set back. A date in a report is no time."""
    for path in (ROOT / "src/lmwarden/bench").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("time", "time"), ("time", "time_ns")}, path.name
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                assert not {alias.name for alias in node.names} & {"time", "time_ns"}, path.name
