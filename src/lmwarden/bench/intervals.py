"""How sure a mean over repeats is: Student's t, two-sided 95 %.

Repeats of one cell are few (three to eight) and differ by their seeds, so the normal distribution would promise
too much: with three repeats its interval is less than half as wide as it must be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""97.5 % quantile by degrees of freedom, from 1."""
_BEYOND_TABLE = 2.042
"""For more than 30 degrees of freedom: at most 4 % too wide."""


def half_width(values: Sequence[float | None]) -> float | None:
    """Half the width of the 95 % confidence interval of the mean; None of fewer than two measured values."""
    known = [value for value in values if value is not None]
    count = len(known)
    if count < 2:
        return None
    average = sum(known) / count
    variance = sum((value - average) ** 2 for value in known) / (count - 1)
    t = _T_975[count - 2] if count - 1 <= len(_T_975) else _BEYOND_TABLE
    return t * math.sqrt(variance / count)
