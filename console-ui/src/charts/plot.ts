// Builds uPlot's options from a small description of a chart. uPlot paints; words, legend and read-out are ours.

import uPlot from "uplot";
import { axisDay, clockShort } from "../format";
import { lonely, type Line, type PlotSpec } from "../logic/plot-spec";
import { evenSplits, largest, roundUp, type Column } from "../logic/series";
import { paint } from "./theme";

// Share of the height for what goes down.
const DOWN_SHARE = 0.34;
const AXIS_FONT = '11px system-ui, -apple-system, "Segoe UI", "Noto Sans SC", "PingFang SC", sans-serif';
const SMALLEST_LOG = 0.001;

export function plotData(spec: PlotSpec): uPlot.AlignedData {
  const columns = spec.lines.map((line) => {
    if (line.down) return line.values.map((value) => (value === null ? null : -value));
    if (spec.log) return line.values.map((value) => (value === null ? null : Math.max(value, SMALLEST_LOG)));
    return line.values;
  });
  return [spec.times, ...columns] as uPlot.AlignedData;
}

export function plotOptions(
  spec: PlotSpec,
  width: number,
  height: number,
  hooks: { onIndex: (index: number | null) => void; onRange?: (from: number, to: number) => void },
): uPlot.Options {
  const hasDown = spec.lines.some((line) => line.down);
  const scales: uPlot.Scales = { x: { time: true, range: () => [spec.from, spec.to] }, y: upScale(spec, hasDown) };
  if (hasDown) scales["down"] = { range: () => downRange(spec) };
  return {
    width,
    height,
    scales,
    series: [{}, ...spec.lines.map(painted)],
    axes: axes(spec, hasDown),
    legend: { show: false },
    padding: [10, hasDown ? 0 : 12, 0, 0],
    cursor: { y: false, points: { show: false }, sync: { key: "time" }, drag: { x: true, y: false, setScale: false } },
    select: { show: true, left: 0, top: 0, width: 0, height: 0 },
    hooks: {
      setCursor: [(plot) => hooks.onIndex(plot.cursor.idx ?? null)],
      setSelect: [(plot) => select(plot, hooks.onRange)],
      drawAxes: [(plot) => zeroLine(plot, hasDown)],
    },
  };
}

function select(plot: uPlot, onRange?: (from: number, to: number) => void): void {
  const { left, width } = plot.select;
  if (width < 5) return;
  const [from, to] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  onRange?.(from, to);
}

function upMost(spec: PlotSpec): number {
  return spec.top ?? roundUp(largest(...spec.lines.filter((line) => !line.down).map((line) => line.values)));
}

const downMost = (spec: PlotSpec): number => roundUp(largest(...spec.lines.filter((line) => line.down).map((line) => line.values)));

function upScale(spec: PlotSpec, hasDown: boolean): uPlot.Scale {
  if (spec.log) {
    return {
      distr: 3,
      log: 10,
      range: (_plot, min, max) => [
        10 ** Math.floor(Math.log10(Math.max(min ?? 0.1, SMALLEST_LOG))),
        10 ** Math.ceil(Math.log10(Math.max(max ?? 1, 0.01))),
      ],
    };
  }
  // Both scales have their zero at the same height.
  return { range: () => [hasDown ? (-upMost(spec) * DOWN_SHARE) / (1 - DOWN_SHARE) : 0, upMost(spec)] };
}

function downRange(spec: PlotSpec): uPlot.Range.MinMax {
  const most = downMost(spec);
  return [-most, (most * (1 - DOWN_SHARE)) / DOWN_SHARE];
}

function painted(line: Line): uPlot.Series {
  const color = paint(line.color);
  const scale = line.down ? "down" : "y";
  if (line.kind === "bars") {
    const bars = uPlot.paths.bars!({ size: [1, Infinity, 1], align: 1, gap: 1 });
    return { label: line.label, scale, paths: bars, fill: color, width: 0, points: { show: false }, fillTo: () => 0 };
  }
  // A lone point between two gaps is no line; it must be seen all the same.
  const points: uPlot.Series.Points = {
    show: true,
    filter: (plot, index) => lonely(plot.data[index] as Column),
    size: 4,
    fill: color,
    stroke: color,
  };
  const series: uPlot.Series = { label: line.label, scale, stroke: color, width: 1.75, spanGaps: false, points };
  if (line.kind === "area") series.fill = withAlpha(color, 0.16);
  return series;
}

