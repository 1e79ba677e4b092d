"""SIGKILL at any moment leaves a readable file: sound, its rows complete, and everything there that was said to be."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from tests.ledger.samples import home, settings

from lmwarden.ledger import schema
from lmwarden.ledger.history import Question
from lmwarden.ledger.ledger import FILE, Ledger

KILLS = 20
PROJECT = Path(__file__).parents[2]


def test_killed_at_any_moment_the_file_is_sound_and_complete(tmp_path: Path) -> None:
    chance = random.Random(3)
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT / 'src'}{os.pathsep}{PROJECT}"}
    command = [sys.executable, "-m", "tests.ledger.killed_writer", str(tmp_path)]
    written = 0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=PROJECT
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for _ in range(KILLS):
            child.stdin.write(f"{written}\n")
            child.stdin.flush()
            writer = int(child.stdout.readline())
            said = [written, *(int(child.stdout.readline()) for _ in range(chance.randrange(12)))]
            os.kill(writer, signal.SIGKILL)  # in the middle of whatever it does next
            said += map(int, iter(child.stdout.readline, "over\n"))
            written = check(tmp_path, said[-1])
        child.stdin.close()
    ledger = Ledger(tmp_path, settings())
    ledger.start()
    assert ledger.trouble is None
    assert {row.conversation for row in ledger.load_homes("m", 100.0)} == {
        home(number).conversation for number in range(written)
    }
    now = time.time()
    totals = ledger.history.stretch(Question(begin_s=now - 3600, end_s=now), now).totals
    assert (totals.ok, totals.cached_tokens + totals.computed_tokens) == (written, written * (written - 1))
    ledger.stop()


def check(folder: Path, said: int) -> int:
    """What is in the file, at least what was said to be written. Returns the number of rows."""
    connection = sqlite3.connect(folder / FILE)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    rows = connection.execute(f"SELECT {', '.join(schema.FIELDS)} FROM requests ORDER BY id").fetchall()
    homes = connection.execute("SELECT conversation, replica, context_tokens FROM homes").fetchall()
    connection.close()
    records = [schema.from_row(row) for row in rows]
    assert [(record.status, record.prompt_tokens) for record in records] == [(n, n * 2) for n in range(len(rows))]
    assert len(rows) >= said
    assert len(homes) >= said
    for conversation, replica, context_tokens in homes:
        number = int.from_bytes(conversation, "big")
        assert (replica, context_tokens) == (f"e0/{number % 4}", 1000 + number)
    return len(rows)
