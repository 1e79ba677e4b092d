"""One server under two addresses is seen; two servers are not taken for one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from tests.console.made_up import engine, model, process

from lmwarden.console.check_same import check_same
from lmwarden.console.checks import warnings_of
from lmwarden.console.findings import Level
from lmwarden.control import EngineSnapshot

RUNS = ("counters-1.000", "counters-1.002")
HERE = engine("e0", url="http://127.0.0.1:8000", boot_ids=RUNS)
AGAIN = engine("e1", url="http://localhost:8000", boot_ids=RUNS)


def test_one_server_under_two_addresses_is_warned_of() -> None:
    (check,) = check_same(model(engines=(HERE, AGAIN)))
    assert (check.code, check.level) == ("same_engine", Level.WARNING)
    assert check.text == "2 engines of this model are the same server: http://127.0.0.1:8000 and http://localhost:8000"
    assert check.params == {"count": 2, "urls": "http://127.0.0.1:8000 and http://localhost:8000"}
    assert "same_engine" in [warning.code for warning in warnings_of(model(engines=(HERE, AGAIN)))]


@pytest.mark.parametrize(
    "engines",
    [
        [HERE],
        [HERE, msgspec.structs.replace(AGAIN, boot_ids=("counters-1.000", "counters-2.000"))],
        [HERE, msgspec.structs.replace(AGAIN, boot_ids=("counters-1.000",), ranks=1)],
        [msgspec.structs.replace(one, boot_ids=("counters-1.000", None)) for one in (HERE, AGAIN)],
        [msgspec.structs.replace(one, boot_ids=()) for one in (HERE, AGAIN)],
        [msgspec.structs.replace(process(), engine=name, boot_ids=RUNS) for name in ("e0", "e1")],
    ],
    ids=["one", "another run", "other ranks", "a rank without a run", "not answered yet", "launched"],
)
def test_other_engines_are_not_taken_for_one(engines: Sequence[EngineSnapshot]) -> None:
    assert list(check_same(model(engines=tuple(engines)))) == []