export function withAlpha(color: string, alpha: number): string {
  const parts = color.match(/[\d.]+/g);
  return parts && color.startsWith("rgb") ? `rgba(${parts.slice(0, 3).join(", ")}, ${alpha})` : color;
}

function axes(spec: PlotSpec, hasDown: boolean): uPlot.Axis[] {
  const base: uPlot.Axis = {
    stroke: paint("muted"),
    font: AXIS_FONT,
    labelFont: AXIS_FONT,
    grid: { stroke: paint("line"), width: 1 },
    ticks: { show: false },
  };
  const write = (values: (number | null)[]): string[] => values.map((value) => (value === null ? "" : spec.format(Math.abs(value))));
  const x: uPlot.Axis = {
    ...base,
    space: 64,
    size: 26,
    gap: 6,
    grid: { show: false },
    values: (_plot, splits, _axis, _space, increment) =>
      splits.map((t) =>
        increment >= 86_400 || new Date(t * 1000).getHours() + new Date(t * 1000).getMinutes() === 0 ? axisDay(t) : clockShort(t),
      ),
  };
  const y: uPlot.Axis = { ...base, scale: "y", size: 54, values: (_plot, splits) => write(splits) };
  if (!spec.log) {
    y.splits = () => evenSplits(upMost(spec));
  } else {
    y.filter = (_plot, splits) =>
      splits.map((value) => (value !== null && Number.isInteger(Math.round(Math.log10(value) * 1e6) / 1e6) ? value : null));
  }
  if (spec.upLabel) Object.assign(y, { label: spec.upLabel, labelSize: 18 });
  if (!hasDown) return [x, y];
  const down: uPlot.Axis = {
    ...base,
    scale: "down",
    side: 1,
    size: 54,
    grid: { ...base.grid!, dash: [2, 4] },
    splits: () => [-downMost(spec), -downMost(spec) / 2],
    values: (_plot, splits) => write(splits),
  };
  if (spec.downLabel) Object.assign(down, { label: spec.downLabel, labelSize: 18 });
  return [x, y, down];
}

function zeroLine(plot: uPlot, hasDown: boolean): void {
  if (!hasDown) return;
  const { ctx, bbox } = plot;
  const y = Math.round(plot.valToPos(0, "y", true)) + 0.5;
  ctx.save();
  ctx.strokeStyle = paint("muted");
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.restore();
}

// The chart with its title and legend on an opaque ground, as a PNG file.
export async function toPng(
  plot: uPlot,
  title: string,
  note: string,
  lines: readonly Pick<Line, "label" | "color">[],
): Promise<Blob | null> {
  const source = plot.ctx.canvas;
  const ratio = devicePixelRatio;
  const head = 56 * ratio;
  const canvas = document.createElement("canvas");
  canvas.width = source.width;
  canvas.height = source.height + head;
  const ctx = canvas.getContext("2d");
  if (!ctx) return null;
  ctx.fillStyle = paint("surface");
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.scale(ratio, ratio);
  ctx.fillStyle = paint("text");
  ctx.font = AXIS_FONT.replace("11px", "600 15px");
  ctx.fillText(note ? `${title}: ${note}` : title, 12, 22);
  ctx.font = AXIS_FONT.replace("11px", "12px");
  let x = 12;
  for (const line of lines) {
    ctx.fillStyle = paint(line.color);
    ctx.fillRect(x, 35, 10, 10);
    ctx.fillStyle = paint("text");
    ctx.fillText(line.label, x + 15, 44);
    x += 15 + ctx.measureText(line.label).width + 18;
  }
  ctx.setTransform(1, 0, 0, 1, 0, 0);
  ctx.drawImage(source, 0, head);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
