"""How often the same reason is said."""

from __future__ import annotations

from lmwarden.engine.complaints import Complaints


def test_the_same_reason_is_said_ever_more_rarely() -> None:
    complaints = Complaints()
    said = [second for second in range(0, 300, 2) if complaints.worth_saying("away", float(second))]
    assert said == [0, 2, 12, 72, 132, 192, 252]


def test_a_new_reason_is_said_at_once_and_begins_anew() -> None:
    complaints = Complaints()
    assert complaints.worth_saying("away", 0.0)
    assert complaints.worth_saying("silent", 0.1)
    assert not complaints.worth_saying("silent", 2.0)
    assert complaints.worth_saying("silent", 2.1)
    assert complaints.worth_saying("away", 2.2)
