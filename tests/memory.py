"""How much memory a piece of work took at its highest, whatever this process did before."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")


class PeakMemory:
    """Of this process, from the moment that it is made (Linux)."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the highest mark of resident memory begins anew
        self._begin_bytes = _resident_bytes("VmRSS")

    @property
    def grown_bytes(self) -> int:
        """Highest mark since then, less what was resident at its beginning."""
        return _resident_bytes("VmHWM") - self._begin_bytes


def _resident_bytes(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"{_STATUS} has no {name}")
