// What each chart of the Stats page shows, from the API's points.

import type { Series } from "../api/types";
import { DECISIONS } from "../api/types";
import { axisRate, decimal, percent, rate, seconds } from "../format";
import type { Texts } from "../i18n/en";
import { align, column, stack } from "../logic/series";
import type { Line, PlotSpec } from "../logic/plot-spec";
import type { Paint } from "./theme";

const DECISION_COLORS: Record<(typeof DECISIONS)[number], Paint> = {
  sticky: "blue",
  placed: "teal",
  spilled: "amber",
  rehomed: "purple",
  client_pinned: "green",
  balanced: "grey",
  unrouted: "muted",
};

function base(series: Series, times: number[], lines: Line[], format: PlotSpec["format"]): PlotSpec {
  return { times, lines, from: series.from, to: series.to, stepS: series.step_s, format };
}

// Layers of a stack, top first, for painting; each keeps its own values for the read-out.
function stacked(layers: Line[]): Line[] {
  const sums = stack(layers.map((line) => line.values));
  return layers.map((line, index) => ({ ...line, own: line.values, values: sums[index]! }));
}

export function tokens(texts: Texts, series: Series): PlotSpec {
  const { times, points } = align(series);
  const prompt = stacked([
    { label: texts.stats.computed, color: "computed", kind: "bars", values: column(points, "computed") },
    { label: texts.stats.cached, color: "cached", kind: "bars", values: column(points, "cached") },
  ]);
  const completion: Line = {
    label: texts.stats.completion,
    color: "completion",
    kind: "bars",
    values: column(points, "completion"),
    down: true,
  };
  return { ...base(series, times, [...prompt, completion], rate), upLabel: texts.stats.prompt, downLabel: texts.stats.completion };
}

export function latency(texts: Texts, series: Series, log: boolean): PlotSpec {
  const { times, points } = align(series);
  const line = (name: "p50" | "p95" | "p99", color: Paint): Line => ({
    label: texts.stats[name],
    color,
    kind: "line",
    values: column(points, name),
  });
  return { ...base(series, times, [line("p50", "blue"), line("p95", "amber"), line("p99", "red")], seconds), log };
}

export function decisions(texts: Texts, series: Series): PlotSpec {
  const { times, points } = align(series);
  // A decision that was never taken needs no place in the legend.
  const taken = DECISIONS.filter((name) => series.points.some((point) => (point[name] ?? 0) > 0));
  const names = taken.length ? taken : (["sticky"] as const);
  const order = [...names].sort((a, b) => Number(a === "sticky") - Number(b === "sticky"));
  const lines = order.map((name): Line => ({
    label: texts.decision[name],
    color: DECISION_COLORS[name],
    kind: "bars",
    values: column(points, name),
  }));
  return base(series, times, stacked(lines), axisRate);
}

export function failures(texts: Texts, series: Series): PlotSpec {
  const { times, points } = align(series);
  const lines = stacked([
    { label: texts.stats.refused, color: "amber", kind: "bars", values: column(points, "refused") },
    { label: texts.stats.failed, color: "red", kind: "bars", values: column(points, "failed") },
  ]);
  return base(series, times, lines, axisRate);
}

export function busy(texts: Texts, series: Series): PlotSpec {
  const { times, points } = align(series);
  const spec = base(
    series,
    times,
    [{ label: texts.stats.busySeries, color: "teal", kind: "area", values: column(points, "busy") }],
    (value) => decimal(value, 1),
  );
  return series.replicas ? { ...spec, top: series.replicas } : spec;
}

export function kvUsed(texts: Texts, series: Series): PlotSpec {
  const { times, points } = align(series);
  const spec = base(
    series,
    times,
    [{ label: texts.stats.kvSeries, color: "purple", kind: "area", values: column(points, "kv_used") }],
    (value) => percent(value),
  );
  return { ...spec, top: 1 };
}

export function waiting(texts: Texts, series: Series): PlotSpec {
  const { times, points } = align(series);
  const lines: Line[] = [
    { label: texts.stats.inFlight, color: "grey", kind: "line", values: column(points, "in_flight") },
    { label: texts.stats.running, color: "green", kind: "line", values: column(points, "running") },
    { label: texts.stats.queued, color: "amber", kind: "area", values: column(points, "waiting") },
  ];
  return base(series, times, lines, (value) => decimal(value, value !== null && value < 10 ? 1 : 0));
}
