"""What all tests share: how hypothesis runs."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No time limits: a busy machine is no failure. In CI the same examples every time: a red run is about the change.
settings.register_profile(
    "lmwarden",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("lmwarden")
