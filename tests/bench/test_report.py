"""The table that people see."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from tests.bench.test_results import row

from lmwarden.bench.counters import EngineCounters
from lmwarden.bench.errors import BenchError, PlanError
from lmwarden.bench.language import Note, language
from lmwarden.bench.notes import gain_note
from lmwarden.bench.report import check_places, gain_sentence, markdown, save, show
from lmwarden.bench.results import AS_RECORDED, BenchResult, ClientCounters, LevelResult, TtfbSeconds


def result(*rows: LevelResult) -> BenchResult:
    return BenchResult(source="simulated", hardware="a4000", workload="claude-code", levels=list(rows))


OFF = row(
    arm="off",
    output_tokens_per_minute=8364.0,
    prefix_hit_ratio=0.443,
    stayed_ratio=None,
    ttfb_s=TtfbSeconds(p50=2.33, p95=6.32),
    unserved=0,
)


@pytest.mark.parametrize(
    ("code", "heading", "level", "cell", "gain"),
    [
        (
            "en",
            "Sessions started/h",
            "as recorded",
            "sessions as recorded, on: 3 of",
            "with sessions as recorded 44→86",
        ),
        ("zh", "每小时新开会话", "按记录", "会话按记录开始，on：", "会话按记录开始时来自缓存的提示 44→86"),
    ],
)
def test_sessions_that_start_as_recorded_are_not_called_0_an_hour(
    code: str, heading: str, level: str, cell: str, gain: str
) -> None:
    off, on = (msgspec.structs.replace(one, sessions=AS_RECORDED, loop="open") for one in (OFF, row(failed=3)))
    words = language(code)
    note = gain_note([off, on], "off", "on", words)
    text = markdown(result(off, on), [] if note is None else [note], words)
    assert f"| {heading} |" in text
    assert f"| {level} |" in text
    assert cell in text
    assert gain in text
    assert not re.search(r"(?<![0-9.])0 (sessions|个会话|on|off)", text)


def test_a_level_is_one_row_and_each_figure_goes_from_off_to_on() -> None:
    text = markdown(result(OFF, row(unserved=0)))
    expected = "| 8 | 380→380 | 8364→10752 | 2.33→0.48 | 6.32→5.03 | 3.74→3.74 | 44.3→86.1 | 100.0 |"
    assert expected in text.splitlines()
    assert "| Sessions | Sessions/h | Output tokens/min | TTFB p50 s |" in text
    assert text.startswith("## off → on (claude-code, simulated, a4000)")


def test_a_missing_cell_is_a_dash() -> None:
    text = markdown(result(*(row(4, arm) for arm in ("off", "hash", "on")), row(8, "off"), row(8, "on")))
    assert "| 8 | 380→–→380 |" in text


def test_repeats_have_intervals_in_markdown() -> None:
    text = markdown(result(OFF, msgspec.structs.replace(OFF, output_tokens_per_minute=8464.0)))
    assert "| 8414 ±635 |" in text
    assert "95 % confidence interval of the mean over 2 runs" in text


def test_markdown_speaks_chinese_too() -> None:
    text = markdown(result(OFF, row()), [Note("speed", {"speed": "10"})], language("zh"))
    assert "| 会话数 | 会话/小时 |" in text
    assert "速度 10 倍" in text


def test_the_open_loop_has_rates_for_levels() -> None:
    text = markdown(result(row(240, loop="open")))
    assert "| Sessions started/h |" in text


def test_what_is_unmeasured_everywhere_is_one_dash() -> None:
    text = markdown(result(row(stayed_ratio=None)))
    assert text.splitlines()[4].endswith("| – |")


def test_the_gain_is_one_sentence_with_its_numbers() -> None:
    sentence = gain_sentence([OFF, row()], "off", "on")
    assert sentence == (
        "From off to on: at 8 sessions 44→86 % of the prompt from the cache, "
        "first token 2.33→0.48 s (median), +29 % output."
    )
    assert gain_sentence([OFF], "off", "on") is None
    rates = [msgspec.structs.replace(one, loop="open", sessions=240) for one in (OFF, row())]
    assert (gain_sentence(rates, "off", "on") or "").startswith("From off to on: at 240 sessions an hour 44→86 %")


def test_the_terminal_shows_table_and_notes() -> None:
    out = io.StringIO()
    show(Console(file=out, width=160), result(OFF, row()), ["A note."])
    assert "8364→10752" in out.getvalue()
    assert out.getvalue().endswith("A note.\n")


def test_a_simulated_engine_s_way_of_counting_is_told_in_the_report_and_not_under_every_table() -> None:
    counted = row(
        prefix_hit_ratio_engine=0.5,
        client=ClientCounters(requests=9, prompt_tokens=1000),
        engine=EngineCounters(prefix_queries_tokens=9000.0),
    )
    out = io.StringIO()
    show(Console(file=out, width=160), result(counted), [])
    assert "looked up other tokens" not in out.getvalue()
    assert "looked up other tokens" in markdown(result(counted))
    measured = msgspec.structs.replace(result(counted), source="measured")
    show(Console(file=out, width=160), measured, [])
    assert "looked up other tokens" in out.getvalue(), "of a real engine it is told"


def test_nothing_is_cut_off_on_a_narrow_terminal() -> None:
    out = io.StringIO()
    show(Console(file=out, width=60), result(OFF, row()), [])
    assert "…" not in out.getvalue()
    for figure in ("8364→", "10752", "2.33→", "0.48"):
        assert figure in out.getvalue().split()


def test_three_levels_fit_80_columns_in_one_line_each() -> None:
    out = io.StringIO()
    off = row(16, "off", output_tokens_per_minute=10368.0, stayed_ratio=None, ttfb_s=TtfbSeconds(p50=5.04, p95=14.3))
    on = row(16, output_tokens_per_minute=15360.0, ttfb_s=TtfbSeconds(p50=0.40, p95=11.0))
    show(Console(file=out, width=80), result(OFF, row(), off, on), [])
    assert "10368→15360 5.04→0.40 14.30→11.00 3.74→3.74 86.1→86.1" in out.getvalue()


def test_files_are_written_where_asked(tmp_path: Path) -> None:
    check_places(out=tmp_path / "new" / "folder", json=tmp_path / "alone.json")
    save(result(OFF), ["A note."], out=tmp_path / "new" / "folder", json=tmp_path / "alone.json")
    written = {file.name for file in (tmp_path / "new" / "folder").iterdir()}
    assert written >= {"results.json", "results.csv", "report.md", "report.zh.md", "report.html"}
    assert written >= {"ttfb.svg", "ttfb.png", "hits.svg", "decisions.png"}
    assert "- A note." in (tmp_path / "new" / "folder" / "report.md").read_text()
    assert (tmp_path / "new" / "folder" / "results.json").read_bytes() == (tmp_path / "alone.json").read_bytes()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"alone\.json"):
        save(result(OFF), [], out=None, json=tmp_path / "absent" / "alone.json")


def test_places_that_cannot_be_written_are_found_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError, match="--out"):
        check_places(out=tmp_path / "file" / "folder", json=None)
    with pytest.raises(PlanError, match="--out"):
        check_places(out=Path("/proc/self"), json=None)  # nobody may, not even root
    for json in (tmp_path, tmp_path / "absent" / "r.json", Path("/proc/self/r.json")):
        with pytest.raises(PlanError, match="--json"):
            check_places(out=None, json=json)


def test_looking_whether_a_file_can_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("old")
    check_places(out=tmp_path, json=tmp_path / "old.json")
    check_places(out=None, json=tmp_path / "new.json")
    assert [file.name for file in tmp_path.iterdir()] == ["old.json"]
    assert (tmp_path / "old.json").read_text() == "old"
