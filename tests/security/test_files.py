"""What is on the disk belongs to the warden's user alone, whatever umask it was started with."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.security.house import MODEL, house
from tests.whole.launched import LaunchedWarden

from lmwarden.access.keys import KeyStore
from lmwarden.access.secrets import load_secrets


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Of everything in a data folder, the folder itself included."""
    found = {str(path.relative_to(folder)): path for path in (folder, *folder.rglob("*"))}
    return {name: stat.S_IMODE(path.lstat().st_mode) for name, path in found.items()}


def assert_private(folder: Path, *expected: str) -> None:
    found = modes(folder)
    for name in expected:
        assert any(path.startswith(name) for path in found), (name, sorted(found))
    open_to_others = {name: oct(mode) for name, mode in found.items() if mode & 0o077}
    assert not open_to_others


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
async def test_files_of_a_warden(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        async with house(tmp_path) as of:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "hello " * 200}]}
            assert b" 200 " in await of.ask(of.post("/v1/chat/completions", body))
            await of.settled()
            KeyStore(of.folder, load_secrets(of.folder).keys).create("ben")
            assert_private(
                of.folder, "secret", "lock", "keys.json", "keys.lock", "ledger.sqlite3", "ledger.sqlite3-wal"
            )
        assert_private(of.folder, "traces/")


async def test_files_of_launched_engines(tmp_path: Path) -> None:
    with umask(0o000):
        warden = LaunchedWarden(tmp_path, replicas=1)
        try:
            await warden.start()
            await warden.all_ready()
            assert_private(tmp_path / "data", "engines/e0.log", "engines/")
        finally:
            await asyncio.to_thread(warden.stop)
