"""Workload files: what is allowed, and one plain sentence for what is not."""

from __future__ import annotations

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
        (b"[[0.0, 1.0], [1.0, 2.0]]", b"[[0.0, 0.0], [1.0, 2.0]]", "gap_s"),
        (b"[layers]", b"[layers", "w.toml"),
    ],
)
def test_a_mistake_is_named(old: bytes, new: bytes, names: str) -> None:
    assert old in GOOD
    with pytest.raises(PlanError) as caught:
        decode_workload(GOOD.replace(old, new), "w.toml")
    assert "w.toml" in str(caught.value)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_names_list_what_is_known() -> None:
    with pytest.raises(PlanError, match="claude-code"):
        load_workload("other")
    with pytest.raises(PlanError, match="none, agent"):
        load_workload("claude-code").think_named("deep")
