"""Draws charts with matplotlib. Only a report imports this module: loading the library takes a second.

Colours are readable on white and on near-black; arms differ by marker as well, and a second figure of an arm by its
dashes. Text in an SVG stays text, so that the browser chooses the font and a page can replace the words by another
language's. For a page the ink is ``currentColor``, so that a chart follows the page's light or dark scheme.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from xml.sax.saxutils import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from lmwarden.bench.charts import BarChart, Chart, LineChart
from lmwarden.bench.language import Language, language

_INK = "#010203"
"""Stands for the page's text colour until the SVG is written."""
_PAPER_INK = "#1b1f24"
_GRID = "#808890"
_COLOURS = {"off": "#d97706", "hash": "#8b5cf6", "on": "#0d9488", "on+admission": "#db2777", "as-is": "#3b82f6"}
_MARKERS = {"off": "o", "hash": "s", "on": "^", "on+admission": "D", "as-is": "v"}
_DECISIONS = {
    "placed": "#3b82f6",
    "sticky": "#0d9488",
    "spilled": "#d97706",
    "client_pinned": "#db2777",
    "rehomed": "#dc2626",
    "balanced": "#8b5cf6",
    "unrouted": "#94a3b8",
}
_PARTS = ("#3b82f6", "#0d9488", "#d97706", "#8b5cf6", "#db2777", "#65a30d", "#94a3b8", "#0891b2")
_MOST_IN_LEGEND = 16
_WIDTH_IN = 6.2


class DrawnChart:
    """One chart, drawn once as a bitmap and once as an SVG whose ink is still open."""

    def __init__(self, chart: Chart) -> None:
        self._chart = chart
        with _style():
            figure = draw(chart)
            _recolour(figure, _INK)
            drawn = _written(figure, "svg", "none").decode()
            _recolour(figure, _PAPER_INK)
            self.png = _written(figure, "png", "white")
        self._svg = re.sub(r"'DejaVu Sans'(, [^;\"]*)?", "system-ui, sans-serif", drawn)

    def svg(self) -> str:
        """Return a file of its own: English, on white."""
        return self._svg.replace(_INK, _PAPER_INK).replace("<svg ", '<svg style="background: #fff" ', 1)

    def inline_svg(self, words: Language, prefix: str, description: str) -> str:
        """Return an element for a page, in a language.

        Args:
            words: the language.
            prefix: makes the ids in it unique on the page.
            description: what a screen reader says instead.
        """
        svg = self._svg.replace(_INK, "currentColor")
        svg = svg[svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
        svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}-", svg)
        head = re.search(r'viewBox="[^"]+"', svg)
        assert head is not None
        label = escape(description, {'"': "&quot;"})
        svg = f'<svg {head[0]} role="img" aria-label="{label}">' + svg[svg.index(">") + 1 :]
        for key in (*_axis_keys(self._chart), "gain.recorded"):
            english, other = language("en").text(key), words.text(key)
            svg = svg.replace(f">{escape(english)}<", f">{escape(other)}<")
        return svg.strip()


def draw(chart: Chart) -> Figure:
    """Return a chart drawn on paper of its own."""
    return _draw_lines(chart) if isinstance(chart, LineChart) else _draw_bars(chart)


def _style() -> AbstractContextManager[None]:
    """The library's settings while something is drawn; afterwards they are what they were."""
    return mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "lmwarden", "font.size": 10.0, "font.family": "DejaVu Sans"}
    )


def _written(figure: Figure, form: str, paper: str) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None} if form == "svg" else None
    figure.savefig(buffer, format=form, dpi=144, facecolor=paper, metadata=metadata)
    return buffer.getvalue()


def _axis_keys(chart: Chart) -> list[str]:
    keys = [f"axis.{chart.unit}"]
    if isinstance(chart, LineChart):
        keys.append("axis.sessions_open" if chart.open_loop else "axis.sessions")
    return keys


