"""Workload files: what is allowed, and one plain sentence for what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmwarden.bench.errors import PlanError
from lmwarden.bench.workload import decode_workload, load_workload, workload_names

GOOD = b"""
name = "w"
[layers]
shared_system_tokens = 10
first_message_tokens = [5, 6]
turn_tokens = [1, 2]
[session]
turns = 2
max_output_tokens = 3
[think.slow]
gap_s = [[0.0, 1.0], [1.0, 2.0]]
"""


def test_every_shipped_workload_loads_under_its_own_name() -> None:
    assert "claude-code" in workload_names()
    for name in workload_names():
        assert load_workload(name).name == name


def test_a_good_file_is_read() -> None:
    workload = decode_workload(GOOD, "w.toml")
    assert workload.layers.first_message_tokens == (5, 6)
    assert workload.think_named("none") is None
    assert workload.think_named("slow") is not None


def test_a_client_may_leave_at_one_time_only() -> None:
    for leaves_at in ("0.0", "2.5"):
        leaving = f"[leaving]\nshare = 0.5\nafter_first_token_s = [{leaves_at}, {leaves_at}]\n[think.slow]"
        found = decode_workload(GOOD.replace(b"[think.slow]", leaving.encode()), "w.toml")
        assert found.leaving is not None
        assert found.leaving.after_first_token_s == (float(leaves_at),) * 2


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        (b"turns = 2", b"turns = 0", "turns"),
        (b"[5, 6]", b"[6, 5]", "first_message_tokens"),
        (b"[1, 2]", b"[0, 2]", "turn_tokens"),
        (b"turns = 2", b"turns = 2\nturms = 3", "turms"),
        (b"turns = 2", b"turns = true", "turns"),
        (b"shared_system_tokens = 10", b"shared_system_tokens = -1", "shared_system_tokens"),
        (b"[[0.0, 1.0], [1.0, 2.0]]", b"[[0.1, 1.0], [1.0, 2.0]]", "gap_s"),
        (b"[[0.0, 1.0], [1.0, 2.0]]", b"[[0.0, 3.0], [1.0, 2.0]]", "gap_s"),
        (b"[[0.0, 1.0], [1.0, 2.0]]", b"[[0.0, 1.0], [0.5, 1.0], [0.5, 2.0], [1.0, 2.0]]", "gap_s"),
        (b"[[0.0, 1.0], [1.0, 2.0]]", b"[[0.0, 0.0], [1.0, 2.0]]", "gap_s"),
        (b"[layers]", b"[layers", "w.toml: not TOML: "),
        (b"turns = 2", b"turns = = 2", "not TOML: Invalid value (at line 8"),
        (b"turns = 2", b"turns = 'two'", "turns"),
        (b"turns = 2", b"turns = {kind = 'normal', median = 3}", "turns.kind`; allowed: lognormal, mixture"),
        (
            b"turns = 2",
            b"turns = {kind = 'mixture', parts = [{share = 1.0, of = {kind = 'x'}}]}",
            "of.kind`; allowed: lognormal",
        ),
        (b"turns = 2", b"turns = {kind = 'lognormal', median = 3, sigma = 1.0, most = 2}", "median"),
        (b"[think.slow]", b"[forks]\nshare = 1.5\nturns = 2\n[think.slow]", "share"),
        (b"[think.slow]", b"[leaving]\nshare = 0.5\nafter_first_token_s = [3.0, 1.0]\n[think.slow]", "after_first"),
        (
            b"[think.slow]",
            b"[compaction]\nabove_context_tokens = 0\nrequest_tokens = 1\nsummary_tokens = 1\n[think.slow]",
            "above",
        ),
        (b"[think.slow]", b"[halfway]\nshare = 0.5\nhistory_tokens = 0\n[think.slow]", "history_tokens"),
        (b"[think.slow]", b"[subagents]\nshare = 0.5\n[think.slow]", "subagents"),
    ],
)
def test_a_mistake_is_named(old: bytes, new: bytes, names: str) -> None:
    assert old in GOOD
    with pytest.raises(PlanError) as caught:
        decode_workload(GOOD.replace(old, new), "w.toml")
    assert "w.toml" in str(caught.value)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_one_s_own_is_loaded_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(GOOD)
    assert load_workload(str(tmp_path / "mine.toml")).name == "w"
    with pytest.raises(PlanError, match=r"--workload .*absent\.toml: No such file"):
        load_workload(str(tmp_path / "absent.toml"))


def test_the_home_folder_is_expanded_where_no_shell_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.toml").write_bytes(GOOD)
    assert load_workload("~/mine.toml").name == "w"
    with pytest.raises(PlanError, match=r"--workload ~nobody-here/absent\.toml: No such file"):
        load_workload("~nobody-here/absent.toml")


def test_unknown_names_list_what_is_known() -> None:
    with pytest.raises(PlanError, match="claude-code"):
        load_workload("other")
    with pytest.raises(PlanError, match="none, agent"):
        load_workload("claude-code").think_named("deep")
