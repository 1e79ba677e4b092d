"""What is said of an installation: nothing where all is well, and each trouble with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.console.made_up import counted, engine, model, snapshot

from lmwarden.access.keys import KeyStore
from lmwarden.config import Flag, load
from lmwarden.console.checks import STUCK_S, check_all, check_model, warnings_of
from lmwarden.console.findings import Check, Level
from lmwarden.control import EngineState

ENGINE = Flag("--engine", ("models",), [{"engine": {"attach": ["http://h:1"]}}])


def found(console_host: str | None = "127.0.0.1", **changes: Any) -> dict[str, Check]:
    taken = snapshot(**changes)
    return {check.code: check for check in check_all(taken, taken.taken_at, console_host)}


def test_where_all_is_well_each_line_is_ok() -> None:
    checks = found()
    assert {check.level for check in checks.values()} == {Level.OK}
    assert set(checks) == {
        "data_loop", "ledger", "console_open", "replicas", "engine", "metrics", "pins", "usage_details",
        "max_num_seqs", "context", "contexts",
    }  # fmt: skip
    assert all(check.what_to_do is None for check in checks.values())
    assert warnings_of(model()) == []


def test_lines_name_their_model_and_engine() -> None:
    checks = found()
    assert (checks["engine"].model, checks["engine"].engine) == ("org/model", "e0")
    assert (checks["replicas"].model, checks["replicas"].engine) == ("org/model", None)
    assert (checks["ledger"].model, checks["ledger"].engine) == (None, None)


@pytest.mark.parametrize(
    ("changes", "code", "level", "says"),
    [
        ({"ledger_trouble": "the disk is full"}, "ledger", Level.WARNING, "the disk is full"),
        ({"ledger_dropped_rows": 7}, "ledger_dropped", Level.WARNING, "7 rows of the history were lost"),
        ({"orphans": {"e3": (12, 34)}}, "orphan", Level.WARNING, "its processes cannot be ended: 12, 34"),
        ({"console_host": "0.0.0.0"}, "console_open", Level.WARNING, "the console listens on 0.0.0.0"),
        ({"console_host": "10.1.2.3"}, "console_open", Level.WARNING, "without sign-in"),
    ],
)
def test_troubles_of_the_installation(changes: dict[str, Any], code: str, level: Level, says: str) -> None:
    check = found(**changes)[code]
    assert check.level is level
    assert says in check.text
    assert check.what_to_do


def test_keys_that_cannot_be_read(tmp_path: Path) -> None:
    """A key that was revoked works on meanwhile: somebody must say so."""
    taken, keys = snapshot(), KeyStore(tmp_path, b"s" * 32)
    keys.create("anna")
    assert "keys_unreadable" not in {check.code for check in check_all(taken, taken.taken_at, None, keys=keys)}
    for spoil in (lambda path: path.write_text("{"), lambda path: (path.unlink(), path.mkdir())):
        spoil(tmp_path / "keys.json")
        (check,) = (one for one in check_all(taken, taken.taken_at, None, keys=keys) if one.level is Level.FAULT)
        assert check.code == "keys_unreadable"
        assert check.text == f"new API keys and revocations do not hold: {check.params['trouble']}"
        assert "chown" in str(check.what_to_do)


def test_a_data_loop_that_is_stuck() -> None:
    taken = snapshot()
    late = {check.code: check for check in check_all(taken, taken.taken_at + STUCK_S + 1, None)}
    assert late["data_loop"].level is Level.FAULT
    assert "has not moved for 31 s" in late["data_loop"].text
    assert "console_open" not in late


def test_the_warnings_of_a_model_are_its_lines_that_are_not_ok() -> None:
    ill = model(engines=(engine(usage_details=False),))
    (warning,) = warnings_of(ill)
    assert (warning.code, warning.what_to_do) == ("no_usage_details", "start vLLM with --enable-prompt-tokens-details")
    assert sum(check.level is not Level.OK for check in check_model(ill)) == 1
    assert warnings_of(counted(identity_sent=1000)) == []


def test_a_port_that_asks_for_keys_where_there_are_none(tmp_path: Path) -> None:
    taken, keys = snapshot(), KeyStore(tmp_path, b"s" * 32)

    def found(require_key: bool) -> bool:
        client = load(None, [ENGINE, Flag("--require-key", ("client", "require_key"), require_key)]).client
        return "no_keys" in {check.code for check in check_all(taken, taken.taken_at, None, client=client, keys=keys)}

    assert found(require_key=True)
    assert not found(require_key=False)
    keys.create("anna")
    assert not found(require_key=True)


def test_faults_are_warned_of_first() -> None:
    ill = model(engines=(engine(usage_details=False), engine("e1", state=EngineState.DOWN)))
    assert [(one.level, one.code) for one in warnings_of(ill)] == [
        (Level.FAULT, "engine_down"),
        (Level.WARNING, "no_usage_details"),
    ]


def test_every_line_can_be_said_in_other_words() -> None:
    """With its code alone, or with the values that its text has."""
    told = [*check_all(snapshot(), snapshot().taken_at, "127.0.0.1")]
    ill = model(engines=(engine(usage_details=False, scrape_age_s=99.0),))
    told += [*check_model(ill), *check_model(counted(identity_none=100))]
    figures = {check.code: check.params for check in told if any(letter.isdigit() for letter in check.text)}
    assert all(figures.values()), figures
    (stale,) = (one for one in warnings_of(ill) if one.code == "stale_metrics")
    assert stale.params == {"engine": "e0", "age_s": 99}
