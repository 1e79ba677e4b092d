"""The report as a page: complete, in both languages, and nothing in it runs or is loaded from elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.bench.test_results import row

from lmwarden.bench.charts import charts
from lmwarden.bench.counters import EngineCounters
from lmwarden.bench.language import Note
from lmwarden.bench.page import write_page
from lmwarden.bench.results import AS_RECORDED, BenchResult, ClientCounters, LevelResult, RunFacts, WaitSeconds

VOID = {"meta", "input", "br", "link", "img", "hr"}


def rows() -> Iterator[LevelResult]:
    for seed in (1, 2):
        for level in (4, 8):
            for arm in ("off", "hash", "on"):
                yield row(
                    level,
                    arm,
                    seed=seed,
                    output_tokens_per_minute=9000.0 + 100 * seed,
                    prefix_hit_ratio_engine=0.86,
                    room_wait_s=WaitSeconds(p50=1.0, p95=2.0, max=3.0),
                    requests_by_replica={"e0/0": 60, "e0/1": 66},
                    client=ClientCounters(requests=120, prompt_tokens=1_000, cached_tokens=860, output_tokens=99),
                    engine=EngineCounters(requests=121, prompt_tokens=1_010, generation_tokens=101),
                )


RESULT = BenchResult(
    source="simulated",
    hardware="a4000-qwen3-4b",
    workload="claude-code",
    levels=list(rows()),
    run=RunFacts(
        command="lmwarden bench --url http://127.0.0.1:8080 --key ***",
        started="2026-11-29T23:10:00Z",
        machine="A machine <of> 2 cores",
        versions={"lmwarden": "0.1.0"},
        replicas=2,
        speed=10.0,
        tester_lag_p99_s=0.004,
    ),
)


class Page(HTMLParser):
    """Checks nesting while it reads, and keeps elements and words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text.replace("<wbr>", ""))  # a place where a word may be broken
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    write_page(RESULT, ["A note.", Note("speed", {"speed": "10"})], out)
    return out


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "report.html").read_text("utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_nothing_runs_and_nothing_is_loaded(text: str, page: Page) -> None:
    assert not page.all("script") + page.all("link") + page.all("img") + page.all("iframe")
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href"):
                assert (value or "").startswith("#")
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
    policy = next(meta for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert (policy["content"] or "").startswith("default-src 'none'")


def test_ids_are_unique_and_every_reference_has_its_target(text: str, page: Page) -> None:
    ids = Counter(attributes["id"] for _, attributes in page.elements if "id" in attributes)
    assert [name for name, count in ids.items() if count > 1] == []
    targets = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    assert targets <= set(ids)
    assert targets


def test_both_languages_are_there_and_one_is_chosen(page: Page) -> None:
    assert [main["lang"] for main in page.all("main")] == ["en", "zh"]
    assert ["checked" in choice for choice in page.all("input")] == [True, False]
    assert [choice["id"] for choice in page.all("input")] == ["choose-en", "choose-zh"]
    words = " ".join(page.words)
    for said in ("What each figure means", "各项数值的含义", "sessions at once", "并发会话数", "A note.", "速度 10 倍"):
        assert said in words


def test_every_chart_says_what_it_shows(page: Page) -> None:
    pictures = [svg for svg in page.all("svg") if svg.get("role") == "img"]
    assert len(pictures) == 2 * len(charts(RESULT)) == 16
    assert all(len(svg["aria-label"] or "") > 20 for svg in pictures)
    assert any("on p50: 4: 0.48" in (svg["aria-label"] or "") for svg in pictures)


def test_the_ink_of_a_chart_is_that_of_the_page(text: str) -> None:
    assert "currentColor" in text
    assert "#010203" not in text
    assert "DejaVu" not in text


def test_intervals_counters_and_facts_are_shown_and_what_came_from_outside_is_escaped(text: str, page: Page) -> None:
    words = " ".join(page.words)
    assert "9150→9150→9150" in words
    assert "±635→±635→±635" in words
    assert "95 % confidence interval" in words
    assert "2020" in words  # the engine's prompt tokens of two runs
    assert "lmwarden bench --url http://127.0.0.1:8080 --key ***" in words
    assert "A machine <of> 2 cores" in words
    assert "A machine &lt;of&gt; 2 cores" in text


def test_each_chart_is_a_file_too(folder: Path) -> None:
    names = {chart.key for chart in charts(RESULT)}
    assert {path.stem for path in folder.glob("*.svg")} == {path.stem for path in folder.glob("*.png")} == names
    svg = (folder / "ttfb.svg").read_text("utf-8")
    assert "sessions at once" in svg and "#fff" in svg and "currentColor" not in svg
    assert (folder / "ttfb.png").read_bytes().startswith(b"\x89PNG")


def test_one_run_of_one_arm_has_a_page_too(tmp_path: Path) -> None:
    alone = BenchResult(source="measured", hardware=None, workload="w", levels=[row(arm="as-is", stayed_ratio=None)])
    write_page(alone, [], tmp_path)
    words = " ".join(Page((tmp_path / "report.html").read_text("utf-8")).words)
    assert "One run per cell" in words
    assert "The engine's own address was not given" in words


def test_an_axis_says_as_recorded_in_both_languages(tmp_path: Path) -> None:
    recorded = [row(AS_RECORDED, arm, loop="open") for arm in ("off", "on")]
    write_page(BenchResult(source="simulated", hardware=None, workload="trace:t", levels=recorded), [], tmp_path)
    words = Page((tmp_path / "report.html").read_text("utf-8")).words
    assert words.count("as recorded") == words.count("按记录") > 4
    assert "0" not in [word.split(" ")[0] for word in words if word.endswith((" on", " off"))]