def _draw_lines(chart: LineChart) -> Figure:
    figure, axes = _canvas(3.2)
    places = range(len(chart.levels))
    for line in chart.lines:
        drawn = [(place, value) for place, value in zip(places, line.values, strict=True) if value is not None]
        colour, marker = _COLOURS.get(line.arm, _GRID), _MARKERS.get(line.arm, "o")
        dash = "--" if line.dashed else "-"
        axes.plot(*zip(*drawn, strict=True), color=colour, marker=marker, linestyle=dash, label=line.label, linewidth=2)
        for place, value, half in zip(places, line.values, line.half_widths, strict=True):
            if value is not None and half is not None:
                low = max(value - half, value / 50) if chart.logarithmic else max(value - half, 0.0)
                axes.plot([place, place], [low, value + half], color=colour, linewidth=1.2, marker="_", markersize=7)
    axes.set_xticks(list(places), [language("en").level(level) for level in chart.levels])
    axes.set_xlim(-0.3, len(chart.levels) - 0.7)
    unit, across = _axis_keys(chart)
    axes.set_xlabel(language("en").text(across))
    axes.set_ylabel(language("en").text(unit))
    if chart.logarithmic:
        _logarithmic(axes)
    else:
        axes.set_ylim(bottom=0, top=1.06 * max(axes.get_ylim()[1], 0.01) if chart.most is None else 1.04 * chart.most)
    axes.grid(axis="y", color=_GRID, alpha=0.3, linewidth=0.8)
    _legend(figure, len({line.arm for line in chart.lines}) if _in_pairs(chart) else len(chart.lines))
    return figure


def _in_pairs(chart: LineChart) -> bool:
    """Whether each arm has a solid and a dashed line: they stand one above the other in the legend."""
    return any(line.dashed for line in chart.lines)


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    ticks = [step * 10.0**power for power in range(-4, 6) for step in (1, 2, 5)]
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(LogLocator(subs=(3, 4, 6, 7, 8, 9)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_bars(chart: BarChart) -> Figure:
    figure, axes = _canvas(1.5 + 0.27 * len(chart.bars))
    left = [0.0] * len(chart.bars)
    places = list(range(len(chart.bars)))
    for number, part in enumerate(chart.parts):
        widths = [shares[number] for shares in chart.shares]
        colour = _DECISIONS.get(part, _PARTS[number % len(_PARTS)])
        axes.barh(places, widths, left=left, height=0.7, color=colour, edgecolor="white", linewidth=0.6, label=part)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(places, list(chart.bars))
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel(language("en").text(_axis_keys(chart)[0]))
    if len(chart.parts) <= _MOST_IN_LEGEND:
        _legend(figure, len(chart.parts))
    return figure


def _canvas(height_in: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
    axes = figure.add_subplot(facecolor="none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _legend(figure: Figure, columns: int) -> None:
    """Above the chart, in as many columns, up to ``columns``, as fit between its edges."""
    for number in range(columns, 0, -1):
        legend = figure.legend(
            loc="outside upper left", ncols=number, frameon=False, fontsize=9.0, handlelength=2.2, columnspacing=1.2
        )
        if legend.get_window_extent().width <= figure.bbox.width:
            return
        if number > 1:
            legend.remove()


def _recolour(figure: Figure, ink: str) -> None:
    """Give everything that is not data the colour of ink."""
    for axes in figure.axes:
        axes.tick_params(which="both", colors=ink)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_color(ink)
        for spine in axes.spines.values():
            spine.set_color(ink)
    for legend in figure.legends:
        for text in legend.get_texts():
            text.set_color(ink)


def described(chart: Chart, words: Language) -> str:
    """Return a chart as a sentence or two, for those who do not see it."""
    title = words.text(f"chart.{chart.key}.title")
    if isinstance(chart, LineChart):
        levels = [words.level(level) for level in chart.levels]
        ends = [_ends(line.label, levels, line.values, chart.digits) for line in chart.lines]
        return f"{title}. " + "; ".join(ends) + "."
    return f"{title}: {', '.join(chart.bars)}."


def _ends(label: str, levels: Sequence[str], values: Sequence[float | None], digits: int) -> str:
    known = [(level, value) for level, value in zip(levels, values, strict=True) if value is not None]
    return f"{label}: " + ", ".join(f"{level}: {value:.{digits}f}" for level, value in known)
